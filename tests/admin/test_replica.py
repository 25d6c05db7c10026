"""Which answers a replica gives: pages of the admin, metrics, and nothing else."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from runtime.database.replica import ALIAS
from tests.kit.api import Api, make_token
from tests.kit.fake_replica import FakeReplica
from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.words import BulkJob, Order, claim, metrics
from web.admin.csv import rows_by_key
from web.admin.reading import COOKIE


@pytest.fixture(autouse=True)
def fake(fake_replica: FakeReplica) -> FakeReplica:
    return fake_replica


def asked(request: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """Return the statements of a request on the primary and on the replica."""
    with (
        CaptureQueriesContext(connections["default"]) as primary,
        CaptureQueriesContext(connections[ALIAS]) as replica,
    ):
        answer = request()
        assert answer.status_code in (200, 201, 202, 302), answer.content
        if answer.streaming:
            b"".join(answer.streaming_content)
    return [query["sql"] for query in primary], [query["sql"] for query in replica]


@pytest.mark.parametrize("path", ["/orders", "/orders?status=paid", "/notifications"])
def test_the_api_is_not_read_from_the_replica(path):
    make_mail(order_id=make_order().id)
    api = Api(make_token())
    primary, replica = asked(lambda: api.get(f"/api/v1{path}"))
    assert len(primary) == 2 and replica == []


PAGES = [
    *("/admin/orders/order/", "/admin/orders/order/?status=paid", "/admin/orders/order/csv/"),
    "/admin/orders/order/?fulfilment=shipped",
    *("/admin/notifications/emailnotification/", "/admin/notifications/emailnotification/csv/"),
    *("/admin/events/domainevent/", "/admin/runtime/bulkjob/", "/admin/runtime/auditrow/"),
]
#: What the primary is asked: who the user is, and the row of the audit in its transaction.
OF_USERS = ("auth_", "django_session", "django_content_type", "audit_rows", "BEGIN", "COMMIT")


@pytest.mark.parametrize("path", PAGES)
def test_the_admins_lists_are_read_from_the_replica(admin_client, path):
    make_mail(order_id=make_order().id)
    primary, replica = asked(lambda: admin_client.get(path))
    assert replica != [] and [sql for sql in primary if not any(name in sql for name in OF_USERS)] == []


def test_the_first_page_and_the_search_are_as_well(admin_client):
    order = make_order(reference="R-1")
    primary, replica = asked(lambda: admin_client.get("/admin/"))
    assert any("traffic_sums" in sql for sql in replica) and any("dead_lettered" in sql for sql in replica)
    assert not any("FROM orders" in sql or "traffic_sums" in sql for sql in primary)
    primary, replica = asked(lambda: admin_client.get("/admin/search/?q=R-1"))
    assert any('"orders"' in sql for sql in replica) and not any('"orders"' in sql for sql in primary)
    primary, replica = asked(lambda: admin_client.get(f"/admin/orders/order/{order.id}/change/"))
    assert replica == [], "the page of one order decides on actions"


def test_giving_up_what_a_late_list_showed_asks_the_primary_and_leaves_an_email_that_is_being_sent(
    admin_client,
):
    taken, waiting = make_mail(), make_mail(next_attempt_at=Now() + dt.timedelta(hours=1))
    page = "/admin/notifications/emailnotification/"
    assert asked(lambda: admin_client.get(f"{page}?status=pending"))[1] != []
    assert [email.id for email in claim(limit=1)] == [taken.id]
    ticked = {"action": "give_up", ACTION_CHECKBOX_NAME: [waiting.id, taken.id], "select_across": "0"}
    assert asked(lambda: admin_client.post(f"{page}?status=pending", ticked))[1] == []
    posted = {"action": "give_up", "ids": f"{waiting.id},{taken.id}", "confirmed": "1"}
    assert asked(lambda: admin_client.post(f"{page}bulk/", posted))[1] == []
    run_jobs()
    job = BulkJob.objects.get()
    assert (job.done_count, job.refusals) == (
        1,
        {"it is processing, not dead_lettered, failed or pending": 1},
    )


def test_a_search_without_a_hit_asks_the_primary_too(admin_client):
    primary, replica = asked(lambda: admin_client.get("/admin/search/?q=R-2"))
    assert any('"orders"' in sql for sql in replica) and any('"orders"' in sql for sql in primary)


def test_after_a_change_the_primary_answers_its_user_for_a_while(admin_client):
    form = {"part": "delivery", "reason": "a sale"}
    answer = admin_client.post("/admin/orders/order/", form)
    assert COOKIE in answer.cookies and answer.cookies[COOKIE]["max-age"] == 10
    assert asked(lambda: admin_client.get("/admin/orders/order/"))[1] == []
    del admin_client.cookies[COOKIE]
    assert asked(lambda: admin_client.get("/admin/orders/order/"))[1] != []


def test_a_csv_file_goes_on_at_the_primary_with_each_row_once(fake):
    orders = [make_order().id for _ in range(6)]
    places = []
    for row in rows_by_key(queryset=Order.objects.all(), size=2, may_be_late=True):
        places.append((row.id, row._state.db))
        if len(places) == 3:
            fake.fail()
            make_order()
    assert [id for id, _ in places] == orders[::-1]
    assert [database for _, database in places] == [ALIAS] * 4 + ["default"] * 2


def test_a_scrape_reads_the_facts_from_the_replica_and_the_servers_own_from_the_primary():
    with (
        CaptureQueriesContext(connections["default"]) as primary,
        CaptureQueriesContext(connections[ALIAS]) as replica,
    ):
        names = {family.name for family in metrics.families(with_readers=True)}
    assert {"orderpost_condition", "orderpost_database_connections", "orderpost_unfinished"} <= names
    facts = [query["sql"] for query in replica if "email_notifications" in query["sql"]]
    assert facts and not any("pg_stat_activity" in sql for sql in facts)
    assert any("pg_stat_activity" in query["sql"] for query in primary)
    assert not any("FROM email_notifications" in query["sql"] for query in primary)
