"""The time zone of an order: by the API and by events, in e-mails, previews and files, and when erased."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kit.admin import downloaded
from tests.kit.api import Api, api, assert_problem, make_token, order_body
from tests.kit.events import give, told
from tests.kit.months import Steps
from tests.kit.profiles import save_profile
from tests.kit.words import DomainEvent, EmailNotification, Order, erase_person, export_person

__all__ = ["api"]  # a fixture

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
ORDERS = "/admin/orders/order/"
NBSP = "\N{NO-BREAK SPACE}"
#: The evening of 27 November in Los Angeles, where Berlin and UTC have the 28th.
EVENING = "2026-11-28T04:30:00Z"


@pytest.fixture(autouse=True)
def _shops(settings):
    settings.FAST_PATH = False
    settings.ORDER_SOURCES = ["shop-a"]
    save_profile("shop-a", time_zone="Europe/Berlin", default_locale="en-GB")


def report(sequence: int = 1, change: str = "paid", **data: Any) -> Order:
    event = told(change, "A-1", sequence, placedAt=EVENING, locale="en-GB", **data)
    assert give(event) == "done"
    return Order.objects.get()


def day_in_email() -> str:
    """Return the day of the newest e-mail, on which the order was placed."""
    email = EmailNotification.objects.order_by("-id")[0]
    day = email.body_text.partition("Placed on: ")[2].partition(f"{NBSP}November")[0]
    assert f"{day}{NBSP}November 2026" in email.body
    return day


class TestTheApi:
    def test_stores_and_answers_an_iana_name(self, api):
        answer = api.post("/api/v1/orders", order_body(time_zone="America/Los_Angeles"))
        assert answer.status_code == 201 and answer.json()["time_zone"] == "America/Los_Angeles"
        assert Order.objects.get().details == {"time_zone": "America/Los_Angeles"}

    def test_needs_none(self, api):
        assert "time_zone" not in api.post("/api/v1/orders", order_body()).json()
        assert Order.objects.get().details == {}

    @pytest.mark.parametrize("zone", ["-08:00", "Berlin", "localtime", "", "A" * 51, 8, None])
    def test_refuses_anything_else(self, api, zone):
        problem = assert_problem(api.post("/api/v1/orders", order_body(time_zone=zone)), 400, "validation")
        assert [error["pointer"] for error in problem["errors"]] == ["#/time_zone"]
        assert not Order.objects.exists()

    def test_says_what_would_be_right(self, api):
        answer = api.post("/api/v1/orders", order_body(time_zone="Berlin")).json()
        assert answer["errors"][0]["detail"] == (
            "This is not the IANA name of a time zone, such as Europe/Berlin."
        )


class TestAnEvent:
    @pytest.mark.parametrize(
        ("zone", "day"), [("America/Los_Angeles", "27"), ("-08:00", "27"), ("+01:00", "28")]
    )
    def test_gives_the_days_of_the_emails(self, zone, day):
        assert report(timeZone=zone).details == {"time_zone": zone}
        assert day_in_email() == day

    def test_without_one_has_the_days_of_the_profile(self):
        save_profile("shop-a", time_zone="America/Los_Angeles")
        assert report().details == {}
        assert day_in_email() == "27"
        save_profile("shop-a", time_zone="")
        report(2, "completed")
        assert day_in_email() == "28"

    @pytest.mark.parametrize("zone", ["Mars/Base", "-8", "+15:00", 8, "", "A" * 51])
    def test_with_an_unknown_one_is_a_fact_with_a_doubt(self, zone):
        event = told("paid", "A-1", 1, placedAt=EVENING, timeZone=zone)
        answer = Api(make_token()).post("/api/v1/events", event).json()
        assert answer["result"] == "processed"
        (warning,) = answer["warnings"]
        assert warning.startswith("timeZone: ") and warning.endswith(" That of the shop's profile is used.")
        order = Order.objects.get()
        assert order.details == {} and len(order.warnings) == 1
        assert day_in_email() == "28"


def test_it_is_in_the_preview_the_page_and_the_file(admin_client):
    order = report(timeZone="-08:00")
    url = f"{ORDERS}{order.id}/emails/body/"
    preview = admin_client.get(url, {"event": "order.paid", "locale": "en"}).content.decode()
    assert f"27{NBSP}November" in preview and f"28{NBSP}November" not in preview
    assert "Time zone: -08:00" in admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
    (row,) = downloaded(admin_client, ORDERS)
    assert json.loads(row["details"]) == {"time_zone": "-08:00"}


def test_it_is_exported_erased_and_in_no_event_of_ours(settings):
    order = report(timeZone="America/Los_Angeles")
    assert not any("Los_Angeles" in str(event.payload) for event in DomainEvent.objects.all())
    (exported,) = export_person(email=order.email, report=Steps())["orders"]
    assert exported["details"] == {"time_zone": "America/Los_Angeles"}
    erase_person(email=order.email, report=Steps(), force=True)
    order.refresh_from_db()
    assert order.details == {}
    report(2, "completed", timeZone="America/Los_Angeles")
    order.refresh_from_db()
    assert order.details == {}
