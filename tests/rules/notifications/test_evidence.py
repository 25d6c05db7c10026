"""About which e-mail a provider's event is, and whether that provider has a say in it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from notifications.changes.evidence import count_unmatched
from operations.status import read_status
from outbox.admin import provider_lines
from tests.kit.mails import claim_one, make_mail
from tests.kit.plans import plan_of, rows_without_index, statements
from tests.kit.restored import restore_to_now
from tests.kit.words import (
    REGISTRY,
    EmailNotification,
    Pause,
    Status,
    Suppression,
    TrafficSum,
    address_hash,
    declarations,
    minutes,
    new_id,
    read_database_time,
    recover,
)
from tests.rules.notifications.evidence import TELLERS, tell
from tests.rules.notifications.evidence import tellers as tellers

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("tellers")]
#: Every provider's e-mails, with the events of every other provider.
PAIRS = [(had, other) for had in declarations() for other in TELLERS if other != had]
ALICE = "alice@example.com"


def entry(provider: str, outcome: str = "transient") -> dict[str, Any]:
    at = dt.datetime.now(dt.UTC).isoformat()
    return {"at": at, "provider": provider, "outcome": outcome, "code": "500", "text": "x"}


def fresh(mail: EmailNotification) -> EmailNotification:
    return EmailNotification.objects.get(id=mail.id)


def suppressed() -> list[tuple[str, str, str]]:
    return list(Suppression.objects.values_list("address_hash", "reason", "provider"))


def unmatched(provider: str) -> int:
    """Return the number that *Providers* and `status` show."""
    return count_unmatched().get(provider, 0)


class TestOfAnotherProvider:
    @pytest.mark.parametrize(("had", "other"), [pair for pair in PAIRS if pair[0] in TELLERS])
    @pytest.mark.parametrize("kind", ["delivered", "bounce", "complaint"])
    def test_changes_nothing(self, had, other, kind):
        mails = [
            make_mail(status=Status.SENT, provider=had, provider_message_id="m-1"),
            make_mail(status=Status.FAILED, provider=had, errors=[entry(had, "ambiguous")]),
            make_mail(status=Status.DEAD_LETTERED, provider=had, errors=[entry(had, "permanent")]),
        ]
        before = list(EmailNotification.objects.order_by("id").values())
        for mail in mails:
            assert tell(other, kind, mail=mail) == 200
            assert tell(other, kind, header_of=mail) == 200
        assert tell(other, kind, accepted_as="m-1") == 200
        assert list(EmailNotification.objects.order_by("id").values()) == before
        assert not suppressed()
        assert unmatched(other) == 7

    @pytest.mark.parametrize("other", TELLERS)
    @pytest.mark.parametrize("status", [Status.PENDING, Status.SUPPRESSED, Status.DISCARDED])
    def test_is_that_of_every_provider_before_the_first_attempt(self, other, status):
        mail = make_mail(status=status)
        for kind in ("delivered", "bounce", "complaint"):
            assert tell(other, kind, mail=mail) == 200
        assert fresh(mail).status == status and not suppressed()

    @pytest.mark.parametrize(("had", "other"), [pair for pair in PAIRS if pair[0] in TELLERS])
    def test_does_not_hide_that_of_a_provider_that_was_asked_before(self, had, other):
        mail = make_mail(status=Status.SENT, provider=other, errors=[entry(had)])
        assert tell(had, "bounce", mail=mail) == 200
        assert fresh(mail).bounced_at
        assert suppressed() == [(address_hash(ALICE), "hard_bounce", had)]


class TestOfARelay:
    """A mail server may be a provider's relay, and then the provider's webhooks report its e-mails."""

    @pytest.mark.parametrize("teller", TELLERS)
    def test_proves_an_acceptance_that_the_server_did_not_answer(self, teller):
        mail = make_mail(status=Status.FAILED, provider="smtp", errors=[entry("smtp", "ambiguous")])
        assert tell(teller, "delivered", mail=mail) == 200
        assert (fresh(mail).status, fresh(mail).provider) == ("sent", teller)

    @pytest.mark.parametrize("teller", TELLERS)
    def test_reports_the_bounce_of_an_e_mail_that_the_server_took(self, teller):
        mail = make_mail(status=Status.SENT, provider="smtp", provider_message_id="m-1")
        assert tell(teller, "bounce", mail=mail) == 200
        assert fresh(mail).bounced_at and suppressed() == [(address_hash(ALICE), "hard_bounce", teller)]


class TestOfAnyProvider:
    """The process that knew which provider has the e-mail was killed between acceptance and record."""

    @pytest.mark.parametrize("teller", TELLERS)
    @pytest.mark.parametrize("failed_at", [None, *declarations()])
    def test_counts_while_the_claim_of_the_killed_process_lasts(self, teller, failed_at):
        errors = [entry(failed_at)] if failed_at else []
        mail = make_mail(provider=failed_at or "", errors=errors)
        claim_one()  # and then kill -9
        assert tell(teller, "delivered", mail=mail) == 200
        row = fresh(mail)
        assert (row.status, row.provider) == ("sent", teller) and row.delivered_at

    @pytest.mark.parametrize("teller", TELLERS)
    @pytest.mark.parametrize("failed_at", [None, *declarations()])
    def test_counts_after_the_claim_of_the_killed_process_expired(self, teller, failed_at):
        mail = make_mail(provider=failed_at or "", errors=[entry(failed_at)] if failed_at else [])
        claim_one()
        EmailNotification.objects.update(claimed_at=F("claimed_at") - dt.timedelta(hours=1))
        recover(lease_seconds=300)
        assert fresh(mail).errors[-1]["code"] == "lease expired"
        assert tell(teller, "delivered", mail=mail) == 200
        assert (fresh(mail).status, fresh(mail).provider) == ("sent", teller)

    @pytest.mark.parametrize(("had", "teller"), PAIRS)
    def test_counts_also_after_a_second_provider_accepted_it_again(self, had, teller):
        errors = [entry("", "ambiguous")]
        mail = make_mail(status=Status.SENT, provider=had, errors=errors)
        assert tell(teller, "bounce", mail=mail) == 200
        assert fresh(mail).bounced_at and suppressed() == [(address_hash(ALICE), "hard_bounce", teller)]

    @pytest.mark.parametrize("teller", TELLERS)
    def test_counts_after_a_restore_until_the_delivery_resumes(self, teller):
        restore_to_now()
        mail, later = make_mail(), make_mail()
        assert tell(teller, "delivered", mail=mail) == 200
        assert (fresh(mail).status, fresh(mail).provider) == ("sent", teller)
        Pause.objects.all().delete()
        assert tell(teller, "delivered", mail=later) == 200
        assert fresh(later).status == "pending"


class TestWithoutOurMetadata:
    @pytest.mark.parametrize("teller", TELLERS)
    def test_finds_the_email_by_the_providers_id(self, teller):
        stored = "<m-1@mg.example>" if teller == "mailgun" else "m-1"
        mail = make_mail(status=Status.SENT, provider=teller, provider_message_id=stored)
        others = [name for name in declarations() if name != teller]
        for other in others:
            make_mail(status=Status.SENT, provider=other, provider_message_id=stored)
        assert tell(teller, "bounce", accepted_as=stored, recipient="old@example.com") == 200
        assert fresh(mail).bounced_at
        assert EmailNotification.objects.filter(bounced_at=None).count() == len(others)
        # The row's address, not the posted one, which a forwarding may have changed.
        assert suppressed() == [(address_hash(ALICE), "hard_bounce", teller)]

    @pytest.mark.parametrize("teller", ["sendgrid", "mailgun", "resend", "ses"])  # Postmark does not tell it
    def test_finds_the_email_by_its_message_id(self, teller):
        mail = make_mail(status=Status.SENT, provider=teller, from_email="Shop <orders@shop.example>")
        assert tell(teller, "complaint", header_of=mail) == 200
        assert fresh(mail).complained_at
        assert suppressed() == [(address_hash(ALICE), "complaint", teller)]

    @pytest.mark.parametrize("teller", TELLERS)
    def test_and_with_null_for_it_and_for_the_time_is_taken_too(self, teller):
        mail = make_mail(status=Status.SENT, provider=teller, provider_message_id="m-1")
        if teller == "mailgun":
            EmailNotification.objects.update(provider_message_id="<m-1>")

        def nothing(event: dict[str, Any]) -> None:
            for name in ("timestamp", "BouncedAt", "created_at", "Metadata", "user-variables"):
                event[name] = None
            if teller == "resend":
                event["data"]["tags"] = event["data"]["headers"] = None
            if teller == "ses":
                event["mail"]["headers"] = event["mail"]["tags"] = None

        assert tell(teller, "bounce", accepted_as="m-1", edit=nothing) == 200
        at = fresh(mail).bounced_at
        assert at and abs((dt.datetime.now(dt.UTC) - at).total_seconds()) < 60

    def test_and_with_an_id_of_two_emails_matches_none(self):
        for _ in range(2):
            make_mail(status=Status.SENT, provider="sendgrid", provider_message_id="m-1")
        assert tell("sendgrid", "complaint", accepted_as="m-1") == 200
        assert not EmailNotification.objects.filter(complained_at__isnull=False).exists() and not suppressed()

    @pytest.mark.parametrize("teller", TELLERS)
    @pytest.mark.parametrize("text", ["\x00", "\ud800", "m" * 3000, "' OR 1=1"])
    def test_and_with_odd_texts_is_no_500(self, teller, text):
        assert tell(teller, "bounce", accepted_as=text, recipient=f"a{text}@example.com") in (200, 400)

    def test_takes_one_more_statement(self, django_assert_num_queries):
        mail = make_mail(status=Status.SENT, provider="sendgrid", provider_message_id="m-1")
        tell("sendgrid", "delivered", accepted_as="m-0")  # writes the heartbeat of this process
        with statements(at_most=2) as sql:
            assert tell("sendgrid", "delivered", accepted_as="m-1") == 200
        assert fresh(mail).delivered_at and "provider_message_id = ANY" in sql[0]


class TestBouncesThatLie:
    """They say "bounce", but the address may take the next e-mail."""

    @pytest.mark.parametrize(
        "told",
        [
            {"reason": "452 4.2.2 mailbox full", "status": "4.2.2"},
            {
                "reason": "452 4.2.2 The email account that you tried to reach is over quota",
                "status": "5.0.0",
            },
            {"reason": "552 5.2.2 mailbox full", "status": "5.2.2"},
            {"reason": "552 mailbox full", "status": "5.0.0"},
            {"reason": "554 5.7.1 blocked using a list", "status": "5.7.1"},
            {"reason": "550 5.4.4 no route", "status": "5.4.4"},
            {"reason": "550 bad reputation", "status": "5.0.0", "bounce_classification": "Reputation"},
            {"reason": "550 spam", "status": "5.1.1", "bounce_classification": "Content"},
            {"reason": "550 slow down", "bounce_classification": "Frequency or Volume Too High"},
            {"reason": "unable to get mx info: no such host", "bounce_classification": "Technical Failure"},
        ],
        ids=lambda told: told["reason"],
    )
    def test_of_sendgrid_suppress_nothing(self, told):
        mail = make_mail(status=Status.SENT, provider="sendgrid")

        def lie(event: dict[str, Any]) -> None:
            event["bounce_classification"] = "Mailbox Unavailable"
            del event["status"]
            event.update(told)

        assert tell("sendgrid", "bounce", mail=mail, edit=lie) == 200
        assert fresh(mail).bounced_at and not suppressed()
        assert tell("sendgrid", "bounce", edit=lie) == 200  # nor if it matches no e-mail
        assert not suppressed()

    @pytest.mark.parametrize(
        "told",
        [
            {"status": "5.1.1", "reason": "550 5.1.1 no such user at 5.4.3.2"},
            {"status": "5.2.1", "reason": "550 5.2.1 the account is disabled"},
            {"status": "5.0.0", "reason": "550 user unknown", "bounce_classification": "Unclassified"},
            {"status": "5.4.1", "reason": "550 5.4.1 denied", "bounce_classification": "Invalid Address"},
            {"status": None, "reason": None, "bounce_classification": None},
        ],
        ids=lambda told: str(told["reason"]),
    )
    def test_of_sendgrid_are_not_those_about_the_address(self, told):
        mail = make_mail(status=Status.SENT, provider="sendgrid")

        def change(event: dict[str, Any]) -> None:
            event["bounce_classification"] = "Mailbox Unavailable"
            event.update(told)

        assert tell("sendgrid", "bounce", mail=mail, edit=change) == 200
        assert suppressed() == [(address_hash(ALICE), "hard_bounce", "sendgrid")]

    @pytest.mark.parametrize(
        ("answer", "reasons"),
        [
            ({"bounce-type": "soft", "code": 550}, []),
            ({"bounce-type": "hard", "code": 552, "enhanced-code": "5.2.2"}, []),
            ({"code": 550, "message": "5.7.1 blocked"}, []),
            ({"bounce-type": "hard", "code": 550, "enhanced-code": "5.1.1"}, ["hard_bounce"]),
            ({"code": 550}, ["hard_bounce"]),
            (None, ["hard_bounce"]),
        ],
    )
    def test_of_mailgun_suppress_nothing(self, answer, reasons):
        mail = make_mail(status=Status.SENT, provider="mailgun")

        def change(event: dict[str, Any]) -> None:
            event["delivery-status"] = answer

        assert tell("mailgun", "bounce", mail=mail, edit=change) == 200
        assert fresh(mail).bounced_at
        assert list(Suppression.objects.values_list("reason", flat=True)) == reasons


class TestThatMatchesNothing:
    def accepted(self, provider: str, **fields: Any) -> EmailNotification:
        return make_mail(**{"status": Status.SENT, "provider": provider} | fields)

    @pytest.mark.parametrize("teller", TELLERS)
    def test_suppresses_the_address_of_a_hard_bounce_to_which_that_provider_sent(self, teller):
        self.accepted(teller, recipient_email="Alice@Example.com")
        assert tell(teller, "bounce", accepted_as="unheard-of") == 200
        assert suppressed() == [(address_hash(ALICE), "hard_bounce", teller)]
        assert Suppression.objects.get().notification_id is None

    @pytest.mark.parametrize(("had", "other"), PAIRS)
    def test_suppresses_no_address_to_which_another_provider_sent(self, had, other):
        self.accepted(had)
        assert tell(other, "bounce") == 200
        assert not suppressed()

    @pytest.mark.parametrize("teller", TELLERS)
    @pytest.mark.parametrize(
        "metadata", [{"campaign": "spring"}, {"notification_id": "x"}, {"notification_id": str(new_id())}]
    )
    def test_suppresses_no_address_if_it_has_the_metadata_of_another_sender(self, teller, metadata):
        self.accepted(teller)
        assert tell(teller, "bounce", metadata=metadata) == 200
        assert not suppressed()

    def test_with_a_tag_of_another_sender_at_ses_suppresses_nothing(self):
        self.accepted("ses")

        def tag(event: dict[str, Any]) -> None:
            event["mail"]["tags"]["campaign"] = ["spring"]

        assert tell("ses", "bounce", edit=tag) == 200
        assert not suppressed()

    @pytest.mark.parametrize("teller", TELLERS)
    @pytest.mark.parametrize("kind", ["complaint", "delivered"])
    def test_suppresses_only_after_a_bounce(self, teller, kind):
        self.accepted(teller)
        assert tell(teller, kind, accepted_as="unheard-of") == 200
        assert not suppressed()

    @pytest.mark.parametrize(("days", "reasons"), [(29, ["hard_bounce"]), (31, [])])
    def test_suppresses_within_thirty_days(self, days, reasons):
        self.accepted("sendgrid", sent_at=Now() - dt.timedelta(days=days))
        assert tell("sendgrid", "bounce") == 200
        assert list(Suppression.objects.values_list("reason", flat=True)) == reasons

    def test_suppresses_nothing_without_a_key(self, settings):
        settings.SENDGRID_WEBHOOK_VERIFICATION_KEY, settings.WEBHOOKS_UNSIGNED = "", True
        self.accepted("sendgrid")
        assert tell("sendgrid", "bounce") == 200
        assert not suppressed()

    @pytest.mark.parametrize("status", [Status.PENDING, Status.FAILED, Status.DEAD_LETTERED])
    def test_suppresses_nothing_before_an_acceptance(self, status):
        make_mail(status=status, provider="sendgrid")
        assert tell("sendgrid", "bounce") == 200
        assert not suppressed()

    def test_is_counted_by_provider(self, django_capture_on_commit_callbacks):
        def counted() -> float:
            labels = {"provider": "postmark"}
            return REGISTRY.get_sample_value("orderpost_webhook_events_unmatched_total", labels) or 0.0

        before = counted()
        with django_capture_on_commit_callbacks(execute=True):
            for _ in range(3):
                assert tell("postmark", "complaint", accepted_as="newsletter") == 200
            assert tell("mailgun", "delivered") == 200
        assert counted() == before + 3
        assert (unmatched("postmark"), unmatched("mailgun"), unmatched("ses")) == (3, 1, 0)
        told = {provider["provider"]: provider["unmatched"] for provider in read_status()["providers"]}
        assert (told["postmark"], told["mailgun"], told["ses"]) == (3, 1, 0)
        lines = {line["view"].provider: line["unmatched"] for line in provider_lines()}
        assert (lines["postmark"], lines["mailgun"], lines["ses"]) == (3, 1, 0)

    def test_is_counted_for_a_day_and_also_while_the_minutes_are_summed(self):
        tell("postmark", "complaint")
        minutes.sum_minutes()
        tell("postmark", "complaint")
        hour = read_database_time().replace(minute=0, second=0, microsecond=0)
        for hours, number in ((23, 10), (24, 40)):
            TrafficSum.objects.create(
                span=TrafficSum.HOUR,
                start=hour - dt.timedelta(hours=hours),
                samples={"unmatched:postmark": number, "open:postmark": 1},
            )
        assert unmatched("postmark") == 12

    def test_is_not_counted_if_it_proves_nothing(self):
        def unknown(event: dict[str, Any]) -> None:
            event["event"] = "account_status_change"

        assert tell("sendgrid", "delivered", edit=unknown) == 200
        assert unmatched("sendgrid") == 0


class TestPlans:
    """15 million e-mails a month are sent, so an event without our metadata must not read a whole month."""

    @pytest.fixture(autouse=True)
    def accepted(self, filled):
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE email_notifications SET provider = 'sendgrid', provider_message_id = md5(id::text)"
                " WHERE status = 'sent'"
            )
            cursor.execute("ANALYZE email_notifications")

    def statement_of(self, read: Any, part: str) -> str:
        with statements(at_most=1) as sql:
            read()
        (statement,) = [text for text in sql if part in text]
        return statement

    def test_an_id_of_the_provider_is_found_by_its_hash_index(self):
        ids = list(EmailNotification.objects.filter(status="sent")[:50].values_list("provider_message_id"))
        wanted = {id for (id,) in ids} | {"unheard-of"}
        objects = EmailNotification.objects
        statement = self.statement_of(
            lambda: objects.read_accepted(provider="sendgrid", message_ids=wanted), "provider_message_id"
        )
        plan = plan_of(statement)
        assert not rows_without_index(statement)
        assert any("provider_message_id" in name or "at_provider" in name for name in plan.indexes)
        assert plan.visited <= 3 * len(wanted) and plan.buffers < 1000

    def test_a_bounced_address_is_found_by_its_index(self):
        objects = EmailNotification.objects
        addresses = {"User7@example.com", "nobody@example.com"}
        statement = self.statement_of(
            lambda: objects.accepted_lately(provider="sendgrid", addresses=addresses), "unnest"
        )
        plan = plan_of(statement)
        assert not rows_without_index(statement) and plan.visited < 500 and plan.buffers < 1000
