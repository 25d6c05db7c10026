"""Check each line of the table of outcomes in docs/explain/outcomes.md, without a database."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest

from notifications.states.outcomes import current_policy
from runtime.process.backoff import FULL_JITTER, SLIGHT_JITTER, RetryPolicy
from tests.kit.words import (
    LEASE_EXPIRED,
    TEXT_LIMIT,
    EmailPolicy,
    Outcome,
    Verdict,
    decide_status,
    transitions,
)

POLICY = EmailPolicy(RetryPolicy(base_seconds=30, cap_seconds=3600, jitter=FULL_JITTER), hold_seconds=120)
V = Verdict


class Decision(NamedTuple):
    """The values of a decision by their names."""

    status: str
    retry_count: int
    wait_seconds: float | None
    ended_by: str | None


def decision(
    verdict: Verdict,
    *,
    retry: int = 0,
    most: int = 3,
    attempts: int = 0,
    lost: int = 0,
    chance: float = 0.5,
    policy: EmailPolicy = POLICY,
    **fields: object,
) -> Decision:
    return Decision(
        *decide_status(
            outcome=Outcome(verdict, **fields),  # type: ignore[arg-type]
            retry_count=retry,
            max_retries=most,
            attempts=attempts,
            lost=lost,
            policy=policy,
            chance=chance,
        )
    )


@pytest.mark.parametrize(
    ("verdict", "fields", "expected", "recorded"),
    [
        (V.ACCEPTED, {}, ("sent", 0, None), False),
        (V.RETURNED, {}, ("pending", 0, None), False),
        (V.RETURNED, {"wait_seconds": 7.0}, ("pending", 0, 7.0), False),
        (V.SUPPRESSED, {}, ("suppressed", 0, None), False),
        (V.HELD, {}, ("failed", 0, 120), False),
        (V.HELD, {"wait_seconds": 0.0}, ("failed", 0, 0.0), False),
        (V.HELD, {"is_own": True}, ("dead_lettered", 0, None), False),
        (V.THROTTLED, {}, ("pending", 0, 30), False),
        (V.THROTTLED, {"wait_seconds": 0.0}, ("pending", 0, 0.0), False),
        (V.MISCONFIGURED, {"wait_seconds": 9.0}, ("pending", 0, 9.0), True),
        (V.UNREACHABLE, {}, ("pending", 0, 15.0), True),
        (V.PERMANENT, {}, ("dead_lettered", 0, None), True),
        (V.TRANSIENT, {}, ("failed", 1, 15.0), True),
        (V.TRANSIENT, {"wait_seconds": 4.0}, ("failed", 1, 4.0), True),
        (V.TRANSIENT, {"is_probe": True}, ("pending", 0, 15.0), True),
        (V.TRANSIENT, {"is_own": True}, ("dead_lettered", 1, None), True),
        (V.AMBIGUOUS, {}, ("failed", 1, 120), True),
        (V.AMBIGUOUS, {"wait_seconds": 1.0}, ("failed", 1, 120), True),
        (V.AMBIGUOUS, {"is_probe": True}, ("failed", 0, 120), True),
    ],
)
def test_a_first_attempt(verdict, fields, expected, recorded):
    made = decision(verdict, **fields)
    assert made[:3] == expected
    assert (made.ended_by is None) == (made.status not in transitions.REASONS)
    assert [failure.verdict for failure in Outcome(verdict, **fields).failures] == (
        [verdict] if recorded else []
    )


@pytest.mark.parametrize("verdict", [V.TRANSIENT, V.UNREACHABLE, V.MISCONFIGURED, V.AMBIGUOUS, V.THROTTLED])
def test_a_failure_that_may_be_the_providers_dead_letters_nothing_however_often_it_comes(verdict):
    made = decision(verdict, retry=1000, attempts=1000, lost=3, provider="a")
    assert made.status in ("pending", "failed") and made.retry_count in (1000, 1001)


def test_more_lost_workers_than_retries_end_an_email():
    assert decision(V.AMBIGUOUS, retry=9, lost=2, code=LEASE_EXPIRED)[:2] == ("failed", 10)
    assert decision(V.AMBIGUOUS, lost=3, code=LEASE_EXPIRED).ended_by == "lease"
    assert decision(V.AMBIGUOUS, lost=3, code="ValueError").ended_by == "retries"
    assert decision(V.AMBIGUOUS, most=0).status == "dead_lettered"


@pytest.mark.parametrize("last", [V.ACCEPTED, V.TRANSIENT, V.UNREACHABLE, V.THROTTLED, V.PERMANENT])
def test_an_attempt_with_several_failures_counts_once(last):
    earlier = (Outcome(V.TRANSIENT, "a"), Outcome(V.TRANSIENT, "b"), Outcome(V.TRANSIENT, "c", is_probe=True))
    assert decision(last, retry=5, provider="d", earlier=earlier).retry_count == 6
    assert decision(last, retry=5, provider="d", earlier=earlier[2:]).retry_count == 5 + (last is V.TRANSIENT)


@pytest.mark.parametrize(
    ("verdict", "fields", "asks"),
    [
        (V.TRANSIENT, {}, True),
        (V.TRANSIENT, {"is_probe": True}, False),
        (V.UNREACHABLE, {}, False),
        (V.UNREACHABLE, {"earlier": (Outcome(V.TRANSIENT, "a"),)}, True),
        (V.AMBIGUOUS, {}, False),  # it is held first
        (V.ACCEPTED, {"earlier": (Outcome(V.TRANSIENT, "a"),)}, False),
    ],
)
def test_a_failure_that_counts_asks_whose_it_is_when_no_retry_is_left(verdict, fields, asks):
    outcome = Outcome(verdict, "p", **fields)
    assert outcome.needs_answer(retry_count=3, max_retries=3) == asks
    assert not outcome.needs_answer(retry_count=2, max_retries=3)


def test_every_provider_that_was_asked_is_recorded_also_when_a_later_one_accepts():
    earlier = (Outcome(V.TRANSIENT, "a"), Outcome(V.THROTTLED, "b"), Outcome(V.UNREACHABLE, "c"))
    assert decision(V.ACCEPTED, provider="d", earlier=earlier).status == "sent"
    assert [failure.provider for failure in Outcome(V.ACCEPTED, "d", earlier=earlier).failures] == ["a", "c"]


def test_an_attempt_that_counts_stays_failed_whatever_the_last_provider_said():
    earlier = (Outcome(V.TRANSIENT, "a"),)
    assert decision(V.UNREACHABLE, provider="b", earlier=earlier).status == "failed"
    assert decision(V.THROTTLED, provider="b", earlier=earlier).status == "failed"


@pytest.mark.parametrize("verdict", [V.ACCEPTED, V.RETURNED, V.SUPPRESSED, V.HELD])
def test_the_retries_that_were_used_stay_as_they_are(verdict):
    assert decision(verdict, retry=2).retry_count == 2


def test_waits_grow_with_the_attempts_up_to_the_cap_and_are_spread_by_chance():
    assert [decision(V.TRANSIENT, most=9, attempts=n, chance=0.99).wait_seconds for n in (0, 1, 2, 8)] == [
        pytest.approx(0.99 * longest) for longest in (30, 60, 120, 3600)
    ]
    assert decision(V.TRANSIENT, chance=0.0).wait_seconds == 0


def test_the_hold_grows_after_more_ambiguous_attempts_than_retries():
    """Each may have reached the customer, and without webhooks or other e-mails nothing ends them."""
    waits = [decision(V.AMBIGUOUS, attempts=n).wait_seconds for n in (0, 3, 4, 5, 8, 9, 500)]
    assert waits == [120, 120, 240, 480, 3600, 3600, 3600]
    patient = dataclasses.replace(POLICY, hold_seconds=7200)
    assert [decision(V.AMBIGUOUS, attempts=n, policy=patient).wait_seconds for n in (0, 9)] == [7200, 7200]


def test_given_delays_replace_base_and_cap_each_by_a_fifth_more_or_less():
    retries = RetryPolicy(30, 3600, delays_seconds=(300.0, 900.0, 3600.0), jitter=SLIGHT_JITTER)
    policy = EmailPolicy(retries, hold_seconds=120)
    waits = [decision(V.TRANSIENT, attempts=n, policy=policy, chance=0.5).wait_seconds for n in (0, 1, 2, 3)]
    assert waits == [300, 900, 3600, 3600]
    assert decision(V.TRANSIENT, policy=policy, chance=0.0).wait_seconds == pytest.approx(240)
    assert decision(V.TRANSIENT, policy=policy, chance=1.0).wait_seconds == pytest.approx(360)


def test_a_permanent_error_is_a_dead_letter_also_with_all_its_retries_left():
    assert decision(V.PERMANENT, retry=0, most=1000).status == "dead_lettered"


class TestError:
    def test_is_code_and_text(self):
        assert Outcome(V.PERMANENT, code="400", text="no such mailbox").error == "400 no such mailbox"
        assert Outcome(V.PERMANENT, text="no such mailbox").error == "no such mailbox"

    def test_is_the_verdict_when_there_is_neither(self):
        assert Outcome(V.TRANSIENT).error == "transient"

    def test_fits_a_text_column(self):
        error = Outcome(V.TRANSIENT, code="500", text="\x00\ud800" + "x" * 5000).error
        assert len(error) == TEXT_LIMIT and "\x00" not in error
        error.encode()


def test_the_policy_is_the_settings(settings):
    settings.RETRY_BACKOFF_BASE, settings.RETRY_BACKOFF_CAP, settings.AMBIGUOUS_HOLD_SECONDS = 1.0, 2.0, 3.0
    retries = RetryPolicy(base_seconds=1.0, cap_seconds=2.0, jitter=FULL_JITTER)
    assert current_policy() == EmailPolicy(retries, hold_seconds=3.0)
    settings.RETRY_DELAYS = [4.0]
    listed = dataclasses.replace(retries, delays_seconds=(4.0,), jitter=SLIGHT_JITTER)
    assert current_policy() == EmailPolicy(listed, hold_seconds=3.0)
