"""`manage.py trace`: what was recorded of a correlation id, as a tree."""

from __future__ import annotations

import datetime as dt
import re
import uuid

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications.models import EmailNotification
from orders.models import Order
from orders.services import complete_order, place_order
from orders.trace import read_trace
from outbox.delivery.rows.outcomes import Outcome, Verdict
from outbox.delivery.rows.settlements import Settlement
from outbox.models import OutboxEvent
from outbox.telemetry import context
from tests.factories import make_mails, make_order
from tests.orders.test_timeline import settle
from tests.outbox.events.inbound import PAID, envelope, handle, received
from tests.outbox.retention.months import fill, make_partition, tidy
from tests.plans import rows_without_index

pytestmark = pytest.mark.django_db(transaction=True)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAGA = context.Context("saga-1", f"00-{TRACE}-b7ad6b7169203331-01")


@pytest.fixture
def saga(settings) -> tuple[Order, Order]:
    """Place two orders in one saga; another service pays the first, whose e-mail fails once and is sent."""
    settings.FAST_PATH = False
    with context.working_for(SAGA):
        one, two = (
            place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=1000, reference=name)
            for name in ("R-1", "R-2")
        )
    metadata = {"correlationId": "saga-1", "traceparent": SAGA.traceparent}
    payment = received(PAID, envelope(PAID, {"orderId": str(one.id)}, metadata=metadata))
    assert [handle(payment), handle(payment)] == ["done", "repeat"]
    mail = EmailNotification.objects.get()
    settle(mail, Outcome(Verdict.TRANSIENT, provider="sendgrid", code="503", text="try later"))
    EmailNotification.objects.settle([Settlement(mail.id, Outcome(Verdict.ACCEPTED, "sendgrid", "m-1"))])
    EmailNotification.objects.update(delivered_at=dt.datetime.now(dt.UTC))
    OutboxEvent.objects.filter(aggregate_id=one.id).update(published_at=dt.datetime.now(dt.UTC))
    complete_order(order_id=one.id)  # a request of its own: another correlation id
    return one, two


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    call_command("trace", *arguments)
    return capsys.readouterr().out.splitlines()


def shape(lines: list[str]) -> list[str]:
    """Return the lines without times and ids."""
    return [re.sub(r" \[[0-9a-f-]{36}\]|[0-9a-f-]{36}", "", line[26:]).rstrip() for line in lines if line]


def test_each_thing_hangs_below_its_cause_across_the_orders_of_the_saga(saga, capsys):
    lines = printed(capsys, "saga-1")
    assert lines[0].startswith("Correlation id saga-1: 2 orders, ") and lines[0].endswith(" (UTC)")
    assert lines[1] == f"Trace id {TRACE}"
    assert shape(lines[2:]) == [
        "Order  (R-1): completed",
        "├─ Order placed: $10.00 (version 1)",
        "│  └─ Event order.order.placed.v1 published",
        f"├─ Event {PAID} of payment-service taken by orders, received 2 times",
        "│  └─ Order paid (version 2)",
        "│     ├─ E-mail order.paid for a@example.com saved",
        "│     │  ├─ order.paid: sendgrid: not taken: 503 try later",
        "│     │  ├─ order.paid: accepted by sendgrid",
        "│     │  └─ order.paid: delivered",
        "│     └─ Event order.order.paid.v1 published",
        "└─ 3 more of other correlation ids: manage.py timeline",
        "Order  (R-2): pending",
        "└─ Order placed: $10.00 (version 1)",
    ]
    times = [float(line[12:22]) for line in lines if line[:1].isdigit()]
    assert len(times) == 10 and min(times) == 0.0


def test_an_orders_id_or_reference_stands_for_its_correlation_id(saga, capsys):
    wanted = printed(capsys, "saga-1")
    assert printed(capsys, str(saga[1].id)) == printed(capsys, "R-2") == wanted


@pytest.mark.parametrize("unknown", ["saga-2", "01a2000e-4f32-7564-b27f-5041237fb303", TRACE, ""])
def test_an_unknown_id_is_said_to_be_unknown(saga, unknown):
    with pytest.raises(CommandError, match="No order or e-mail has the correlation id"):
        call_command("trace", unknown)


def test_an_order_without_a_correlation_id_has_a_timeline(db):
    order = make_order(reference="OLD")
    with pytest.raises(CommandError, match=f"manage.py timeline {order.id}"):
        call_command("trace", "OLD")


def test_the_orders_of_a_bulk_job_are_not_all_shown(saga, monkeypatch, capsys):
    monkeypatch.setattr("orders.trace.MOST_ORDERS", 1)
    assert printed(capsys, "saga-1")[-1] == "and 1 more orders"


def test_the_oldest_orders_come_first_whatever_their_ids(saga):
    first = make_order(id=uuid.UUID(int=2**128 - 1), correlation_id="saga-1", reference="R-0")
    Order.objects.filter(id=first.id).update(created_at=saga[0].created_at - dt.timedelta(days=1))
    shown = [node.text for node in read_trace(correlation_id="saga-1").orders]
    assert [name in text for name, text in zip(("R-0", "R-1", "R-2"), shown, strict=True)] == [True] * 3


def test_it_reads_by_the_indexes_of_correlation_ids_and_never_a_whole_partition(saga):
    with tidy():
        partition = make_partition(EmailNotification, back=2)
        fill(partition, 1500, order_id=saga[0].id)
        make_mails(1500)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE email_notifications SET correlation_id = id::text WHERE correlation_id <> 'saga-1'"
            )
            cursor.execute(
                "INSERT INTO orders (id, status, version, user_id, email, name, locale, reference, items,"
                " total_amount, refunded_amount, currency, correlation_id)"
                " SELECT gen_random_uuid(), 'pending', 1, gen_random_uuid(), 'a@example.com', '', 'en',"
                " '', '[]', 1, 0, 'EUR', n::text FROM generate_series(1, 3000) AS n"
            )
            cursor.execute("VACUUM ANALYZE orders, email_notifications, outbox_events, processed_events")
        with CaptureQueriesContext(connection) as captured:
            assert len(read_trace(correlation_id="saga-1").orders) == 2
        statements = [one["sql"] for one in captured if one["sql"].startswith(("SELECT", "WITH"))]
        for statement in statements:
            assert rows_without_index(statement) == {}, statement
        by_id = [one for one in statements if "'saga-1'" in one]
        assert len(by_id) == 2
        for statement, index in zip(by_id, ("correlation_id_idx", "orders_correlation"), strict=True):
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {statement}")
                plan = "\n".join(row[0] for row in cursor.fetchall())
            assert index in plan, plan
        assert len(captured) <= 3 + 2 * 7
