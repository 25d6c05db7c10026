"""Commands of other services, and what else changes the same orders and e-mails."""

from __future__ import annotations

import pytest

from runtime.audit import Actor
from tests.kit.events import order, status, tell
from tests.kit.inbound_commands import CANCEL, CLEAN_UP, COMPLETE, RESEND, give, reason
from tests.kit.jobs import job_after, logged, started
from tests.kit.mails import make_mail, statuses
from tests.kit.months import Steps, fill, make_partition, states
from tests.kit.orders import pay_order
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    claim,
    erase_person,
    pauses,
    rollover,
    send_copy,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def test_a_command_for_an_erased_person_moves_the_order_and_mails_nobody(archive_folder):
    placed = order()
    pay_order(order_id=placed.id)
    erase_person(email=placed.email, report=Steps(), force=True)
    assert give(COMPLETE, orderId=str(placed.id)) == "done"
    assert status(placed) == "completed"
    mail = EmailNotification.objects.get(event_type="order.completed")
    assert (mail.status, mail.last_error) == ("suppressed", "the recipient's data was erased")
    assert "a@example.com" not in str(DomainEvent.objects.values_list("payload", "metadata"))


def test_a_command_after_a_correction_mails_the_new_address_alone():
    placed = order()
    wrong = make_mail(status="dead_lettered", order_id=placed.id)
    pay_order(order_id=placed.id)
    send_copy(notification_id=wrong.id, recipient_email="right@example.com", update_order=True)
    assert give(COMPLETE, orderId=str(placed.id)) == "done"
    mail = EmailNotification.objects.get(event_type="order.completed")
    assert mail.recipient_email == "right@example.com"


@pytest.mark.parametrize("topic", [COMPLETE, CANCEL])
def test_a_command_does_not_move_an_order_that_another_system_owns(settings, topic):
    settings.ORDER_SOURCES = ["shop-a"]
    tell("placed", "A-1", 1)
    tell("paid", "A-1", 2)
    theirs = Order.objects.get()
    assert give(topic, orderId=str(theirs.id)) == "dead"
    assert "shop-a" in reason()
    assert status(theirs) == "paid"


def test_a_resend_command_resends_the_dead_letters_of_another_systems_orders_to_their_own_address(settings):
    settings.ORDER_SOURCES = ["shop-a"]
    tell("paid", "A-1", 1)
    tell("completed", "A-1", 2, email="new@example.com")
    EmailNotification.objects.update(status="dead_lettered", ended_by="provider", last_error="400 no")
    assert give(RESEND) == "done"
    mails = dict(EmailNotification.objects.values_list("event_type", "recipient_email"))
    assert mails == {"order.paid": "ann@example.com", "order.completed": "new@example.com"}
    assert statuses() == {"pending": 2}


def test_a_resend_command_during_a_pause_makes_rows_due_that_nobody_claims_before_its_end():
    make_mail(status="dead_lettered")
    pauses.pause(parts=["delivery"], reason="", by=Actor("x"))
    assert give(RESEND) == "done"
    assert statuses() == {"pending": 1}
    assert claim(limit=5) == []
    pauses.resume(parts=["delivery"], by=Actor("x"))
    assert len(claim(limit=5)) == 1


def test_a_resend_command_and_a_bulk_job_on_the_same_rows_make_each_due_once():
    first, second, third = (make_mail(status="dead_lettered") for _ in range(3))
    job = started()
    assert give(RESEND, notificationIds=[str(second.id)]) == "done"
    (claimed,) = claim(limit=1)
    assert claimed.id == second.id
    job = job_after(job)
    assert (job.state, job.done_count) == ("done", 2)
    assert logged().keys() == {str(first.id), str(second.id), str(third.id)}
    second.refresh_from_db()
    assert (second.status, second.claim_token) == ("processing", claimed.claim_token)


def test_a_command_to_clean_up_while_delivery_is_paused_leaves_the_month_of_a_waiting_mail(archive_folder):
    old = make_partition(EmailNotification, back=4)
    fill(old, 1, status="pending")
    pauses.pause(parts=["delivery"], reason="", by=Actor("x"))
    assert give(CLEAN_UP) == "done"
    result = rollover.rollover(report=Steps())
    assert [held.partition for held in result.held] == [old.name]
    assert states()[old.name] == "attached" and not InboundDeadLetter.objects.exists()
