"""Copies and corrected addresses, and what else changes the same e-mails and orders."""

from __future__ import annotations

import pytest

from notifications.content.copies import NotCopied
from runtime.audit import Actor
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.mails import make_mail
from tests.kit.months import Steps, fill, make_partition, states
from tests.kit.orders import make_order
from tests.kit.webhooks import event, post
from tests.kit.words import (
    EmailNotification,
    Order,
    Outcome,
    Verdict,
    claim,
    drain,
    pauses,
    rollover,
    send_copy,
    settle,
)
from tests.kit.words import mail_services as services

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
WRONG, RIGHT = "alice@exampel.com", "alice@example.com"


def dead_letter() -> EmailNotification:
    return make_mail(status="dead_lettered", order_id=make_order(email=WRONG).id, recipient_email=WRONG)


def test_a_copy_waits_for_the_end_of_a_pause():
    pauses.pause(parts=["delivery"], reason="", by=Actor("x"))
    copy_id = send_copy(notification_id=dead_letter().id, recipient_email=RIGHT)
    assert claim(limit=5) == []
    pauses.resume(parts=["delivery"], by=Actor("x"))
    assert [mail.id for mail in claim(limit=5)] == [copy_id]


def test_a_resend_of_the_original_after_a_correction_goes_where_it_went_and_the_order_stays_corrected():
    mail = dead_letter()
    copy_id = send_copy(notification_id=mail.id, recipient_email=RIGHT, update_order=True)
    services.resend(ids=[mail.id])
    claimed = {row.id: row.recipient_email for row in claim(limit=5)}
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


def test_a_copy_of_an_email_that_a_provider_may_have_is_not_held(settings):
    settings.EMAIL_PROVIDERS = ["resend", "sendgrid"]
    order = make_order(email=WRONG)
    mail = make_mail(order_id=order.id, recipient_email=WRONG)
    (row,) = claim(limit=1)
    lost = Outcome(Verdict.AMBIGUOUS, "resend", code="504", text="gateway")
    settle([(row, lost)])
    EmailNotification.objects.filter(id=mail.id).update(status="dead_lettered", ended_by="provider")
    copy_id = send_copy(notification_id=mail.id, recipient_email=RIGHT)
    (copy,) = claim(limit=5)
    assert (copy.id, copy.errors) == (copy_id, [])
    assert drain.current().screen([copy]) == {}


class TestTheWebhookOfTheOriginal:
    """It proves or judges the original alone. Both have the same order, event and content, but not one id."""

    @pytest.fixture(autouse=True)
    def _unsigned(self, settings):
        settings.WEBHOOKS_UNSIGNED, settings.EMAIL_PROVIDERS = True, ["sendgrid"]

    def tell(self, kind: str, mail: EmailNotification, **fields: str) -> None:
        assert post([event(mail, kind, sg_message_id="first.x", **fields)]).status_code == 200

    def copied(self, to: str = "") -> tuple[EmailNotification, EmailNotification]:
        mail = dead_letter()
        EmailNotification.objects.filter(id=mail.id).update(provider="sendgrid")
        copy_id = send_copy(notification_id=mail.id, recipient_email=to)
        return mail, EmailNotification.objects.get(id=copy_id)

    def test_that_proves_its_acceptance_makes_it_sent_and_the_copy_is_still_sent(self):
        mail, copy = self.copied(RIGHT)
        self.tell("delivered", mail)
        mail.refresh_from_db()
        assert mail.status == "sent" and mail.delivered_at
        assert copy.updated_at == EmailNotification.objects.get(id=copy.id).updated_at
        assert [row.id for row in claim(limit=5)] == [copy.id]

    def test_that_reports_a_hard_bounce_stops_a_copy_to_the_same_address_but_no_other(self):
        mail, same = self.copied()
        other_id = send_copy(notification_id=mail.id, recipient_email=RIGHT)
        self.tell("bounce", mail, type="bounce", status="5.1.1")
        claimed = claim(limit=5)
        assert {row.id for row in claimed} == {same.id, other_id}
        outcomes = drain.current().screen(claimed)
        assert {id: outcome.verdict for id, outcome in outcomes.items()} == {same.id: Verdict.SUPPRESSED}
        with pytest.raises(NotCopied):
            send_copy(notification_id=mail.id)

    def test_that_comes_while_the_copy_is_being_sent_leaves_its_claim(self):
        mail, copy = self.copied(RIGHT)
        (claimed,) = claim(limit=5)
        self.tell("delivered", mail)
        accepted = (claimed, Outcome(Verdict.ACCEPTED, "sendgrid", "second"))
        (change,) = settle([accepted])
        assert (change.id, change.status) == (copy.id, "sent")
        ids = EmailNotification.objects.values_list("status", "provider_message_id")
        assert sorted(ids) == [("sent", "first"), ("sent", "second")]
