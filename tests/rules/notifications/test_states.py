"""The changes of an e-mail's state, one connection at a time; races are in tests/races."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import uuid

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models.functions import Now

from notifications.models import MailProfile
from notifications.states import errors as entries
from runtime.telemetry.context import Context, working_for
from tests.kit.mails import as_claimed, claim_one, due_now, make_mail, make_mails, not_in, settled, statuses
from tests.kit.months import last_month
from tests.kit.races import broken
from tests.kit.words import (
    TEXT_LIMIT,
    Claimed,
    DomainEvent,
    EmailNotification,
    Outcome,
    Status,
    Verdict,
    accept,
    claim,
    id_floor,
    manual_actions,
    new_id,
    recover,
    settle,
    transitions,
)

pytestmark = pytest.mark.django_db
rows = EmailNotification.objects
OPINIONS = [verdict for verdict in Verdict if verdict is not Verdict.ACCEPTED]


def ago(seconds: float):
    return Now() - dt.timedelta(seconds=seconds)


def error(outcome: Verdict, *, ago: float) -> dict[str, str]:
    at = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago)).isoformat()
    return {"at": at, "outcome": outcome, "code": "", "text": "", "provider": "ses"}


def wait_until(refusal) -> float:
    return float((refusal.until - dt.datetime.now(dt.UTC)).total_seconds())


def wait_of(row: EmailNotification) -> float:
    """Seconds from the row's last change to its next attempt."""
    row.refresh_from_db()
    return (row.next_attempt_at - row.updated_at).total_seconds()


class TestClaim:
    def test_takes_only_rows_that_are_due(self):
        due = make_mail()
        make_mail(next_attempt_at=Now() + dt.timedelta(seconds=60))
        for status in (
            Status.PROCESSING,
            Status.SENT,
            Status.DEAD_LETTERED,
            Status.SUPPRESSED,
            Status.DISCARDED,
        ):
            make_mail(status=status)
        assert [row.id for row in claim(limit=100)] == [due.id]

    def test_marks_a_row_with_a_fresh_token_and_the_databases_clock(self):
        make_mail()
        first = claim_one()
        stored = rows.get()
        assert (stored.status, stored.claim_token) == (Status.PROCESSING, first.claim_token)
        assert stored.claimed_at and stored.claim_token
        settled(first, Verdict.RETURNED)
        assert claim_one().claim_token != first.claim_token

    def test_takes_the_newest_first_attempts_that_were_asked_for_and_then_the_longest_due(self):
        old = [make_mail(next_attempt_at=ago(1000 - n), status=Status.FAILED) for n in range(8)]
        [make_mail(next_attempt_at=ago(500 - n)) for n in range(4)]
        new = [make_mail(next_attempt_at=ago(10 - n)) for n in range(2)]
        claimed = claim(limit=8, fresh=2)
        assert [row.id for row in claimed] == [row.id for row in (*reversed(new), *old[:6])]

    def test_never_takes_the_same_row_by_both_halves(self):
        make_mails(10)
        claimed = [row.id for row in claim(limit=12, fresh=3)]
        assert len(claimed) == len(set(claimed)) == 10

    def test_brings_all_that_a_sender_reads(self):
        MailProfile.objects.create(source="shop-b", account={"ses": {"configuration_set": "b"}})
        fields = {
            "retry_count": 2,
            "max_retries": 5,
            "errors": [{"outcome": "transient"}],
            "profile": "shop-b",
            "from_email": "b@example.com",
            "reply_to": "re@example.com",
            "traceparent": "t",
            "resent_at": dt.datetime(2026, 10, 1, 12, tzinfo=dt.UTC),
            "order_version": 7,
            "shop_copy_of": new_id(),
        }
        stored = make_mail(status=Status.FAILED, **fields)
        email = claim_one()
        computed = {"claim_token", "claimed_at", "age_seconds", "stored_seconds", "account"}
        computed |= {"deadline_at", "is_substitute"}
        columns = {field.name for field in dataclasses.fields(Claimed)} - computed
        assert fields.keys() < columns
        assert {name: getattr(email, name) for name in columns} == {
            name: getattr(stored, name) for name in columns
        }
        assert email.account == {"ses": {"configuration_set": "b"}}
        assert email.claimed_at == rows.get().claimed_at and email.deadline_at == math.inf

    def test_brings_no_account_if_the_profile_has_no_row(self):
        make_mail(profile="gone")
        assert claim_one().account == {}

    @pytest.mark.parametrize("limit", [4, 1000])
    def test_needs_one_statement(self, limit, django_assert_num_queries):
        make_mails(1500)
        with django_assert_num_queries(1):
            assert len(claim(limit=limit)) == limit

    def test_does_not_starve_a_row_of_an_old_partition(self):
        when = last_month(days=3)
        old = make_mail(id=id_floor(when), created_at=when)
        assert [row.id for row in claim(limit=10)] == [old.id]


