"""The changes of an e-mail's state, one connection at a time; races are in tests/races."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from outbox.delivery.rows import attempts
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.words import EmailNotification, Outcome, Status, Verdict, by_hand

pytestmark = pytest.mark.django_db
rows = EmailNotification.objects
ACCEPTED = Outcome(Verdict.ACCEPTED, "sendgrid", "message-1")
FAILED = Outcome(Verdict.TRANSIENT, "sendgrid", code="503", text="Service Unavailable")


def ago(seconds: float):
    return Now() - dt.timedelta(seconds=seconds)


def claim_one() -> EmailNotification:
    (row,) = rows.claim(limit=1)
    return row


def settle(row: EmailNotification, outcome: Outcome, **fields):
    return rows.settle([(row, outcome)], **fields)


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
        assert [row.id for row in rows.claim(limit=100)] == [due.id]

    def test_marks_rows_with_one_token_and_the_databases_clock(self):
        make_mail()
        row = claim_one()
        stored = rows.get()
        assert stored.status == Status.PROCESSING
        assert stored.claim_token == row.claim_token is not None
        assert stored.claimed_at is not None

    def test_gives_a_fresh_token_to_each_claim(self):
        make_mail()
        first = claim_one()
        settle(first, Outcome(Verdict.RETURNED))
        assert claim_one().claim_token != first.claim_token

    def test_takes_as_many_of_the_newest_first_attempts_as_asked_for_and_otherwise_the_longest_due(self):
        old = [
            make_mail(next_attempt_at=ago(1000 - n), status=Status.FAILED, retry_count=1) for n in range(8)
        ]
        middle = [make_mail(next_attempt_at=ago(500 - n)) for n in range(4)]
        new = [make_mail(next_attempt_at=ago(10 - n)) for n in range(2)]
        claimed = {row.id for row in rows.claim(limit=8, fresh=2)}
        assert claimed == {row.id for row in old[:6] + new}
        assert not claimed & {row.id for row in middle}

    def test_never_takes_the_same_row_by_both_halves(self):
        make_mails(10)
        claimed = [row.id for row in rows.claim(limit=12, fresh=3)]
        assert len(claimed) == len(set(claimed)) == 10

    def test_puts_the_fresh_rows_first_and_numbers_the_rows_in_their_order(self):
        old = [make_mail(next_attempt_at=ago(1000 - n)) for n in range(8)]
        new = [make_mail(next_attempt_at=ago(10 - n)) for n in range(2)]
        claimed = rows.claim(limit=8, fresh=2)
        assert [row.id for row in claimed] == [row.id for row in (*reversed(new), *old[:6])]
        assert [row.place for row in claimed] == list(range(1, 9))

    def test_brings_all_that_a_sender_reads_and_the_state_it_was_in(self, django_assert_num_queries):
        make_mail(status=Status.FAILED, retry_count=2, errors=[{"outcome": "transient"}], provider="ses")
        row = claim_one()
        with django_assert_num_queries(0):
            assert (row.was, row.status, row.retry_count, row.max_retries) == ("failed", "processing", 2, 3)
            assert row.subject and row.body and row.body_text and row.to_name is not None
            assert row.errors == [{"outcome": "transient"}] and row.provider == "ses"
            assert row.order_id and row.event_type and row.recipient_email
            assert row.correlation_id == "test"

    @pytest.mark.parametrize("limit", [4, 100, 1000])
    def test_needs_one_statement(self, limit):
        make_mails(1500)
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert len(rows.claim(limit=limit)) == limit
        assert len(captured) == 1

    def test_does_not_starve_a_row_of_an_old_partition(self):
        old = make_mail(
            id=uuid.UUID("01a0f4c2-c400-7000-8000-000000000001"),
            created_at=dt.datetime(2026, 10, 1, 12, tzinfo=dt.UTC),
        )
        assert [row.id for row in rows.claim(limit=10)] == [old.id]


class TestSettle:
    def test_makes_an_accepted_row_sent_and_clears_its_claim(self):
        make_mail()
        row = claim_one()
        (change,) = settle(row, ACCEPTED)
        stored = rows.get()
        assert (change.was, change.status) == ("processing", "sent")
        assert stored.status == Status.SENT and stored.sent_at and stored.claim_token is None
        assert (stored.provider, stored.provider_message_id) == ("sendgrid", "message-1")

    @pytest.mark.parametrize(
        "status",
        [
            Status.PENDING,
            Status.PROCESSING,
            Status.FAILED,
            Status.DEAD_LETTERED,
            Status.SUPPRESSED,
            Status.DISCARDED,
        ],
    )
    def test_believes_acceptance_whatever_the_row_became_meanwhile(self, status):
        row = make_mail(status=status)
        assert rows.settle([(EmailNotification(id=row.id, claim_token=uuid.uuid4()), ACCEPTED)])
        assert rows.get().status == Status.SENT

    def test_keeps_the_first_acceptance(self):
        make_mail()
        row = claim_one()
        settle(row, ACCEPTED)
        first = rows.get()
        assert settle(row, Outcome(Verdict.ACCEPTED, "sendgrid", "message-2")) == []
        assert rows.get().provider_message_id == "message-1"
        assert rows.get().sent_at == first.sent_at

    @pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.ACCEPTED])
    def test_ignores_every_other_outcome_of_a_lost_lease(self, verdict):
        make_mail()
        stale = claim_one()
        rows.filter(id=stale.id).update(claimed_at=ago(400))
        rows.recover(lease_seconds=300)
        before = rows.values().get()
        assert settle(stale, Outcome(verdict, code="503")) == []
        assert rows.values().get() == before

    def test_ignores_a_failure_while_another_worker_holds_the_row(self):
        make_mail()
        stale = claim_one()
        settle(stale, Outcome(Verdict.RETURNED))
        current = claim_one()
        assert settle(stale, FAILED) == []
        assert rows.get().claim_token == current.claim_token

    def test_waits_longer_at_each_transient_failure_and_uses_up_no_retry_until_it_is_judged(self):
        make_mail(max_retries=1)
        for ceiling in (30, 60, 120):
            settle(claim_one(), FAILED)
            row = rows.get()
            assert (row.status, row.retry_count) == (Status.FAILED, 0)
            assert 0 <= wait_of(row) <= ceiling
            rows.update(next_attempt_at=ago(1))
        assert row.last_error == "503 Service Unavailable"
        assert [error["code"] for error in row.errors] == ["503"] * 3
        assert set(row.errors[0]) == {"at", "provider", "outcome", "code", "text", "judged"}

    def test_a_judged_failure_uses_up_a_retry_and_the_last_one_makes_a_dead_letter(self):
        make_mail(max_retries=1)
        settle(claim_one(), FAILED)
        rows.update(next_attempt_at=ago(1))
        row = claim_one()
        row.charge = 1
        settle(row, FAILED)
        assert (rows.get().status, rows.get().retry_count) == (Status.FAILED, 1)
        rows.update(next_attempt_at=ago(1))
        settle(claim_one(), Outcome(Verdict.EXHAUSTED))
        row = rows.get()
        assert (row.status, row.retry_count) == (Status.DEAD_LETTERED, 1)
        assert row.last_error == "503 Service Unavailable" and len(row.errors) == 2

    def test_each_provider_that_was_asked_has_an_entry_also_when_the_last_accepts(self):
        make_mail()
        earlier = (Outcome(Verdict.TRANSIENT, "sendgrid", code="503"),)
        settle(claim_one(), Outcome(Verdict.ACCEPTED, "resend", "m", earlier=earlier))
        row = rows.get()
        assert (row.status, row.provider, row.last_error) == ("sent", "resend", "")
        assert [(one["provider"], one["code"]) for one in row.errors] == [("sendgrid", "503")]

    def test_several_providers_asked_in_turn_are_one_attempt(self):
        make_mail()
        earlier = (Outcome(Verdict.TRANSIENT, "sendgrid", code="503"),)
        settle(claim_one(), Outcome(Verdict.TRANSIENT, "resend", code="500", earlier=earlier))
        row = rows.get()
        assert attempts.count_attempts(row.errors, None) == 1
        assert [one["provider"] for one in row.errors] == ["sendgrid", "resend"]

    def test_dead_letters_a_permanent_failure_at_once(self):
        make_mail()
        settle(claim_one(), Outcome(Verdict.PERMANENT, "sendgrid", code="400", text="bad address"))
        row = rows.get()
        assert (row.status, row.retry_count, row.last_error) == (Status.DEAD_LETTERED, 0, "400 bad address")

    def test_holds_an_ambiguous_failure_for_the_webhook_window(self):
        make_mail()
        settle(claim_one(), Outcome(Verdict.AMBIGUOUS, "sendgrid", code="ReadTimeout"))
        row = rows.get()
        assert (row.status, row.retry_count) == (Status.FAILED, 0)
        assert wait_of(row) == pytest.approx(120, abs=1)

    @pytest.mark.parametrize("verdict", [Verdict.THROTTLED, Verdict.MISCONFIGURED])
    def test_uses_up_no_retry_when_it_is_not_the_mails_fault(self, verdict):
        make_mail(max_retries=0)
        settle(claim_one(), Outcome(verdict, "sendgrid", code="429", wait_seconds=5))
        row = rows.get()
        assert (row.status, row.retry_count) == (Status.PENDING, 0)
        assert len(row.errors) == (verdict is Verdict.MISCONFIGURED)
        assert row.last_error == "429"
        assert wait_of(row) == pytest.approx(5, abs=1)

    def test_returns_a_row_that_was_not_tried_as_it_was(self):
        make_mail(status=Status.FAILED, retry_count=2, last_error="503", next_attempt_at=ago(9))
        settle(claim_one(), Outcome(Verdict.RETURNED))
        row = rows.get()
        assert (row.status, row.retry_count, row.last_error) == (Status.PENDING, 2, "503")
        assert claim_one().id == row.id

    def test_needs_four_statements_for_any_mixture_of_outcomes(self):
        make_mails(20)
        claimed = rows.claim(limit=20)
        verdicts = list(Verdict)
        settlements = [
            (row, Outcome(verdicts[n % len(verdicts)], code=str(n))) for n, row in enumerate(claimed)
        ]
        with CaptureQueriesContext(connection) as captured:
            assert len(rows.settle(settlements)) == 20
        assert len(captured) == 4

    def test_writes_hostile_text_of_a_provider_harmlessly(self):
        make_mail()
        settle(
            claim_one(),
            Outcome(Verdict.PERMANENT, code="400", text="nul \x00 quote ' \" \\ \ud800" + "x" * 5000),
        )
        error = rows.get().last_error
        assert "\x00" not in error and len(error) <= 1000

    def test_writes_hostile_ids_and_codes_of_a_provider_harmlessly(self):
        make_mails(2)
        accepted, failed = rows.claim(limit=2)
        hostile = "nul \x00 quote ' \" \\ \ud800 é 🙂" + "x" * 300
        settle(failed, Outcome(Verdict.PERMANENT, "p", code=hostile))
        settle(accepted, Outcome(Verdict.ACCEPTED, "p", hostile))
        clean = hostile.replace("\x00", "").replace("\ud800", "?")
        assert rows.get(id=failed.id).errors[0]["code"] == clean
        assert rows.get(id=accepted.id).provider_message_id == clean[:255]

    def test_ignores_ids_that_do_not_exist(self):
        assert rows.accept({uuid.uuid4(): ACCEPTED}) == []


class TestRecover:
    def test_takes_back_only_claims_older_than_the_lease(self):
        make_mail(status=Status.PROCESSING, claimed_at=ago(290))
        old = make_mail(status=Status.PROCESSING, claimed_at=ago(310))
        (change,) = rows.recover(lease_seconds=300)
        assert (change.id, change.status) == (old.id, "failed")
        assert statuses() == {"processing": 1, "failed": 1}

    def test_counts_a_crash_as_a_retry_so_that_a_mail_that_kills_workers_ends(self):
        make_mail(status=Status.PROCESSING, claimed_at=ago(310), retry_count=3, max_retries=3)
        rows.recover(lease_seconds=300)
        row = rows.get()
        assert row.status == Status.DEAD_LETTERED
        assert "lease expired" in row.last_error

    def test_takes_no_more_than_its_limit(self):
        for _ in range(3):
            make_mail(status=Status.PROCESSING, claimed_at=ago(310))
        assert len(rows.recover(lease_seconds=300, limit=2)) == 2
        assert len(rows.recover(lease_seconds=300, limit=2)) == 1


class TestRequeue:
    @pytest.mark.parametrize("status", [Status.DEAD_LETTERED, Status.DISCARDED, Status.FAILED])
    def test_gives_back_all_retries_and_keeps_the_history(self, status):
        errors = [
            {"at": "2026-01-01T00:00:00Z", "outcome": "transient", "code": "503", "text": "", "provider": ""}
        ]
        row = make_mail(status=status, retry_count=3, errors=errors, next_attempt_at=ago(-500))
        changes, refusals = by_hand.change(ids=[row.id], act=by_hand.RESEND)
        row = rows.get()
        assert (len(changes), refusals) == (1, [])
        assert (row.status, row.retry_count, row.errors) == (Status.PENDING, 0, errors)
        assert claim_one().id == row.id

    def test_refuses_the_second_press(self):
        row = make_mail(status=Status.DEAD_LETTERED)
        by_hand.change(ids=[row.id], act=by_hand.RESEND)
        changes, (refusal,) = by_hand.change(ids=[row.id], act=by_hand.RESEND)
        assert changes == []
        assert refusal.text == "it is pending, not dead_lettered, failed, discarded or suppressed"

    @pytest.mark.parametrize("status", [Status.PENDING, Status.PROCESSING, Status.SENT])
    def test_refuses_rows_that_are_not_a_persons_to_resend(self, status):
        row = make_mail(status=status)
        before = rows.values().get()
        changes, (refusal,) = by_hand.change(ids=[row.id], act=by_hand.RESEND)
        assert changes == [] and str(status) in refusal.reason
        assert rows.values().get() == before

    def test_refuses_a_held_row_and_says_until_when(self):
        make_mail()
        settle(claim_one(), Outcome(Verdict.AMBIGUOUS, code="ReadTimeout"))
        row = rows.get()
        changes, (refusal,) = by_hand.change(ids=[row.id], act=by_hand.RESEND)
        assert (changes, refusal.until) == ([], row.next_attempt_at)

    def test_holds_by_every_doubtful_attempt_since_the_last_resend_dead_letters_too(self):
        def error(outcome: Verdict, seconds: float) -> dict[str, str]:
            at = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)).isoformat()
            return {"at": at, "outcome": outcome, "code": "", "text": "", "provider": "ses"}

        doubt = [error(Verdict.AMBIGUOUS, 60), error(Verdict.TRANSIENT, 30)]
        old = [error(Verdict.AMBIGUOUS, 600), error(Verdict.TRANSIENT, 30)]
        held = make_mail(status=Status.FAILED, errors=doubt, next_attempt_at=ago(1))
        dead = make_mail(status=Status.DEAD_LETTERED, errors=doubt, next_attempt_at=ago(1))
        over = make_mail(status=Status.FAILED, errors=old, next_attempt_at=ago(-500))
        again = make_mail(status=Status.DEAD_LETTERED, errors=doubt, resent_at=ago(45))
        changes, refusals = by_hand.change(ids=[held.id, dead.id, over.id, again.id], act=by_hand.RESEND)
        assert {change.id for change in changes} == {over.id, again.id}
        assert {refusal.id for refusal in refusals} == {held.id, dead.id}
        assert all(55 < wait_until(refusal) < 65 for refusal in refusals)
        assert [refusal.id for refusal in by_hand.change(ids=[dead.id], act=by_hand.DISCARD)[1]] == [dead.id]

    def test_a_hold_that_was_prolonged_lasts_until_the_next_attempt(self):
        at = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=600)).isoformat()
        errors = [{"at": at, "outcome": "ambiguous", "code": "", "text": "", "provider": "ses"}]
        row = make_mail(status=Status.FAILED, errors=errors, next_attempt_at=ago(-500))
        _, (refusal,) = by_hand.change(ids=[row.id], act=by_hand.RESEND)
        assert refusal.until == row.next_attempt_at

    def test_a_resend_starts_a_new_round(self):
        row = make_mail(status=Status.DEAD_LETTERED, retry_count=3, errors=[])
        by_hand.change(ids=[row.id], act=by_hand.RESEND)
        assert rows.get().resent_at is not None

    def test_giving_up_keeps_what_was_used_and_planned(self):
        row = make_mail(status=Status.DEAD_LETTERED, retry_count=3, next_attempt_at=ago(77))
        by_hand.change(ids=[row.id], act=by_hand.DISCARD)
        stored = rows.get()
        assert (stored.retry_count, stored.next_attempt_at) == (3, row.next_attempt_at)

    def test_withdrawing_takes_what_waits_and_leaves_what_is_under_way_or_done(self):
        made = {status: make_mail(status=status).id for status in Status.values}
        changes = by_hand.change(ids=made.values(), act=by_hand.WITHDRAW)[0]
        assert {change.id for change in changes} == {
            made["pending"],
            made["failed"],
            made["dead_lettered"],
        }
        assert {change.status for change in changes} == {"discarded"}

    def test_says_which_ids_do_not_exist(self):
        missing = uuid.uuid4()
        changes, (refusal,) = by_hand.change(ids=[missing], act=by_hand.RESEND)
        assert (changes, refusal.id) == ([], missing)

    def test_discards_dead_letters_and_what_keeps_failing(self):
        made = {status: make_mail(status=status).id for status in Status.values}
        changes, refusals = by_hand.change(ids=made.values(), act=by_hand.DISCARD)
        assert {change.id for change in changes} == {made["dead_lettered"], made["failed"]}
        assert len(refusals) == len(made) - 2


class TestTable:
    @pytest.mark.parametrize(
        "fields",
        [
            {"status": "sent"},
            {"status": "pending", "sent_at": Now()},
            {"status": "processing"},
            {"status": "pending", "claim_token": uuid.uuid4()},
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
