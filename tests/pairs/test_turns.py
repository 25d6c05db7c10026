"""The order of one order's e-mails, and what else changes them."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from notifications.changes import age
from notifications.changes.settle import take_back
from notifications.suppression_files import load_file
from runtime.audit import Actor
from tests.kit.events import SHOP, new_id, tell
from tests.kit.mails import claim_one, drained, due_now, make_mail, rendered_again, sandbox, settled, statuses
from tests.kit.months import any_times
from tests.kit.orders import (
    cancel_order,
    complete_order,
    confirm_order,
    correct_shipment,
    deliver_shipment,
    pay_order,
    place_order,
    ship_order,
)
from tests.kit.profiles import save_profile
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    Capacity,
    Claimed,
    Drain,
    EmailNotification,
    Order,
    Outcome,
    Verdict,
    accept,
    claim,
    drain,
    id_floor,
    pauses,
    read_database_time,
    recover,
    send_copy,
    set_aside,
)
from tests.kit.words import mail_services as services

__all__ = ["sandbox"]
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
rows = EmailNotification.objects
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]
    settings.NOTIFY_ON = ["order.paid", "order.confirmed", "order.cancelled", "order.completed"]


def bought(email: str = "ann@example.com") -> Order:
    return place_order(user_id=uuid.uuid4(), email=email, total_amount=1000)


def paid_and_confirmed() -> tuple[Order, EmailNotification, EmailNotification]:
    """Return an order, and its e-mails about the payment and the confirmation, both due."""
    order = bought()
    pay_order(order_id=order.id)
    confirm_order(order_id=order.id)
    first, second = rows.order_by("order_version")
    return order, first, second


def subjects(sandbox: Any) -> list[str]:
    return [mail.custom_args["event_type"] for mail in sandbox.mails]


def test_the_original_that_is_rendered_again_holds_up_none_and_its_copy_leaves_at_once(sandbox):
    _, first, second = paid_and_confirmed()
    rows.filter(id=first.id).update(status="failed", next_attempt_at=Now() + HOUR)
    rows.filter(id=second.id).update(next_attempt_at=Now() + HOUR)
    (copy,), refused = rendered_again(first)
    assert (copy.order_version, refused) == (None, [])
    assert drained() == {"discarded": 1, "sent": 1, "pending": 1}
    rows.filter(id=second.id).update(next_attempt_at=Now())
    drained()
    assert subjects(sandbox) == ["order.paid", "order.confirmed"]


def test_a_shop_copy_that_fails_holds_up_the_next_shop_copy_and_no_customers_email(sandbox):
    save_profile("", copy_to="office@example.com")
    sandbox.fail(kind="status", status=503, to="office@example.com", times=1)
    order = bought()
    pay_order(order_id=order.id)
    confirm_order(order_id=order.id)
    drained()
    sent = set(rows.filter(status="sent").values_list("event_type", "recipient_email"))
    assert sent == {("order.paid", "ann@example.com"), ("order.confirmed", "ann@example.com")}
    due_now()
    assert drained() == {"sent": 4}
    to_shop = [mail for mail in sandbox.mails if mail.to == "office@example.com"]
    assert [mail.custom_args["event_type"] for mail in to_shop] == ["order.paid", "order.confirmed"]


def test_a_corrected_copy_leaves_at_once_and_the_order_goes_on(sandbox):
    _, first, second = paid_and_confirmed()
    rows.filter(id=first.id).update(status="dead_lettered", ended_by="provider")
    rows.filter(id=second.id).update(next_attempt_at=Now() + HOUR)
    send_copy(notification_id=first.id, recipient_email="ann@example.org")
    assert drained() == {"dead_lettered": 1, "sent": 1, "pending": 1}


def test_after_a_pause_the_order_is_that_of_the_changes(sandbox):
    pauses.pause(parts=["delivery"], reason="a test", by=Actor("ann"))
    _, first, second = paid_and_confirmed()
    assert drained() == {"pending": 2}
    rows.filter(id=first.id).update(next_attempt_at=Now() + dt.timedelta(seconds=30))
    rows.filter(id=second.id).update(next_attempt_at=Now() - 3 * 24 * HOUR)
    pauses.resume(parts=["delivery"], by=Actor("ann"))
    drain.poll()
    assert statuses() == {"pending": 2}
    rows.filter(id=first.id).update(next_attempt_at=Now())
    assert drained() == {"sent": 2}
    assert subjects(sandbox) == ["order.paid", "order.confirmed"]


def test_one_that_a_restore_sets_aside_holds_up_none(sandbox):
    _, first, second = paid_and_confirmed()
    until = read_database_time()
    rows.filter(id=second.id).update(next_attempt_at=Now() + HOUR)
    set_aside(until=until, reason="it may have been sent", limit=10)
    rows.filter(id=second.id).update(next_attempt_at=Now())
    assert drained() == {"dead_lettered": 1, "sent": 1}
    assert subjects(sandbox) == ["order.confirmed"]
    first.refresh_from_db()
    assert first.status == "dead_lettered"


def test_those_without_an_address_leave_in_order_once_they_have_one_and_old_news_does_not(sandbox):
    id = new_id()
    for number, change in enumerate(("paid", "cancelled"), start=1):
        assert tell(change, id, number, email="") == "done"
    assert statuses() == {"dead_lettered": 2}
    assert tell("cancelled", id, 3, email="ann@example.com") == "done"
    assert drained() == {"discarded": 1, "sent": 2}
    assert subjects(sandbox) == ["order.cancelled", "order.cancelled"]
    assert rows.get(status="discarded").event_type == "order.paid"


def test_an_event_that_comes_after_a_later_one_sends_no_old_news(sandbox):
    id = new_id()
    tell("cancelled", id, 2)
    assert drained() == {"sent": 1}
    tell("paid", id, 1)
    assert drained() == {"sent": 1, "discarded": 1}
    other = new_id()
    tell("completed", other, 2)
    tell("paid", other, 1)  # a completion does not overtake a payment
    assert drained() == {"sent": 3, "discarded": 1}


@pytest.mark.parametrize("is_second_sent", [True, False])
def test_a_dead_letter_that_is_taken_back_goes_before_what_is_not_sent_yet(sandbox, is_second_sent):
    _, first, second = paid_and_confirmed()
    since = read_database_time()
    rows.filter(id=second.id).update(next_attempt_at=Now() + HOUR)
    settled(claim_one(), Verdict.PERMANENT, provider="sendgrid", code="550", text="no more today")
    if is_second_sent:
        rows.filter(id=second.id).update(next_attempt_at=Now())
        assert drained() == {"dead_lettered": 1, "sent": 1}
    take_back(provider="sendgrid", since=since, is_same=lambda error: "no more today" in error)
    due_now()
    assert drained() == {"sent": 2}
    wanted = ["order.paid", "order.confirmed"]
    assert subjects(sandbox) == (wanted[::-1] if is_second_sent else wanted)
    assert rows.get(id=first.id).status == "sent"


def test_a_killed_claim_holds_up_the_next_until_it_is_held_for_too_long():
    _, first, second = paid_and_confirmed()
    claim(limit=1)
    rows.filter(id=first.id).update(claimed_at=Now() - HOUR)
    recover(lease_seconds=60)
    first.refresh_from_db()
    assert first.status == "failed"
    assert drained() == {"failed": 1, "pending": 1}
    second.refresh_from_db()
    assert second.next_attempt_at > read_database_time()


def test_an_erasure_between_the_changes_sends_neither():
    order, first, _ = paid_and_confirmed()
    rows.filter(id=first.id).update(next_attempt_at=Now() + HOUR)
    assert drained() == {"pending": 2}
    with transaction.atomic():
        services.withdraw_emails(ids=rows.filter(order_id=order.id).values_list("id", flat=True))
    assert drained() == {"discarded": 2}


def test_a_cancellation_while_the_payments_email_is_held_waits_for_the_hold(sandbox):
    order = bought()
    pay_order(order_id=order.id)
    settled(claim_one(), Verdict.AMBIGUOUS, provider="sendgrid")
    cancel_order(order_id=order.id)
    assert drained() == {"failed": 1, "pending": 1}
    accept({rows.get(event_type="order.paid").id: Outcome(Verdict.ACCEPTED, "sendgrid", "m")})
    assert drained() == {"sent": 2}
    assert subjects(sandbox) == ["order.cancelled"]


def test_the_copy_of_a_later_email_does_not_wait_for_the_first(sandbox):
    _, first, second = paid_and_confirmed()
    rows.filter(id=first.id).update(next_attempt_at=Now() + HOUR)
    (copy,), _ = rendered_again(second)
    assert drained() == {"discarded": 1, "sent": 1, "pending": 1}
    assert rows.get(status="sent").id == copy.id


def test_after_a_pause_of_four_days_none_is_too_old_and_the_first_one_goes_first(sandbox):
    pauses.pause(parts=["delivery"], reason="", by=Actor("ann"))
    _, first, second = paid_and_confirmed()
    with any_times():
        rows.filter(id=first.id).update(created_at=Now() - 4 * DAY, next_attempt_at=Now() - 4 * DAY)
        rows.filter(id=second.id).update(created_at=Now() - 4 * DAY, next_attempt_at=Now() - 5 * DAY)
        pauses.resume(parts=["delivery"], by=Actor("ann"))
        changes, _ = age.sweep(after=age.START)
        assert not changes
        assert drained() == {"sent": 2}
    assert subjects(sandbox) == ["order.paid", "order.confirmed"]


def test_a_probe_whose_first_email_is_too_old_is_the_next_one_of_the_order():
    _, first, second = paid_and_confirmed()
    with any_times():
        rows.filter(id=first.id).update(created_at=Now() - 4 * DAY, next_attempt_at=Now() + HOUR)
        sent = []

        def send(email: Claimed) -> Outcome:
            sent.append((email.id, email.is_substitute))
            return Outcome(Verdict.ACCEPTED, "sendgrid", "m", is_probe=True)

        probes = iter([Capacity(1, is_untried_first=True, is_retry_allowed=False)] * 2)
        Drain(send=send, capacity=lambda: next(probes, Capacity(0, 5.0))).run(seconds=PATIENCE)
        assert statuses() == {"dead_lettered": 1, "sent": 1}
    assert sent == [(second.id, False)]


def test_a_list_of_bounced_addresses_that_is_loaded_meanwhile_stops_each_email_of_an_order(sandbox, tmp_path):
    order, _, second = paid_and_confirmed()
    rows.filter(id=second.id).update(next_attempt_at=Now() + HOUR)
    in_flight = claim_one()
    cancel_order(order_id=order.id)
    assert drained() == {"processing": 1, "pending": 2}  # the cancellation waits for the payment's
    path = tmp_path / "bounces.csv"
    path.write_text("email,status,reason\nANN@example.com,5.1.1,550 5.1.1 no such user\n")
    assert load_file(path, dry_run=False, by=Actor("x")).new == 1
    settled(in_flight, Verdict.TRANSIENT, provider="sendgrid", code="500")
    rows.update(next_attempt_at=Now())
    assert drained() == {"suppressed": 3}
    assert not sandbox.mails


def test_the_first_one_of_last_month_holds_up_the_next_of_this_month(sandbox):
    order, first, _ = paid_and_confirmed()
    first.delete()
    old = read_database_time().replace(day=1) - 2 * DAY
    first = make_mail(
        id=uuid.UUID(int=id_floor(old).int | 7 << 76 | 2 << 62),
        created_at=old,
        order_id=order.id,
        order_version=2,
        readdressed_at=Now(),  # which begins its age again
        next_attempt_at=Now() + HOUR,
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT tableoid) FROM email_notifications")
        assert cursor.fetchone() == (2,)
    assert drained() == {"pending": 2}
    rows.filter(id=first.id).update(next_attempt_at=Now())
    assert drained() == {"sent": 2}
    assert subjects(sandbox) == ["order.paid", "order.confirmed"]


def test_a_dead_letter_that_is_taken_back_after_a_cancellation_is_not_sent(sandbox):
    order, first, _ = paid_and_confirmed()
    rows.filter(id=first.id).update(
        status="dead_lettered", ended_by="provider", provider="sendgrid", updated_at=Now()
    )
    assert drained() == {"dead_lettered": 1, "sent": 1}
    cancel_order(order_id=order.id)
    assert drained() == {"dead_lettered": 1, "sent": 2}
    assert take_back(provider="sendgrid", since=read_database_time() - HOUR, is_same=lambda _: True)
    assert drained() == {"discarded": 1, "sent": 2}
    assert rows.get(id=first.id).last_error == "overtaken by order.cancelled"


def test_a_confirmation_waits_for_the_payment_whose_event_came_after_it(sandbox):
    id = new_id()
    assert tell("confirmed", id, 3) == "done"
    assert tell("paid", id, 2) == "done"
    rows.filter(event_type="order.paid").update(next_attempt_at=Now() + HOUR)
    assert drained() == {"pending": 2}
    rows.filter(event_type="order.paid").update(next_attempt_at=Now())
    assert drained() == {"sent": 2}
    assert subjects(sandbox) == ["order.paid", "order.confirmed"]


def test_the_later_of_two_that_get_an_address_together_waits_for_the_earlier_one(sandbox):
    id = new_id()
    for number, change in enumerate(("paid", "confirmed"), start=1):
        assert tell(change, id, number, email="") == "done"
    assert statuses() == {"dead_lettered": 2}
    assert tell("completed", id, 3, email="ann@example.com") == "done"
    assert statuses() == {"pending": 3}
    rows.filter(event_type="order.paid").update(next_attempt_at=Now() + HOUR)
    assert drained() == {"pending": 2, "discarded": 1}  # the completion overtakes the confirmation
    rows.filter(event_type="order.paid").update(next_attempt_at=Now())
    assert drained() == {"sent": 2, "discarded": 1}
    assert subjects(sandbox) == ["order.paid", "order.completed"]


def test_the_emails_of_parcels_wait_for_the_payments_and_neither_overtake_nor_are_overtaken(
    sandbox, settings
):
    settings.NOTIFY_ON = [*settings.NOTIFY_ON, "order.shipped", "order.delivered"]
    order, first, _ = paid_and_confirmed()
    parcels = [ship_order(order_id=order.id) for _ in range(2)]
    deliver_shipment(order_id=order.id, shipment_id=parcels[0].id)
    rows.filter(id=first.id).update(next_attempt_at=Now() + HOUR)
    assert drained() == {"pending": 5}
    rows.filter(id=first.id).update(next_attempt_at=Now())
    assert drained() == {"sent": 5}
    parcel = ["order.shipped", "order.shipped", "order.delivered"]
    assert subjects(sandbox) == ["order.paid", "order.confirmed", *parcel]


@pytest.mark.parametrize("end", [complete_order, cancel_order])
def test_a_parcel_that_left_is_told_though_the_order_ended_before_its_email_was_sent(sandbox, settings, end):
    settings.NOTIFY_ON = ["order.shipped", "order.completed", "order.cancelled"]
    order = bought()
    pay_order(order_id=order.id)
    ship_order(order_id=order.id)
    end(order_id=order.id)
    assert drained() == {"sent": 2}
    assert subjects(sandbox)[0] == "order.shipped"


def test_a_parcel_of_another_systems_order_waits_for_the_payment_that_came_after_it(sandbox, settings):
    settings.NOTIFY_ON = ["order.paid", "order.shipped"]
    id = new_id()
    assert tell("shipped", id, 3) == "done"
    assert tell("paid", id, 2) == "done"
    rows.filter(event_type="order.paid").update(next_attempt_at=Now() + HOUR)
    assert drained() == {"pending": 2}
    rows.filter(event_type="order.paid").update(next_attempt_at=Now())
    assert drained() == {"sent": 2}
    assert subjects(sandbox) == ["order.paid", "order.shipped"]


def test_the_corrected_number_of_a_parcel_waits_for_its_first_email(sandbox, settings):
    settings.NOTIFY_ON = ["order.shipped"]
    order = bought()
    pay_order(order_id=order.id)
    parcel = ship_order(order_id=order.id, tracking_number="1")
    correct_shipment(order_id=order.id, shipment_id=parcel.id, tracking_number="2", notify=True)
    first, second = rows.order_by("order_version")
    rows.filter(id=first.id).update(next_attempt_at=Now() + HOUR)
    assert drained() == {"pending": 2}
    rows.filter(id=first.id).update(next_attempt_at=Now())
    assert drained() == {"sent": 2}
    assert [mail.subject for mail in sandbox.mails] == [first.subject, second.subject]
