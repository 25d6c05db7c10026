"""Whose failures they were: the e-mail's own if others show that a good one would never fail so often."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications.changes import whose_failure
from notifications.changes.whose_failure import (
    SLICE_ROWS,
    SLICES,
    FailureEvidence,
    are_own,
    find_own,
    read_others,
)
from outbox.screen import screen
from tests.kit.mails import accept_others, as_claimed, claim_one, due_now, make_mail, settled
from tests.kit.months import last_month
from tests.kit.plans import plan_of
from tests.kit.words import (
    Claimed,
    EmailNotification,
    Outcome,
    Status,
    Verdict,
    read_database_time,
)

A, B = "sendgrid", "ses"
#: The failure of an attempt that is not written yet, at a provider that took no others.
LATEST = (Outcome(Verdict.TRANSIENT, "smtp"),)


def entry(*, ago: float, provider: str = A, outcome: str = "transient", counts: bool = True) -> dict:
    at = (read_database_time() - dt.timedelta(seconds=ago)).isoformat()
    return {"at": at, "provider": provider, "outcome": outcome, "code": "503", "text": "", "counts": counts}


def failed(*errors: dict, **fields) -> Claimed:
    """Claim an e-mail with these errors, by default with four failures within a minute."""
    errors = errors or tuple(entry(ago=60 - n) for n in range(4))
    values = {"status": Status.FAILED, "retry_count": len(errors), "max_retries": 3, "errors": [*errors]}
    make_mail(**values | fields)
    return claim_one()


def read(email: Claimed, *, provider: str = A, ago: float = 60) -> tuple[int, int]:
    """Return how many first attempts of others the provider accepted and failed."""
    since = read_database_time() - dt.timedelta(seconds=ago)
    ((_, _, accepted, failed),) = read_others(
        [{"id": str(email.id), "provider": provider, "since": since.isoformat()}]
    )
    return accepted, failed


def is_own(email: Claimed) -> bool:
    return find_own([(email, LATEST)]) == {email.id}


class TestTheChance:
    @pytest.mark.parametrize(
        ("failures", "accepted", "failed", "own"),
        [
            (4, 98, 0, False),
            (4, 99, 0, True),
            (3, 462, 0, False),
            (3, 463, 0, True),
            (100, 5, 0, False),  # too few others
            (11, 6, 0, True),
            (8, 900, 100, False),  # a tenth fails
            (9, 900, 100, True),
            (17, 650, 350, False),
            (18, 650, 350, True),
            (1000, 0, 1000, False),  # an outage
        ],
    )
    def test_of_a_good_email_to_fail_so_often_is_one_in_a_hundred_million(
        self, failures, accepted, failed, own
    ):
        assert are_own([FailureEvidence(failures, accepted, failed)]) == own

    def test_is_that_of_all_providers_that_accepted_enough_others(self):
        quiet = FailureEvidence(failures=50, accepted=5, failed=0)
        half = FailureEvidence(failures=2, accepted=98, failed=0)
        assert not are_own([half, quiet])
        assert are_own([half, half._replace(accepted=99)]) and not are_own([half])


@pytest.mark.django_db
class TestTheQuestion:
    def test_is_answered_by_first_attempts_of_emails_written_since_the_first_failure(self):
        email = failed()
        accept_others(1000, ago=65, until=61)  # before
        accept_others(98, ago=30)
        assert not is_own(email)
        accept_others(1, ago=10)
        assert is_own(email)

    def test_counts_the_failures_of_others(self):
        email = failed()
        accept_others(200, ago=30)
        accept_others(2, ago=20, errors=[entry(ago=19)])
        assert not is_own(email)

    @pytest.mark.parametrize("outcome", ["transient", "ambiguous", "unreachable", "misconfigured"])
    def test_counts_every_way_in_which_a_provider_fails(self, outcome):
        email = failed()
        accept_others(200, ago=30)
        accept_others(2, ago=20, errors=[entry(ago=19, outcome=outcome, counts=False)])
        assert not is_own(email)

    @pytest.mark.parametrize("outcome", ["permanent", "sender_refused", "restored"])
    def test_does_not_count_refusals_of_others(self, outcome):
        email = failed()
        accept_others(200, ago=30)
        accept_others(50, ago=20, errors=[entry(ago=19, outcome=outcome, counts=False)])
        assert is_own(email)

    def test_does_not_count_what_became_of_others_after_their_first_attempt(self):
        email = failed()
        accept_others(10, ago=30)
        accept_others(7, ago=26, errors=[entry(ago=25, provider=B), entry(ago=5)])
        assert read(email) == (10, 0)
        EmailNotification.objects.filter(subject="other", status=Status.FAILED).update(
            status=Status.SENT, sent_at=read_database_time(), provider=A
        )
        assert read(email) == (10, 0)
        assert read(email, provider=B) == (0, 7)

    def test_counts_a_first_attempt_that_one_provider_failed_and_the_next_accepted_at_both(self):
        email = failed()
        make_mail()
        settled(claim_one(), Verdict.ACCEPTED, provider=B, earlier=(Outcome(Verdict.TRANSIENT, A, code="5"),))
        assert (read(email), read(email, provider=B)) == ((0, 1), (1, 0))

    def test_leaves_out_acceptances_of_resent_others(self):
        email = failed()
        accept_others(5, ago=30)
        EmailNotification.objects.filter(subject="other").update(resent_at=read_database_time())
        assert read(email) == (0, 0)

    def test_leaves_out_failures_before_a_resend_and_those_that_do_not_count(self):
        accept_others(500, ago=58)
        resent = read_database_time() - dt.timedelta(seconds=58.5)
        email = failed(resent_at=resent)  # two of four failures came later
        assert not is_own(email)
        due_now()
        EmailNotification.objects.filter(id=email.id).delete()
        assert not is_own(failed(*(entry(ago=60 - n, counts=n > 1) for n in range(4))))

    def test_is_not_asked_of_lost_workers(self):
        lost = {"outcome": "ambiguous", "provider": ""}
        email = failed(*(entry(ago=60 - n) | lost for n in range(4)))
        accept_others(500, ago=30)
        with CaptureQueriesContext(connection) as captured:
            assert not is_own(email)
        assert not captured

    def test_reads_a_row_with_an_error_without_a_time(self):
        email = failed(*({"provider": A, "outcome": "transient", "counts": True} for _ in range(4)))
        accept_others(500, ago=30)
        is_own(email)

    def test_reads_the_whole_time_evenly_however_many_emails_it_has(self):
        """An hour ago most failed, and since then all are accepted."""
        email = failed(*(entry(ago=3600 - n) for n in range(9)))
        for ago in range(3590, 1800, -18):
            accept_others(3, ago=ago, until=ago - 18)
            accept_others(20, ago=ago, until=ago - 18, errors=[entry(ago=ago - 1)])
        accept_others(3000, ago=60)
        assert not is_own(email)

    def test_of_many_emails_is_one_statement(self):
        emails = [failed() for _ in range(3)]
        accept_others(600, ago=30)
        with CaptureQueriesContext(connection) as captured:
            assert find_own([(email, LATEST) for email in emails]) == {email.id for email in emails}
        assert len(captured) == 1


@pytest.mark.django_db
class TestAfterAFailure:
    def test_that_used_up_the_retries_the_email_is_a_dead_letter_at_once(self):
        email = failed(*(entry(ago=60 - n) for n in range(3)))
        accept_others(100, ago=30)
        (change,) = settled(email, Verdict.TRANSIENT, provider=A, code="503")
        row = EmailNotification.objects.get(id=email.id)
        assert (change.status, row.ended_by, row.retry_count) == ("dead_lettered", "retries", 4)
        assert (row.last_error, len(row.errors)) == ("503", 4)

    def test_it_is_tried_on_until_others_show_whose_it_was(self):
        email = failed(*(entry(ago=60 - n) for n in range(3)))
        settled(email, Verdict.TRANSIENT, provider=A, code="503")
        row = EmailNotification.objects.get(id=email.id)
        assert (row.status, row.retry_count) == ("failed", 4)
        due_now()
        accept_others(100, ago=30)
        (change,) = settled(claim_one(), Verdict.TRANSIENT, provider=A, code="503")
        assert (change.status, change.retry_count) == ("dead_lettered", 5)

    @pytest.mark.parametrize(
        ("errors", "verdict", "is_probe"),
        [(2, Verdict.TRANSIENT, False), (9, Verdict.TRANSIENT, True), (9, Verdict.UNREACHABLE, False)],
    )
    def test_with_a_retry_left_or_of_the_provider_nothing_is_asked(
        self, monkeypatch, errors, verdict, is_probe
    ):
        email = failed(*(entry(ago=60 - n) for n in range(errors)))
        monkeypatch.setattr(whose_failure, "_READ", "not SQL")
        (change,) = settled(email, verdict, provider=A, code="503", is_probe=is_probe)
        assert change.status in ("pending", "failed")

    def test_whose_answer_was_lost_the_email_is_held_first_and_asks_before_it_is_sent_again(self, settings):
        email = failed(*(entry(ago=600 - n) for n in range(3)))
        accept_others(100, ago=300, until=100)
        (change,) = settled(email, Verdict.AMBIGUOUS, provider=A, code="504")
        assert (change.status, change.retry_count) == ("failed", 4)
        due_now()
        held = claim_one()
        assert screen([held])[held.id] == Outcome(Verdict.HELD, wait_seconds=pytest.approx(120, abs=5))
        settings.AMBIGUOUS_HOLD_SECONDS = 0
        outcome = screen([held])[held.id]
        assert outcome == Outcome(Verdict.HELD, is_own=True)
        (change,) = settled(held, outcome.verdict, is_own=True)
        assert (change.status, change.ended_by, change.retry_count) == ("dead_lettered", "retries", 4)

    def test_what_others_got_during_the_hold_does_not_count(self, settings):
        """The outage may have ended meanwhile."""
        settings.AMBIGUOUS_HOLD_SECONDS = 0
        lost = {"outcome": "ambiguous"}
        email = failed(*(entry(ago=600 - n) for n in range(3)), entry(ago=500) | lost)
        accept_others(500, ago=490)
        assert screen([email]) == {}
        accept_others(500, ago=590, until=510)
        assert screen([email])[email.id].is_own

    def test_an_acceptance_of_the_same_email_wins(self):
        email = failed(*(entry(ago=60 - n) for n in range(3)))
        accept_others(100, ago=30)
        (change,) = settled(email, Verdict.ACCEPTED, provider=A)
        assert change.status == "sent"


def test_the_primary_key_finds_what_is_read_in_two_months(filled):
    """Among 30,000 e-mails, thousands of them of the last minute. Of fewer, PostgreSQL reads each."""
    ago = (read_database_time() - last_month(days=20)).total_seconds()
    errors = [entry(ago=ago + 60 - n) for n in range(4)]
    email = as_claimed(make_mail(status=Status.FAILED, errors=errors, retry_count=4))
    accept_others(500, ago=ago)
    accept_others(3000, ago=60)
    with CaptureQueriesContext(connection) as captured:
        find_own([(email, ())])
    plan = plan_of(captured[0]["sql"])
    assert plan.indexes and all(index.endswith("_pkey") for index in plan.indexes), plan.indexes
    assert plan.visited <= SLICES * SLICE_ROWS
