"""PENDING_ORDER_HOURS cancels the orders that were never paid, and no others."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.db.models.functions import Now

from config.beat import schedule
from notifications.models import EmailNotification
from orders import changes, services, unpaid
from orders.corrections import send_copy
from orders.models import Order
from orders.privacy.erasure import erase_person
from orders.tasks import cancel_unpaid
from orders.timeline import read_timeline
from outbox.database.clock import read_database_time
from outbox.database.ids import id_floor, new_id
from outbox.events.consuming.consumer import GROUP
from outbox.events.transports import BrokerAway
from outbox.models import InboundDeadLetter, OutboxEvent
from tests.factories import make_mail, make_order
from tests.outbox.events.inbound import FAILED, PAID, envelope, give, status
from tests.outbox.retention.months import Steps
from tests.plans import rows_visited

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = dt.timedelta(hours=1)


@pytest.fixture(autouse=True)
def after_two_days(settings):
    settings.PENDING_ORDER_HOURS = 48


def old_order(*, age: dt.timedelta = 49 * HOUR, number: int = 0, **fields: Any) -> Order:
    """Insert an order that was placed and last changed `age` ago."""
    then = read_database_time() - age
    id = id_floor(then).int + number
    return make_order(**{"id": uuid.UUID(int=id), "created_at": then, "updated_at": then} | fields)


def test_it_cancels_with_the_mail_and_the_event_of_every_cancellation():
    it = old_order(stock_reserved_at=Now())
    cancel_unpaid()
    assert (status(it), it.version) == ("cancelled", 2)
    mail, event = EmailNotification.objects.get(), OutboxEvent.objects.get()
    assert "We had received no payment" in mail.body_text and "Reason" not in mail.body_text
    assert event.payload["wasPaid"] is False and event.payload["reason"] == "NOT_PAID"
    assert read_timeline(order=it)[2].text == "Order cancelled: NOT_PAID (version 2)"
    assert unpaid.cancel_unpaid() == 0


def test_it_runs_each_minute_and_unset_it_does_nothing(settings):
    assert ("orders.tasks.cancel_unpaid", dt.timedelta(minutes=1)) in schedule().values()
    settings.PENDING_ORDER_HOURS = None
    it = old_order()
    assert unpaid.cancel_unpaid() == 0
    assert status(it) == "pending"


@pytest.mark.parametrize(
    "fields",
    [
        {"age": 47 * HOUR},
        {"status": "paid", "paid_at": Now()},
        {"status": "confirmed", "paid_at": Now()},
        {"source": "shop-a"},
        {"updated_at": Now()},
    ],
    ids=str,
)
def test_it_leaves_other_orders_alone(fields):
    it = old_order(**fields)
    before = status(it)
    assert unpaid.cancel_unpaid() == 0
    assert (status(it), it.version) == (before, 1)


def test_after_a_failed_payment_the_time_begins_anew():
    it = old_order()
    give(FAILED, it, reasonCode="card_declined")
    assert unpaid.cancel_unpaid() == 0
    assert status(it) == "pending"


def test_after_a_correction_of_its_address_the_time_begins_anew():
    it = old_order()
    mail = make_mail(order_id=it.id, status="sent")
    send_copy(notification_id=mail.id, recipient_email="bob@example.com", update_order=True)
    assert unpaid.cancel_unpaid() == 0


@pytest.mark.usefixtures("archive_folder")
@pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
def test_an_erased_persons_order_is_cancelled_and_mails_nobody():
    it = old_order()
    erase_person(email=it.email, report=Steps(), force=True)
    Order.objects.filter(id=it.id).update(updated_at=it.updated_at)
    assert unpaid.cancel_unpaid() == 1
    assert EmailNotification.objects.get().status == "suppressed"


def test_an_order_that_is_paid_after_it_was_found_stays_paid(monkeypatch):
    it = old_order()
    cancel = unpaid._cancel

    def pay_first(id, before):
        services.pay_order(order_id=id)
        return cancel(id, before)

    monkeypatch.setattr(unpaid, "_cancel", pay_first)
    assert unpaid.cancel_unpaid() == 0
    assert status(it) == "paid"


@pytest.mark.parametrize(
    "parts", [["consumers"], ["delivery", "--restored-to", "2026-11-20T10:00:00Z"]], ids=str
)
def test_while_payments_may_be_unread_it_cancels_none(parts):
    it = old_order()
    call_command("pause", *parts, "--reason", "the broker moves")
    assert unpaid.cancel_unpaid() == 0
    assert status(it) == "pending"
    call_command("resume", "--all", "--force")
    assert unpaid.cancel_unpaid() == 1


@pytest.fixture
def broker(settings) -> Iterator[redis.Redis]:
    """Yield the tests' Valkey, without the topic of payments."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(PAID)
        yield client
        client.delete(PAID)


