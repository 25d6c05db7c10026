"""An order of another system may have been placed at any time that this system can read."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models.functions import Now

from tests.kit.api import Api, make_token
from tests.kit.events import SHOP, give, new_id, tell, told
from tests.kit.jobs import run_jobs
from tests.kit.months import Steps
from tests.kit.people import grep
from tests.kit.words import ERASED_ADDRESS, BulkJob, EmailNotification, InboundDeadLetter, Order, erasure

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ANN = "ann@example.com"
TIMES = [
    *("1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "0001-01-02T00:00:00-12:00"),
    *("9999-12-31T23:59:59Z", "2999-01-01T00:00:00Z"),
]


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]
    settings.NOTIFY_ON = ["order.placed", "order.paid", "order.completed"]


@pytest.mark.parametrize("placed_at", TIMES)
def test_is_shown_exported_and_erased(placed_at, admin_client):
    id = new_id()
    for number, change in enumerate(("placed", "paid", "completed"), start=1):
        event = told(change, id, number, email=ANN, placedAt=placed_at)
        assert give(event) == "done", InboundDeadLetter.objects.first().error
    EmailNotification.objects.update(status="sent", sent_at=Now())
    api = Api(make_token())
    for path in ("", "/notifications", "/events", "/timeline"):
        assert api.get(f"/api/v1/orders/{id}{path}").status_code == 200
    assert api.get("/api/v1/orders").status_code == 200
    for path in ("", f"{id}/change/", f"{id}/emails/"):
        assert admin_client.get(f"/admin/orders/order/{path}").status_code == 200, path
    call_command("timeline", id)
    action = {"action": "export_person", "_selected_action": [id], "confirmed": "yes"}
    admin_client.post("/admin/orders/order/", action)
    run_jobs()
    exported = admin_client.get(f"/admin/runtime/bulkjob/{BulkJob.objects.get().id}/result/").json()
    assert [len(exported[name]) for name in ("orders", "email_notifications")] == [1, 3]
    erasure.erase_person(email=ANN, report=Steps())
    assert grep(ANN) == [] and Order.objects.get(id=id).email == ERASED_ADDRESS
    assert api.get(f"/api/v1/orders/{id}").status_code == 200


@pytest.mark.parametrize("placed_at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_that_is_no_time_of_utc_is_the_time_of_the_event(placed_at):
    event = told("placed", id := new_id(), 1, placedAt=placed_at)
    assert give(event) == "done"
    assert Order.objects.get(id=id).created_at == dt.datetime.fromisoformat(event["timestamp"])


def test_in_the_future_is_when_the_order_was_first_heard_of():
    id = new_id()
    tell("placed", id, 1, email=ANN, placedAt="2999-01-01T00:00:00Z")
    first = Order.objects.get(id=id).created_at
    tell("paid", id, 2, email=ANN, placedAt="2999-01-01T00:00:00Z")
    assert Order.objects.get(id=id).created_at == first
