"""How many statements a request costs, transaction control included, and which of them read by an index."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from notifications.api.serializers import with_columns
from tests.kit.api import order_body
from tests.kit.mails import make_mails
from tests.kit.orders import fail_payment, make_order, pay_order
from tests.kit.texts import publish_texts
from tests.kit.trips import count_trips
from tests.kit.words import (
    NEWEST_FIRST,
    DomainEvent,
    EmailNotification,
    Order,
)
from web.api import first_read, pages

pytestmark = pytest.mark.django_db(transaction=True)
BEGIN_AND_COMMIT = 2  # which Django counts as statements


def _statements(request) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        response = request()
    assert response.status_code in (200, 201, 202), response.content
    return [query["sql"] for query in captured]


CHANGES = [
    ([], "pay"),
    (["pay"], "complete"),
    (["pay"], "cancel"),
    (["pay"], "refund"),
    (["pay"], "confirm"),
]


@pytest.mark.parametrize(("before", "action"), CHANGES)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_change_takes_two_statements_in_as_many_trips(api, settings, before, action, key):
    settings.NOTIFY_ON = [*settings.NOTIFY_ON, "order.confirmed"]
    first, second = api.place(), api.place()
    for path in (first, second):
        for earlier in before:
            api.post(f"{path}/{earlier}")
    for path in (first, second):  # at the first one the statements are still to be prepared
        statements, trips = _cost(lambda path=path: api.post(f"{path}/{action}", key=key and path))
    reads = 1 if action == "refund" else 0  # the order's refunds
    reads += key is None  # the token
    assert len(statements) <= 2 + reads + BEGIN_AND_COMMIT and trips <= 2 + reads, "\n".join(statements)


def test_a_change_whose_email_has_own_texts_takes_as_many(api):
    version = publish_texts(event_type="order.paid")
    for path in (api.place(), api.place()):
        statements, trips = _cost(lambda path=path: api.post(f"{path}/pay"))
    assert len(statements) <= 3 + BEGIN_AND_COMMIT and trips <= 3, "\n".join(statements)
    assert list(EmailNotification.objects.values_list("text_versions", flat=True)) == [[str(version.id)]] * 2


@pytest.mark.parametrize("key", [None, "k"])
def test_placing_takes_one_statement_in_one_trip(api, key):
    for number in (1, 2):
        statements, trips = _cost(
            lambda number=number: api.post("/api/v1/orders", order_body(), key=key and f"{number}")
        )
    reads = key is None  # the token
    assert len(statements) <= 1 + reads + BEGIN_AND_COMMIT and trips <= 1 + reads, "\n".join(statements)


def test_only_the_statements_of_a_change_are_prepared_and_planned_once_for_all_values(api):
    for number in range(8):
        api.post(f"{api.place()}/pay", key=f"{number}")
        api.get("/api/v1/orders")
        api.get("/api/v1/notifications?status=sent")
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement, generic_plans FROM pg_prepared_statements")
        prepared = dict(cursor.fetchall())
    assert any("UPDATE orders" in statement for statement in prepared)
    of_changes = [
        text for text in prepared if "api_tokens" in text or "FROM orders WHERE id = $1 FOR" in text
    ]
    assert len(of_changes) == len(prepared), list(prepared)
    assert sum(plans for plans in prepared.values()) > 0


def _cost(request) -> tuple[list[str], int]:
    """Return the statements of a request, and its trips."""
    statements: list[str] = []
    return statements, count_trips(lambda: statements.extend(_statements(request)))


def test_a_payment_that_confirms_the_order_takes_three_statements_as_well(api):
    path = api.place()
    api.post(f"{path}/confirm")
    assert len(_statements(lambda: api.post(f"{path}/pay", key="k"))) <= 3 + BEGIN_AND_COMMIT
    assert DomainEvent.objects.count() == 3


def test_reading_takes_few(api, monkeypatch):
    monkeypatch.setattr(pages, "_HOT_SINCE_SECONDS", 1e9)  # no minute ends between two requests
    path = api.place()
    assert len(_statements(lambda: api.get(path))) == 2
    assert len(_statements(lambda: api.get("/api/v1/orders"))) == 2
    assert len(_statements(lambda: api.get("/api/v1/notifications?status=sent"))) == 2
    api.get(f"{path}/events")
    api.get(f"{path}/notifications")
    assert len(_statements(lambda: api.get(f"{path}/events"))) == 3
    assert len(_statements(lambda: api.get(f"{path}/notifications"))) == 3


def test_a_change_within_this_system_takes_two():
    order = make_order()
    with CaptureQueriesContext(connection) as captured:
        pay_order(order_id=order.id)
    assert len(captured) <= 2 + BEGIN_AND_COMMIT


def test_a_failed_payment_also_asks_for_the_last_email(settings):
    settings.NOTIFY_ON = ["order.payment_failed"]
    order = make_order(status="pending")
    for _ in range(2):
        with CaptureQueriesContext(connection) as captured:
            fail_payment(order_id=order.id)
        assert len(captured) <= 3 + BEGIN_AND_COMMIT
    assert EmailNotification.objects.count() == 1


def test_the_last_email_about_a_failed_payment_is_found_by_an_index():
    make_mails(3000, status="sent")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE email_notifications")
    within = EmailNotification.objects.filter(
        order_id=uuid.uuid4(),
        event_type="order.payment_failed",
        created_at__gt=Now() - dt.timedelta(hours=1),
    )
    plan = within.explain()
    assert "_order_id_order_version_idx" in plan, plan
    for line in plan.splitlines():
        assert "Seq Scan" not in line or "rows=1 " in line, plan  # an empty partition


def test_a_replay_takes_the_refused_change_and_a_read(api):
    path = api.place()
    api.post(f"{path}/pay", key="k")
    begin, lock, rollback, read = _statements(lambda: api.post(f"{path}/pay", key="k"))
    assert (begin, rollback) == ("BEGIN", "ROLLBACK") and "FOR UPDATE" in lock and "api_tokens" in read
    first_read.forget()
    assert len(_statements(lambda: api.post(f"{path}/pay", key="k"))) == 1


def test_lists_of_notifications_load_no_bodies(api):
    (_, statement) = _statements(lambda: api.get("/api/v1/notifications"))
    assert '"body"' not in statement and '"body_text"' not in statement and '"errors"' not in statement


def _plan(rows):
    return rows[:51].explain()


def test_every_list_reads_by_an_index():
    make_mails(3000, status="sent")
    make_mails(20, status="dead_lettered")
    make_mails(20, status="pending")
    orders = [
        Order(user_id=uuid.uuid4(), email="a@example.com", total_amount=1, reference=f"R{number}")
        for number in range(3000)
    ]
    Order.objects.bulk_create(orders, batch_size=1000)  # PostgreSQL takes 65,535 parameters
    DomainEvent.objects.bulk_create(
        DomainEvent(
            aggregate_type="order", aggregate_id=order.id, event_type="x", sequence=1, payload={}, shard=0
        )
        for order in orders
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE orders, email_notifications, outbox_events")
    order = orders[1500]
    mails = with_columns(EmailNotification.objects.all())
    lists = {
        "orders_newest": Order.objects.order_by(*NEWEST_FIRST),
        "orders_user_newest": Order.objects.filter(user_id=order.user_id).order_by(*NEWEST_FIRST),
        "orders_status_newest": Order.objects.filter(status="refunded").order_by(*NEWEST_FIRST),
        "orders_reference_newest": Order.objects.filter(reference=order.reference).order_by(*NEWEST_FIRST),
        "_upper_id_idx": mails.filter(recipient_email__iexact="User7@Example.com").order_by("-id"),
        "_order_id_order_version_idx": mails.filter(order_id=order.id).order_by("id"),
        "_next_attempt_at_idx": mails.filter(status="pending").order_by("-id"),
        "_id_idx": mails.filter(status="dead_lettered").order_by("-id"),
        "_pkey": mails.filter(status="sent").order_by("-id"),
        "_aggregate_id_sequence_idx": DomainEvent.objects.filter(aggregate_id=order.id).order_by("sequence"),
    }
    for index, rows in lists.items():
        plan = _plan(rows)
        assert index in plan, plan
        for line in plan.splitlines():
            # Partitions without a row may be read as they are.
            assert "Seq Scan" not in line or "rows=1 " in line, plan


@pytest.mark.parametrize("status", ["suppressed", "discarded"])
def test_a_list_of_few_ended_mails_reads_no_other_rows(status):
    make_mails(3000, status="sent")
    make_mails(20, status=status)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE email_notifications")
    plan = _plan(EmailNotification.objects.only("id").filter(status=status).order_by("-id"))
    assert "_id_idx" in plan and "_pkey" not in plan, plan