def test_while_payments_wait_at_the_broker_it_cancels_none(broker):
    it = old_order()
    an_hour_ago = int((read_database_time() - HOUR).timestamp() * 1000)
    broker.xgroup_create(PAID, GROUP, id="0", mkstream=True)
    id = broker.xadd(PAID, {"key": "1", "value": "{}"}, id=f"{an_hour_ago}-0")
    assert unpaid.cancel_unpaid() == 0
    broker.xreadgroup(GROUP, "one", {PAID: ">"})
    assert unpaid.cancel_unpaid() == 0  # it is read, and not yet done
    broker.xack(PAID, GROUP, id)
    assert unpaid.cancel_unpaid() == 1
    assert status(it) == "cancelled"


@pytest.mark.parametrize("decided", [False, True])
def test_an_order_whose_payment_is_a_dead_letter_waits_for_a_person_and_holds_up_no_other(
    monkeypatch, decided
):
    monkeypatch.setattr(unpaid, "MOST", 1)
    it, other = old_order(), old_order(number=1)
    payment = envelope(PAID, {"orderId": str(it.id).upper()})
    letter = InboundDeadLetter.objects.create(
        topic=PAID, event_id=new_id(), consumer="orders", envelope=json.dumps(payment), error="a template"
    )
    if decided:
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
    assert unpaid.cancel_unpaid() == 1
    assert [status(it), status(other)] == ["pending", "cancelled"]
    InboundDeadLetter.objects.discard(ids=[letter.id])
    assert unpaid.cancel_unpaid() == 1
    assert status(it) == "cancelled"


def test_a_payment_that_has_just_arrived_holds_up_no_other_order(broker):
    old_order()
    broker.xgroup_create(PAID, GROUP, id="0", mkstream=True)
    broker.xadd(PAID, {"key": "1", "value": "{}"})
    assert unpaid.cancel_unpaid() == 1


def test_while_the_broker_is_away_it_cancels_none(monkeypatch):
    def away(**_: object) -> None:
        raise BrokerAway("refused")

    old_order()
    monkeypatch.setattr(unpaid, "consumer_lags", away)
    assert unpaid.cancel_unpaid() == 0


def test_the_mail_and_the_event_have_one_correlation_id():
    old_order()
    unpaid.cancel_unpaid()
    mail, event = EmailNotification.objects.get(), OutboxEvent.objects.get()
    assert mail.correlation_id and event.metadata["correlationId"] == mail.correlation_id


def test_a_payment_that_comes_too_late_is_for_a_person():
    it = old_order()
    unpaid.cancel_unpaid()
    assert give(PAID, it) == "dead"


def test_one_that_cannot_be_cancelled_does_not_hold_up_the_others(monkeypatch):
    first, second = old_order(), old_order(number=1)
    cancel = changes.cancel

    def broken(seen, **values):
        if seen.order.id == first.id:
            raise ValueError("a broken template")
        return cancel(seen, **values)

    monkeypatch.setattr(changes, "cancel", broken)
    assert unpaid.cancel_unpaid() == 1
    assert [status(first), status(second)] == ["pending", "cancelled"]


def test_a_run_takes_the_oldest_and_the_next_run_goes_on(monkeypatch):
    monkeypatch.setattr(unpaid, "MOST", 2)
    orders = [old_order(age=(60 - number) * HOUR) for number in range(5)]
    assert [unpaid.cancel_unpaid() for _ in range(2)] == [2, 2]
    assert [status(order) for order in orders] == ["cancelled"] * 4 + ["pending"]
    assert [unpaid.cancel_unpaid() for _ in range(2)] == [1, 0]


def test_it_reads_none_of_the_younger_pending_orders():
    old_order()
    Order.objects.bulk_create(
        Order(user_id=order.id, email="a@example.com", total_amount=1)
        for order in [Order() for _ in range(2000)]
    )
    found = Order.objects.unpaid(before=read_database_time() - 48 * HOUR).order_by("created_at", "id")[
        : unpaid.MOST
    ]
    assert rows_visited(found) == 1