class TestSettle:
    def test_makes_an_accepted_row_sent_and_clears_its_claim(self):
        make_mail()
        (change,) = settled(claim_one(), Verdict.ACCEPTED, provider="sendgrid", provider_message_id="m-1")
        stored = rows.get()
        assert (change.was, change.status) == ("processing", "sent")
        assert stored.status == Status.SENT and stored.sent_at and stored.claim_token is None
        assert (stored.provider, stored.provider_message_id) == ("sendgrid", "m-1")

    def test_believes_acceptance_whatever_the_row_became_meanwhile(self):
        for status in Status:
            row = make_mail(status=status)
            stale = EmailNotification(id=row.id, claim_token=uuid.uuid4())
            assert len(settled(as_claimed(stale), Verdict.ACCEPTED)) == (status is not Status.SENT)
        assert statuses() == {"sent": len(Status)}

    def test_keeps_the_first_acceptance(self):
        make_mail()
        row = claim_one()
        settled(row, Verdict.ACCEPTED, provider_message_id="m-1")
        first = rows.values().get()
        assert settled(row, Verdict.ACCEPTED, provider_message_id="m-2") == []
        assert rows.values().get() == first

    def test_ignores_every_other_outcome_of_a_lost_claim_also_while_another_worker_holds_the_row(self):
        make_mail()
        stale = claim_one()
        rows.update(claimed_at=ago(400))
        recover(lease_seconds=300)
        for claim_again in (lambda: None, claim_one):
            due_now()
            claim_again()
            before = rows.values().get()
            assert [settled(stale, verdict, code="503") for verdict in OPINIONS] == [[]] * len(OPINIONS)
            assert rows.values().get() == before

    def test_an_acceptance_wins_over_a_later_claims_failure_in_one_settlement(self):
        """The send of an expired claim ended at last, while the row was sent again."""
        make_mail()
        old = claim_one()
        settled(old, Verdict.RETURNED)
        failed = (claim_one(), Outcome(Verdict.TRANSIENT, text="503"))
        settle([(old, Outcome(Verdict.ACCEPTED)), failed])
        assert statuses() == {"sent": 1}

    def test_the_outcome_of_the_present_claim_wins_over_one_of_a_lost_claim_in_one_settlement(self):
        """A provider that froze broke both connections when it was killed."""
        make_mail()
        old = claim_one()
        settled(old, Verdict.RETURNED)
        reset = Outcome(Verdict.AMBIGUOUS, text="connection reset")
        settle([(claim_one(), Outcome(Verdict.TRANSIENT, text="503")), (old, reset)])
        assert statuses() == {"failed": 1} and rows.get().last_error == "503"

    def test_waits_longer_at_each_transient_failure_and_counts_them_beyond_its_retries(self):
        make_mail(max_retries=1)
        for count, ceiling in enumerate((30, 60, 120), start=1):
            settled(claim_one(), Verdict.TRANSIENT, provider="ses", code="503", text="Service Unavailable")
            row = rows.get()
            assert (row.status, row.retry_count) == (Status.FAILED, count)
            assert 0 <= wait_of(row) <= ceiling
            due_now()
        assert row.last_error == "503 Service Unavailable"
        assert [error["code"] for error in row.errors] == ["503"] * 3
        assert set(row.errors[0]) == {"at", "provider", "outcome", "code", "text", "counts"}

    def test_one_that_is_ended_after_its_hold_keeps_its_last_error(self):
        make_mail()
        settled(claim_one(), Verdict.AMBIGUOUS, provider="ses", code="ReadTimeout")
        due_now()
        settled(claim_one(), Verdict.HELD, is_own=True)
        row = rows.get()
        assert (row.status, row.ended_by, row.retry_count) == (Status.DEAD_LETTERED, "retries", 1)
        assert row.last_error == "ReadTimeout" and len(row.errors) == 1

    @pytest.mark.parametrize(
        ("verdict", "status", "error"), [(Verdict.ACCEPTED, "sent", ""), (Verdict.TRANSIENT, "failed", "500")]
    )
    def test_each_provider_that_was_asked_has_an_entry_and_all_are_one_attempt(self, verdict, status, error):
        make_mail()
        earlier = (Outcome(Verdict.TRANSIENT, "sendgrid", code="503"),)
        settled(claim_one(), verdict, provider="resend", code=error, earlier=earlier)
        row = rows.get()
        assert (row.status, row.last_error) == (status, error)
        asked = [("sendgrid", "503"), ("resend", error)]
        assert [(error["provider"], error["code"]) for error in row.errors] == asked[: 1 + bool(error)]
        assert entries.count_attempts(row.errors, None) == 1

    @pytest.mark.parametrize(
        ("verdict", "status", "waits"),
        [
            (Verdict.PERMANENT, "dead_lettered", None),
            (Verdict.AMBIGUOUS, "failed", 120),
            (Verdict.MISCONFIGURED, "pending", 5),
        ],
    )
    def test_writes_status_wait_and_error(self, verdict, status, waits):
        make_mail(max_retries=0)
        settled(claim_one(), verdict, provider="ses", code="400", text="no", wait_seconds=5)
        row = rows.get()
        assert (row.status, row.last_error, len(row.errors)) == (status, "400 no", 1)
        assert row.retry_count == (verdict is Verdict.AMBIGUOUS)
        assert waits is None or wait_of(row) == pytest.approx(waits, abs=1)

    def test_writes_the_reason_of_a_pause_but_no_failure(self):
        make_mail(max_retries=0)
        settled(claim_one(), Verdict.THROTTLED, code="429", wait_seconds=5)
        row = rows.get()
        assert (row.status, row.retry_count, row.last_error, row.errors) == ("pending", 0, "429", [])
        assert wait_of(row) == pytest.approx(5, abs=1)

    def test_returns_a_row_that_was_not_tried_as_it_was(self):
        make_mail(status=Status.FAILED, retry_count=2, last_error="503", next_attempt_at=ago(9))
        settled(claim_one(), Verdict.RETURNED)
        row = rows.get()
        assert (row.status, row.retry_count, row.last_error) == (Status.PENDING, 2, "503")
        assert claim_one().id == row.id

    def test_needs_four_statements_for_any_mixture_of_outcomes(self, django_assert_num_queries):
        make_mails(20)
        verdicts = [*Verdict, *Verdict]
        settlements = [(row, Outcome(verdicts[n], code=str(n))) for n, row in enumerate(claim(limit=20))]
        with django_assert_num_queries(4):
            assert len(settle(settlements)) == 20

    def test_writes_hostile_words_of_a_provider_harmlessly(self):
        make_mails(2)
        accepted, failed = claim(limit=2)
        hostile = "nul \x00 quote ' \" \\ \ud800 é 🙂" + "x" * 5000
        settled(failed, Verdict.PERMANENT, code=hostile[:300], text=hostile)
        settled(accepted, Verdict.ACCEPTED, provider_message_id=hostile)
        clean = hostile.replace("\x00", "").replace("\ud800", "?")
        row = rows.get(id=failed.id)
        assert row.errors[0]["code"] == clean[:299]
        assert row.last_error.startswith(clean[:200]) and len(row.last_error) == TEXT_LIMIT
        assert rows.get(id=accepted.id).provider_message_id == clean[:255]

    def test_ignores_ids_that_do_not_exist(self):
        assert accept({uuid.uuid4(): Outcome(Verdict.ACCEPTED)}) == []


