"""An address that bounced or complained is not written to again, visibly, until a person lifts it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now
from django.test import Client

from notifications.admin import suppressions as admin
from notifications.changes.turns import find_overtaken
from notifications.content.copies import copy_email
from notifications.suppressions import suppressed_among, suppression_of
from tests.kit.acts import acts
from tests.kit.mails import drained, make_mail, sandbox
from tests.kit.people import client_of, make_user, staff_client
from tests.kit.providers import provider
from tests.kit.races import together
from tests.kit.words import (
    ERASED_ADDRESS,
    EmailNotification,
    Status,
    Suppression,
    SuppressionReason,
    drain,
    give_up,
    resend,
    suppress,
)

__all__ = ["provider", "sandbox"]
pytestmark = pytest.mark.django_db(transaction=True)
COMPLAINT = Suppression.Reason.COMPLAINT


def test_a_suppressed_mail_is_not_sent_and_says_why(sandbox):
    suppress([SuppressionReason("ALICE@example.com ", COMPLAINT)])
    mail, other = make_mail(), make_mail(recipient_email="bob@example.com")
    drained()
    rows = {row.id: row for row in EmailNotification.objects.all()}
    assert (rows[mail.id].status, rows[mail.id].retry_count) == (Status.SUPPRESSED, 0)
    assert rows[mail.id].last_error == "not sent: its owner complained"
    assert rows[other.id].status == Status.SENT and len(sandbox.mails) == 1


def test_an_address_that_postmark_refuses_as_inactive_is_suppressed(sandbox, provider, settings):
    settings.EMAIL_PROVIDERS = ["postmark"]
    drain.reset()
    provider.fail(kind="status", status=422, message="406 You tried to send to an inactive recipient.")
    mail = make_mail()
    assert drained() == {"dead_lettered": 1}
    row = Suppression.objects.get()
    assert (row.reason, row.provider, row.notification_id) == ("hard_bounce", "postmark", mail.id)
    make_mail()
    assert drained() == {"dead_lettered": 1, "suppressed": 1}


def test_it_is_resent_once_it_is_lifted_and_refused_before(sandbox):
    suppress([SuppressionReason("alice@example.com", COMPLAINT)])
    mail = make_mail()
    drained()
    changes, (refusal,) = resend(ids=[mail.id])
    assert changes == [] and refusal.reason == "its address is suppressed: its owner complained"
    Suppression.objects.all().delete()
    changes, refusals = resend(ids=[mail.id])
    assert len(changes) == 1 and refusals == []
    assert drained() == {"sent": 1}


def test_one_that_is_lifted_resent_and_then_given_up_can_be_resent_and_copied(sandbox):
    suppress([SuppressionReason("alice@example.com", COMPLAINT)])
    mail = make_mail(order_version=2, event_type="order.cancelled")
    earlier = make_mail(
        order_id=mail.order_id, order_version=1, next_attempt_at=Now() + dt.timedelta(hours=1)
    )
    assert drained() == {"suppressed": 1, "pending": 1}
    Suppression.objects.all().delete()
    for change in (resend, give_up):
        changes, refusals = change(ids=[mail.id])
        assert (len(changes), refusals) == (1, [])
    assert find_overtaken([earlier]) == {earlier.id: "overtaken by order.cancelled"}
    with transaction.atomic():
        copy_email(id=mail.id)
    changes, refusals = resend(ids=[mail.id])
    assert (len(changes), refusals) == (1, [])


def test_an_erased_persons_mail_is_never_resent():
    mail = make_mail(status=Status.SUPPRESSED, recipient_email=ERASED_ADDRESS)
    changes, (refusal,) = resend(ids=[mail.id])
    assert changes == [] and "erased" in refusal.reason


def test_suppressing_twice_keeps_the_first_reason():
    suppress([SuppressionReason("a@example.com", Suppression.Reason.HARD_BOUNCE)])
    suppress([SuppressionReason("A@EXAMPLE.COM", COMPLAINT), SuppressionReason("b@example.com", COMPLAINT)])
    assert sorted(Suppression.objects.values_list("reason", flat=True)) == ["complaint", "hard_bounce"]


def test_no_address_is_stored():
    suppress([SuppressionReason("alice@example.com", COMPLAINT)])
    assert "alice" not in str(Suppression.objects.values().get())


def test_a_batch_is_asked_about_in_one_statement(django_assert_num_queries):
    mails = [make_mail(recipient_email=f"{n}@example.com") for n in range(20)]
    suppress([SuppressionReason("7@example.com", COMPLAINT)])
    with django_assert_num_queries(1):
        assert list(suppressed_among(mails)) == [mails[7].id]


class TestAdmin:
    LIST = "/admin/notifications/suppression/"

    def client(self, *permissions: str) -> Client:
        return staff_client(*permissions)

    def lifting(self, row: Suppression, **more: str) -> dict[str, Any]:
        chosen = {"action": "lift", "_selected_action": [str(row.id)]}
        return chosen | {"confirmed": "yes", "reason": "ok"} | more

    def test_after_a_complaint_an_operator_lifts_it_and_the_page_says_so(self):
        suppress([SuppressionReason("a@example.com", COMPLAINT, "postmark")])
        row = Suppression.objects.get()
        support = client_of(make_user("sue", group="support"))
        page = support.post(self.LIST, self.lifting(row), follow=True).content.decode()
        assert "1 after a complaint: left alone." in page and "The group operator has it." in page
        assert Suppression.objects.exists()
        operator = client_of(make_user("ole", group="operator"))
        question = operator.post(self.LIST, self.lifting(row) | {"reason": ""}).content.decode()
        assert "postmark keeps a list of its own" in question and "Postmark&#x27;s support" in question
        operator.post(self.LIST, self.lifting(row))
        assert not Suppression.objects.exists()

    def test_lists_finds_by_address_adds_and_lifts(self):
        client = self.client("view_suppression", "add_suppression", "lift_suppression")
        client.post(self.LIST + "add/", {"address": "Alice@Example.com", "reason": "manual"})
        row = Suppression.objects.get()
        assert row.reason == "manual"
        assert b"1 suppression" in client.get(self.LIST, {"q": "alice@example.COM"}).content
        assert b"0 suppressions" in client.get(self.LIST, {"q": "bob@example.com"}).content
        for reason, left in (("", True), ("alice@example.com asked", True), ("she asked by phone", False)):
            client.post(self.LIST, self.lifting(row, reason=reason))
            assert Suppression.objects.exists() is left
        lifted = acts().order_by("id").last()
        assert lifted is not None
        assert (lifted.act, lifted.reason) == ("Lifted (manual).", "she asked by phone")
        assert acts().count() == 2
        assert "alice" not in str(list(acts().values())).lower()

    @pytest.mark.parametrize(("provider", "named"), [("postmark", True), ("", False)])
    def test_lifting_says_that_the_provider_keeps_a_list_of_its_own(self, provider, named):
        suppress([SuppressionReason("a@example.com", Suppression.Reason.HARD_BOUNCE, provider)])
        client = self.client("view_suppression", "lift_suppression")
        row = Suppression.objects.get()
        page = client.post(self.LIST, self.lifting(row), follow=True)
        said = "postmark keeps a list of its own"
        assert (said in page.content.decode()) is named and "1 lifted." in page.content.decode()

    def test_an_address_that_a_bounce_suppresses_meanwhile_is_an_error_of_the_form(self, monkeypatch):
        seen = []

        def bounce_after(address: str) -> Suppression | None:
            suppression = suppression_of(address)
            if not seen:
                bounce = SuppressionReason(address, Suppression.Reason.HARD_BOUNCE)
                together(1, lambda _: suppress([bounce]))
            seen.append(suppression)
            return suppression

        monkeypatch.setattr(admin, "suppression_of", bounce_after)
        client = self.client("view_suppression", "add_suppression")
        answer = client.post(self.LIST + "add/", {"address": "alice@example.com", "reason": "manual"})
        assert (answer.status_code, len(seen)) == (200, 2) and seen[0] is None
        assert b"This address is suppressed already." in answer.content
        assert Suppression.objects.get().reason == "hard_bounce" and not acts().exists()

    def test_lifting_needs_its_own_permission(self):
        suppress([SuppressionReason("a@example.com", COMPLAINT)])
        client = self.client("view_suppression", "add_suppression")
        client.post(self.LIST, {"action": "lift", "_selected_action": [str(Suppression.objects.get().id)]})
        assert Suppression.objects.count() == 1

    def test_a_mails_page_shows_that_its_address_is_suppressed(self):
        suppress([SuppressionReason("alice@example.com", COMPLAINT)])
        mail = make_mail(status=Status.SUPPRESSED)
        page = self.client("view_emailnotification").get(
            f"/admin/notifications/emailnotification/{mail.id}/change/"
        )
        assert b"why, and who can lift it" in page.content
