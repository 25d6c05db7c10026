"""Which answers a replica gives: lists without a filter, pages of the admin, metrics, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import OperationalError, connections
from django.test.utils import CaptureQueriesContext

from runtime.database.replica import ALIAS, Walk
from tests.kit.fake_replica import FakeReplica
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.words import Order, metrics
from web.admin.csv import rows_by_key
from web.admin.reading import COOKIE

TIME = "2026-01-01T00:00:00Z"
ID = "6f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11"


@pytest.fixture(autouse=True)
def fake(fake_replica: FakeReplica) -> FakeReplica:
    """Replace its position, which is a statement in real life."""
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
    return [one["sql"] for one in primary], [one["sql"] for one in replica]


@pytest.mark.parametrize("path", ["/orders", "/orders?page_size=3", "/notifications"])
def test_a_list_without_a_filter_is_read_from_the_replica_and_only_the_token_is_not(api, path):
    primary, replica = asked(lambda: api.get(f"/api/v1{path}"))
    assert len(primary) == 1 and "api_tokens" in primary[0] and len(replica) == 1


@pytest.mark.parametrize(
    "path",
    [
        *("/orders?reference=R-1", "/orders?email=ann@example.com", f"/orders?user_id={ID}"),
        *("/orders?status=paid", f"/orders?created_after={TIME}", f"/orders?created_before={TIME}"),
        *("/notifications?recipient_email=ann@example.com", f"/notifications?order_id={ID}"),
        *("/notifications?status=sent", "/notifications?event_type=order.paid"),
    ],
)
def test_a_list_with_a_filter_is_not(api, path):
    assert asked(lambda: api.get(f"/api/v1{path}"))[1] == []


def test_one_row_and_the_lists_below_one_order_are_not(api):
    order = make_order()
    mail = make_mail(order_id=order.id)
    path = f"/orders/{order.id}"
    for one in (path, f"{path}/notifications", f"{path}/events", f"/notifications/{mail.id}"):
        assert asked(lambda one=one: api.get(f"/api/v1{one}"))[1] == []


def test_a_change_costs_no_more_statements(api):
    for number in range(2):  # at the first one, the statements are still to be prepared
        path = api.place()
        primary, replica = asked(lambda path=path, number=number: api.post(f"{path}/pay", key=f"{number}"))
    assert len(primary) <= 3 + 2 and replica == []  # Django counts BEGIN and COMMIT
    body = {"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 1}
    primary, replica = asked(lambda: api.post("/api/v1/orders", body))
    assert len(primary) <= 2 + 2 and replica == []


def next_of(api: Any, address: str) -> tuple[str, list[str]]:
    """Return the address of a page's next one, and the servers' names that read the page."""
    parts = urlsplit(address)
    found: dict[str, Any] = {}

    def get() -> Any:
        answer = api.get(f"{parts.path}?{parts.query}")
        found.update(answer.json())
        return answer

    primary, replica = asked(get)
    return found["next"], ["default"] * (len(primary) - 1) + [ALIAS] * len(replica)


def test_the_pages_of_a_walk_come_from_one_server(api, fake):
    for _ in range(5):
        make_order()
    fake.pass_seconds(10)
    second, readers = next_of(api, "/api/v1/orders?page_size=1")
    assert {*readers} == {ALIAS} and "~" in second
    third, readers = next_of(api, second)
    assert {*readers} == {ALIAS}
    fake.lag = 2  # fresh enough, but behind the page before
    fourth, readers = next_of(api, third)
    assert {*readers} == {"default"}
    fake.lag = 0
    _, readers = next_of(api, fourth)
    assert {*readers} == {"default"}, "the walk stays where it went"


@pytest.mark.parametrize("mark", ["~", "~x", "~FFFFFFFFFFFFFFFFF", "~1~2"])
def test_a_mark_that_this_api_did_not_make_is_refused_or_none(api, mark):
    make_order()
    cursor = f"n1790000000000000.{ID}{mark}"
    answer = api.get(f"/api/v1/orders?cursor={cursor}")
    assert answer.status_code == (200 if mark == "~" else 400)
    assert api.get(f"/api/v1/orders?cursor={mark}").status_code == 400


PAGES = [
    *("/admin/orders/order/", "/admin/orders/order/?status=paid", "/admin/orders/order/csv/"),
    *("/admin/notifications/emailnotification/", "/admin/notifications/emailnotification/csv/"),
    *("/admin/events/domainevent/", "/admin/runtime/bulkjob/", "/admin/admin/logentry/"),
]
OF_USERS = ("auth_", "django_session", "django_content_type", "django_admin_log")


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
    found = []
    for row in rows_by_key(queryset=Order.objects.all(), size=2, walk=Walk()):
        found.append((row.id, row._state.db))
        if len(found) == 3:
            fake.known.leave_alone(OperationalError("killed"))
            make_order()
    assert [id for id, _ in found] == orders[::-1]
    assert [database for _, database in found] == [ALIAS] * 4 + ["default"] * 2


def test_a_scrape_reads_the_facts_from_the_replica_and_the_servers_own_from_the_primary():
    with (
        CaptureQueriesContext(connections["default"]) as primary,
        CaptureQueriesContext(connections[ALIAS]) as replica,
    ):
        names = {one.name for one in metrics.families(with_readers=True)}
    assert {"orderpost_condition", "orderpost_database_connections", "orderpost_unfinished"} <= names
    facts = [one["sql"] for one in replica if "email_notifications" in one["sql"]]
    assert facts and not any("pg_stat_activity" in sql for sql in facts)
    assert any("pg_stat_activity" in one["sql"] for one in primary)
    assert not any("FROM email_notifications" in one["sql"] for one in primary)