@pytest.mark.django_db(transaction=True)
class TestTheEventOfAnEnd:
    @pytest.fixture
    def claimed(self, settings) -> Claimed:
        settings.EMAIL_EVENTS = True
        make_mail()
        return claim_one()

    def test_that_is_refused_takes_no_acceptance_with_it(self, claimed):
        with broken("outbox_events"):
            assert len(settled(claimed, Verdict.ACCEPTED, provider="sendgrid")) == 1
        assert statuses() == {"sent": 1} and not DomainEvent.objects.exists()

    def test_has_a_greater_sequence_than_the_end_before_it(self, claimed):
        refused = {"text": "503", "is_own": True}
        settled(claimed, Verdict.TRANSIENT, text="503")
        due_now()
        settled(claim_one(), Verdict.HELD, is_own=True)
        for verdict in (Verdict.PERMANENT, Verdict.TRANSIENT, Verdict.ACCEPTED):
            manual_actions.change(ids=[claimed.id], act=transitions.RESEND)
            settled(claim_one(), verdict, **(refused if verdict is not Verdict.ACCEPTED else {}))
        events = DomainEvent.objects.order_by("position").values_list("event_type", "sequence")
        names, sequences = zip(*events, strict=True)
        assert [name.split(".")[2] for name in names] == [*["dead_lettered"] * 3, "sent"]
        assert list(sequences) == sorted(set(sequences))

    def test_has_the_correlation_id_and_the_trace_of_the_change_that_caused_the_email(self, claimed):
        rows.update(correlation_id="of-the-order", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
        with working_for(Context("of-a-webhook")):
            settled(claimed, Verdict.ACCEPTED, provider="sendgrid")
        metadata = DomainEvent.objects.get().metadata
        assert metadata["correlationId"] == "of-the-order"
        assert metadata["traceId"] == "a" * 32 and metadata["traceparent"] == f"00-{'a' * 32}-{'b' * 16}-01"

    def test_that_loses_the_connection_is_an_error_and_the_outcome_is_written_again(self, claimed):
        with broken("outbox_events", "PERFORM pg_terminate_backend(pg_backend_pid())"):
            with pytest.raises(OperationalError):
                settled(claimed, Verdict.ACCEPTED, provider="sendgrid")
            connection.close()
            assert statuses() == {"processing": 1}
        settled(claimed, Verdict.ACCEPTED, provider="sendgrid")
        assert statuses() == {"sent": 1} and DomainEvent.objects.count() == 1


class TestRecover:
    def test_takes_back_only_claims_older_than_the_lease(self):
        make_mail(status=Status.PROCESSING, claimed_at=ago(290))
        old = make_mail(status=Status.PROCESSING, claimed_at=ago(310))
        (change,) = recover(lease_seconds=300)
        assert (change.id, change.status) == (old.id, "failed")
        assert statuses() == {"processing": 1, "failed": 1}

    def test_ends_an_email_that_lost_more_workers_than_it_has_retries_since_its_resend(self):
        lost = [error(Verdict.AMBIGUOUS, ago=60) | {"provider": ""}]
        processing = {"status": Status.PROCESSING, "claimed_at": ago(310), "max_retries": 1, "retry_count": 9}
        make_mail(errors=lost, **processing)
        make_mail(errors=lost, resent_at=ago(50), **processing)
        make_mail(errors=[error(Verdict.AMBIGUOUS, ago=60)], **processing)
        recover(lease_seconds=300)
        assert statuses() == {"dead_lettered": 1, "failed": 2}
        row = rows.get(status=Status.DEAD_LETTERED)
        assert (row.ended_by, row.retry_count) == ("lease", 10)
        assert "lease expired" in row.last_error

    def test_takes_no_more_than_its_limit(self):
        for _ in range(3):
            make_mail(status=Status.PROCESSING, claimed_at=ago(310))
        assert len(recover(lease_seconds=300, limit=2)) == 2
        assert len(recover(lease_seconds=300, limit=2)) == 1


class TestByHand:
    """test_manual_actions proves in which states a person may do what."""

    def test_a_resend_starts_a_new_round_and_keeps_the_history(self):
        errors = [error(Verdict.TRANSIENT, ago=60)]
        row = make_mail(status=Status.FAILED, retry_count=3, errors=errors, next_attempt_at=ago(-500))
        changes, refusals = manual_actions.change(ids=[row.id], act=transitions.RESEND)
        row = rows.get()
        assert (len(changes), refusals) == (1, [])
        assert (row.status, row.retry_count, row.errors) == (Status.PENDING, 0, errors)
        assert row.resent_at and claim_one().id == row.id

    def test_a_second_press_is_refused_with_the_states_that_would_do(self):
        row = make_mail(status=Status.PENDING)
        changes, (refusal,) = manual_actions.change(ids=[row.id], act=transitions.RESEND)
        assert changes == []
        assert refusal.text == f"it is pending, {not_in(transitions.RESEND)}"

    def test_every_doubtful_attempt_since_the_last_resend_holds_dead_letters_too(self):
        doubt = [error(Verdict.AMBIGUOUS, ago=60), error(Verdict.TRANSIENT, ago=30)]
        old = [error(Verdict.AMBIGUOUS, ago=600), error(Verdict.TRANSIENT, ago=30)]
        held = make_mail(status=Status.FAILED, errors=doubt, next_attempt_at=ago(1))
        dead = make_mail(status=Status.DEAD_LETTERED, errors=doubt, next_attempt_at=ago(1))
        over = make_mail(status=Status.FAILED, errors=old, next_attempt_at=ago(-500))
        again = make_mail(status=Status.DEAD_LETTERED, errors=doubt, resent_at=ago(45))
        changes, refusals = manual_actions.change(
            ids=[held.id, dead.id, over.id, again.id], act=transitions.RESEND
        )
        assert {change.id for change in changes} == {over.id, again.id}
        assert {refusal.id for refusal in refusals} == {held.id, dead.id}
        assert all(55 < wait_until(refusal) < 65 for refusal in refusals)
        assert [
            refusal.id for refusal in manual_actions.change(ids=[dead.id], act=transitions.DISCARD)[1]
        ] == [dead.id]

    def test_a_hold_that_was_prolonged_lasts_until_the_next_attempt(self):
        errors = [error(Verdict.AMBIGUOUS, ago=600)]
        row = make_mail(status=Status.FAILED, errors=errors, next_attempt_at=ago(-500))
        _, (refusal,) = manual_actions.change(ids=[row.id], act=transitions.RESEND)
        assert refusal.until == row.next_attempt_at

    def test_giving_up_keeps_what_was_used_and_planned(self):
        row = make_mail(status=Status.DEAD_LETTERED, retry_count=3, next_attempt_at=ago(77))
        manual_actions.change(ids=[row.id], act=transitions.DISCARD)
        stored = rows.get()
        assert (stored.status, stored.retry_count) == ("discarded", 3)
        assert stored.next_attempt_at == row.next_attempt_at

    def test_withdrawing_takes_what_waits_and_leaves_what_is_under_way_or_done(self):
        made = {status: make_mail(status=status).id for status in Status.values}
        changes = manual_actions.change(ids=made.values(), act=transitions.WITHDRAW)[0]
        assert {change.id for change in changes} == {made[status] for status in transitions.WITHDRAW.before}
        assert {change.status for change in changes} == {"discarded"}

    def test_an_id_that_does_not_exist_is_refused(self):
        missing = uuid.uuid4()
        changes, (refusal,) = manual_actions.change(ids=[missing], act=transitions.RESEND)
        assert (changes, refusal.id) == ([], missing)


def test_failing_is_an_email_that_failed_for_an_hour():
    old = make_mail(status=Status.FAILED, errors=[error(Verdict.TRANSIENT, ago=1)])
    make_mail(status=Status.FAILED, errors=[error(Verdict.TRANSIENT, ago=1)])  # for a moment only
    make_mail()
    rows.filter(id=old.id).update(created_at=ago(7200))
    assert rows.failing().get().id == old.id


class TestTable:
    @pytest.mark.parametrize(
        "fields",
        [
            {"status": "sent"},
            {"status": "pending", "sent_at": Now()},
            {"status": "processing"},
            {"status": "processing", "claim_token": uuid.uuid4()},
            {"status": "processing", "claimed_at": Now()},
            {"status": "pending", "claim_token": uuid.uuid4()},
            {"status": "pending", "claimed_at": Now()},
            {"status": "lost"},
        ],
    )
    def test_refuses_a_state_without_its_columns(self, fields):
        row = make_mail()
        with pytest.raises(IntegrityError), transaction.atomic():
            rows.filter(id=row.id).update(**fields)

    def test_refuses_an_id_of_another_time_than_the_databases(self):
        with pytest.raises(IntegrityError), transaction.atomic():
            make_mail(
                id=uuid.UUID("01a22ee6-b000-7000-8000-000000000001"),
                created_at=dt.datetime(2026, 10, 1, tzinfo=dt.UTC),
            )
