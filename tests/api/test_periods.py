"""Lists of a period: half-open, in any offset, and by the partitions that may have its rows."""

from __future__ import annotations

import datetime as dt
import uuid
from urllib.parse import quote, urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runtime.database.periods import narrow_to_created, read_time
from tests.kit.api import assert_problem
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.words import NEWEST_FIRST, EmailNotification, Order, id_time, new_id

NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


def listed(api, path: str) -> list[str]:
    response = api.get(f"/api/v1/{path}")
    assert response.status_code == 200, response.content
    return [row["id"] for row in response.json()["results"]]


@pytest.fixture
def orders(db) -> list[str]:
    """Return the ids of three orders, a second apart, none of which has its time in its id."""
    made = [make_order(id=uuid.uuid4(), created_at=NOON + n * SECOND) for n in (-1, 0, 1)]
    return [str(order.id) for order in made]


def test_adjoining_periods_have_each_order_once(api, orders):
    before, at, after = orders
    assert listed(api, "orders?created_before=2026-11-20T12:00:00Z") == [before]
    assert set(listed(api, "orders?created_after=2026-11-20T12:00:00Z")) == {at, after}
    assert listed(api, "orders?created_after=2026-11-20T12:00Z&created_before=2026-11-20T12:00:01Z") == [at]


@pytest.mark.parametrize(
    "time",
    [
        "2026-11-20T12:00:00",
        "2026-11-20t12:00:00.000000z",
        "2026-11-20T14:00:00+02:00",
        "2026-11-20T11:00-0100",
    ],
)
def test_a_time_has_any_offset_and_is_utc_without_one(api, orders, time):
    assert listed(api, f"orders?created_before={quote(time)}") == [orders[0]]


@pytest.mark.parametrize("path", ["orders", "notifications"])
@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "2026-11-20", "20261120T120000Z", "2026-W47-5T12:00", "2026-11-20 12:00", "1795000000"),
        *("2026-02-30T00:00Z", "2026-11-20T12:00:60Z", "2026-11-20T25:00Z", "0001-01-01T00:00%2B05:00"),
        *("9999-12-31T23:59-05:00", "2026-11-20T12:00:00+02:00", "\u0662026-11-20T12:00"),
    ],
)
def test_a_bad_time_is_a_400_that_names_it(api, path, text):
    for name in ("created_after", "created_before"):
        problem = assert_problem(api.get(f"/api/v1/{path}?{name}={text}"), 400, "validation")
        assert (
            problem["errors"] == [{"pointer": f"#/{name}", "detail": problem["detail"], "in": "query"}]
            and problem["detail"]
        )


@pytest.mark.parametrize("path", ["orders", "notifications"])
@pytest.mark.parametrize(
    ("after", "before"),
    [
        ("2026-11-21T00:00Z", "2026-11-20T00:00Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        ("0001-01-01T00:00Z", "0001-01-01T00:00Z"),
    ],
)
def test_an_empty_period_is_an_empty_list(api, path, after, before):
    make_mail(order_id=make_order().id)
    assert listed(api, f"{path}?created_after={after}&created_before={before}") == []
    assert len(listed(api, f"{path}?created_after=0001-01-01T00:00Z&created_before=9999-12-31T23:59Z")) == 1


def test_the_links_keep_the_period(api, orders):
    page = api.get("/api/v1/orders?page_size=1&created_before=2026-11-20T14:00:01%2B02:00").json()
    parts = urlsplit(page["next"])
    assert [row["id"] for row in page["results"]] + listed(api, f"orders?{parts.query}") == orders[1::-1]


def test_an_emails_period_is_by_its_time_and_not_by_its_id(api):
    """The id has the time of the program that made it, whose clock may differ from the database's."""
    now = dt.datetime.now(dt.UTC)
    inside, outside = (make_mail(id=new_id(), created_at=now + sign * SECOND) for sign in (-3600, 3600))
    until = quote(now.isoformat())
    assert listed(api, f"notifications?created_before={until}") == [str(inside.id)]
    assert listed(api, f"notifications?created_after={until}") == [str(outside.id)]


def test_a_period_reads_only_the_partitions_that_may_have_its_rows(db):
    now = dt.datetime.now(dt.UTC)
    every = EmailNotification.objects.order_by("-id")[:51].explain()
    rows = narrow_to_created(EmailNotification.objects.all(), since=now, until=now + SECOND)
    some = rows.order_by("-id")[:51].explain()
    assert some.count(" on email_notifications_p") <= 2 < every.count(" on email_notifications_p"), some


def test_a_list_of_one_kind_of_email_has_no_other_and_an_unknown_kind_is_400(api):
    paid, refunded = make_mail(), make_mail(event_type="order.refunded")
    assert listed(api, "notifications?event_type=order.paid") == [str(paid.id)]
    assert listed(api, "notifications?event_type=order.refunded") == [str(refunded.id)]
    with CaptureQueriesContext(connection) as queries:
        problem = assert_problem(api.get("/api/v1/notifications?event_type=order.lost"), 400, "validation")
    assert problem["errors"][0]["in"] == "query"
    assert not any("email_notifications" in query["sql"] for query in queries.captured_queries)


def test_a_short_period_of_orders_is_read_by_its_index(filled):
    since = Order.objects.earliest("created_at").created_at
    rows = Order.objects.filter(created_at__gte=since, created_at__lt=since + dt.timedelta(minutes=1))
    assert rows.count() == 60
    assert "orders_newest" in rows.order_by(*NEWEST_FIRST)[:51].explain()


def test_the_time_of_an_id_that_holds_none_is_the_last_one():
    assert id_time(uuid.UUID(int=2**128 - 1)).year == 9999


@pytest.mark.parametrize("text", ["1970-01-01T00:00:00+14:00", "0001-01-01T00:00:00+14:00", "9999-12-31"])
def test_a_period_that_begins_at_no_time_of_an_id_is_not_read(text):
    assert read_time(text) is None
