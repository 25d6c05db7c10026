"""Copies and corrected addresses, and what else changes the same e-mails and orders."""

from __future__ import annotations

import pytest

from notifications import services
from notifications.delivery.process import current
from notifications.delivery.screening import screen
from notifications.delivery.sending import pinned_to
from notifications.models import EmailNotification
from orders.corrections import send_copy
from orders.models import Order
from outbox.delivery.rows.outcomes import Outcome, Verdict
from outbox.delivery.rows.settlements import Settlement
from outbox.models import Pause
from outbox.retention import rollover
from tests.api.conftest import Api, assert_problem, make_token
from tests.factories import make_mail, make_order
from tests.outbox.retention.months import Steps, fill, make_partition, states

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
WRONG, RIGHT = "alice@exampel.com", "alice@example.com"


def dead_letter() -> EmailNotification:
    return make_mail(status="dead_lettered", order_id=make_order(email=WRONG).id, recipient_email=WRONG)


def test_a_copy_waits_for_the_end_of_a_pause():
    Pause.objects.pause(parts=["delivery"], reason="", username="x")
    copy_id = send_copy(notification_id=dead_letter().id, recipient_email=RIGHT)
    assert EmailNotification.objects.claim(limit=5) == []
    Pause.objects.resume(parts=["delivery"], username="x")
    assert [mail.id for mail in EmailNotification.objects.claim(limit=5)] == [copy_id]


def test_a_resend_of_the_original_after_a_correction_goes_where_it_went_and_the_order_stays_corrected():
    mail = dead_letter()
    copy_id = send_copy(notification_id=mail.id, recipient_email=RIGHT, update_order=True)
    services.resend(ids=[mail.id])
    claimed = {row.id: row.recipient_email for row in EmailNotification.objects.claim(limit=5)}
    assert claimed == {mail.id: WRONG, copy_id: RIGHT}
    assert Order.objects.get(id=mail.order_id).email == RIGHT


def test_a_copy_of_an_email_whose_month_was_archived_is_404_and_changes_nothing(archive_folder):
    old = make_partition(EmailNotification, back=4)
    (id,) = fill(old, 1)
    rollover.rollover(report=Steps())
    assert states()[old.name] == "detached"
    body = {"recipient_email": RIGHT}
    api = Api(make_token())
    assert_problem(api.post(f"/api/v1/notifications/{id}/copies", body), 404, "not-found")
    assert not EmailNotification.objects.exists()


def test_a_copy_of_an_old_email_is_a_row_of_today_so_its_own_month_can_still_leave(archive_folder):
    old = make_partition(EmailNotification, back=4)
    order = make_order(email=WRONG)
    (id,) = fill(old, 1, order_id=order.id)
    copy_id = send_copy(notification_id=id, recipient_email=RIGHT)
    result = rollover.rollover(report=Steps())
    assert not result.held and states()[old.name] == "detached"
    assert list(EmailNotification.objects.values_list("id", "resend_of")) == [(copy_id, id)]


def test_a_copy_of_an_email_that_a_provider_may_have_is_neither_held_nor_pinned_to_it(settings):
    settings.EMAIL_PROVIDERS = ["resend", "sendgrid"]
    order = make_order(email=WRONG)
    mail = make_mail(order_id=order.id, recipient_email=WRONG)
    (row,) = EmailNotification.objects.claim(limit=1)
    lost = Outcome(Verdict.AMBIGUOUS, "resend", code="504", text="gateway")
    EmailNotification.objects.settle([Settlement(mail.id, lost, row.claim_token)])
    EmailNotification.objects.filter(id=mail.id).update(status="dead_lettered")
    copy_id = send_copy(notification_id=mail.id, recipient_email=RIGHT)
    (copy,) = EmailNotification.objects.claim(limit=5)
    assert (copy.id, copy.errors, pinned_to(copy)) == (copy_id, [], None)
    assert screen(current(), [copy]) == {}
