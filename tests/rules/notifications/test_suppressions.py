"""An address that bounced or complained is not written to again, visibly, until a person lifts it."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db.models.functions import Now
from django.test import Client

from notifications.suppressions import suppressed_among
from tests.kit.mails import make_mail, statuses
from tests.kit.words import (
    ERASED_ADDRESS,
    EmailNotification,
    Heartbeat,
    Status,
    Suppression,
    SuppressionReason,
    resend,
    suppress,
)
from tests.kit.words import drain as delivery
from tests.rules.outbox.test_delivery import sandbox

__all__ = ["sandbox"]
pytestmark = pytest.mark.django_db(transaction=True)
COMPLAINT = Suppression.Reason.COMPLAINT


def test_a_suppressed_mail_is_not_sent_and_says_why(sandbox):
    suppress([SuppressionReason("ALICE@example.com ", COMPLAINT)])
    mail, other = make_mail(), make_mail(recipient_email="bob@example.com")
    delivery.drain_emails()
    rows = {row.id: row for row in EmailNotification.objects.all()}
    assert (rows[mail.id].status, rows[mail.id].retry_count) == (Status.SUPPRESSED, 0)
    assert rows[mail.id].last_error == "not sent: its owner complained"
    assert rows[other.id].status == Status.SENT and len(sandbox.mails) == 1


def test_it_is_resent_once_it_is_lifted_and_refused_before(sandbox):
    suppress([SuppressionReason("alice@example.com", COMPLAINT)])
    mail = make_mail()
    delivery.drain_emails()
    changes, (refusal,) = resend(ids=[mail.id])
    assert changes == [] and refusal.reason == "its address is suppressed: its owner complained"
    Suppression.objects.all().delete()
    changes, refusals = resend(ids=[mail.id])
    assert len(changes) == 1 and refusals == []
    delivery.drain_emails()
    assert statuses() == {"sent": 1}


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


class TestTheHold:
    """A send that may have been accepted waits for evidence, while that can come."""

    def doubtful(self, *, seconds_ago: float = 200) -> EmailNotification:
        at = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds_ago)
        error = {"at": at.isoformat(), "outcome": "ambiguous", "provider": "sendgrid", "code": "", "text": ""}
        past = Now() - dt.timedelta(seconds=1)
        return make_mail(status=Status.FAILED, retry_count=1, errors=[error], next_attempt_at=past)

    def endpoint(self, *, up_for: float | None) -> None:
        """Events have arrived before; the endpoint is up for so long, or down."""
        Heartbeat.objects.create(name="webhook:sendgrid", beat_at=Now() - dt.timedelta(days=1))
        if up_for is None:
            Heartbeat.objects.create(name="web", beat_at=Now() - dt.timedelta(seconds=60))
        else:
            Heartbeat.objects.create(name="web", since=Now() - dt.timedelta(seconds=up_for))

    def test_runs_out_when_the_endpoint_was_up_all_the_time(self, sandbox):
        self.endpoint(up_for=500)
        self.doubtful()
        delivery.drain_emails()
        assert statuses() == {"sent": 1}

    @pytest.mark.parametrize(("up_for", "waits"), [(None, 120), (20, 100)])
    def test_does_not_run_while_the_endpoint_was_down(self, sandbox, up_for, waits):
        self.endpoint(up_for=up_for)
        self.doubtful()
        delivery.drain_emails()
        row = EmailNotification.objects.get()
        assert (row.status, row.retry_count, len(row.errors)) == (Status.FAILED, 1, 1)
        assert (row.next_attempt_at - row.updated_at).total_seconds() == pytest.approx(waits, abs=2)
        assert sandbox.mails == []

    def test_is_only_a_delay_where_no_webhooks_ever_arrive(self, sandbox):
        self.doubtful()
        delivery.drain_emails()
        assert statuses() == {"sent": 1}

    def test_ends_after_a_day_whatever_happens(self, sandbox):
        self.endpoint(up_for=None)
        self.doubtful(seconds_ago=86_500)
        delivery.drain_emails()
        assert statuses() == {"sent": 1}

    def test_holds_nothing_else_back(self, sandbox):
        self.endpoint(up_for=None)
        self.doubtful()
        make_mail()
        delivery.drain_emails()
        assert statuses() == {"failed": 1, "sent": 1}


def test_a_gap_in_the_endpoints_pulse_starts_its_time_anew():
    Heartbeat.beat(name="web")
    Heartbeat.objects.update(since=Now() - dt.timedelta(seconds=100))
    Heartbeat.beat(name="web")
    assert Heartbeat.read_unbroken(name="web") == pytest.approx(100, abs=5)
    Heartbeat.objects.update(beat_at=Now() - dt.timedelta(seconds=60))
    assert Heartbeat.read_unbroken(name="web") is None
    Heartbeat.beat(name="web")
    assert Heartbeat.read_unbroken(name="web") == pytest.approx(0, abs=5)


class TestAdmin:
    LIST = "/admin/notifications/suppression/"

    def client(self, *permissions: str) -> Client:
        user = User.objects.create_user("staff", password="x", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    def test_lists_finds_by_address_adds_and_lifts(self):
        client = self.client("view_suppression", "add_suppression", "lift_suppression")
        client.post(self.LIST + "add/", {"address": "Alice@Example.com", "reason": "manual"})
        row = Suppression.objects.get()
        assert row.reason == "manual"
        assert b"1 suppression" in client.get(self.LIST, {"q": "alice@example.COM"}).content
        assert b"0 suppressions" in client.get(self.LIST, {"q": "bob@example.com"}).content
        client.post(self.LIST, {"action": "lift", "_selected_action": [str(row.id)]})
        assert not Suppression.objects.exists()
        assert LogEntry.objects.count() == 2
        assert "alice" not in str(list(LogEntry.objects.values())).lower()

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
        assert b"its owner complained" in page.content
