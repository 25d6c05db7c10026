"""What an attempt leads to: the table of docs/guarantee.md, line by line, without a database."""

from __future__ import annotations

import dataclasses

import pytest

from outbox.delivery.outcomes import TEXT_LIMIT, Decision, Outcome, Policy, Verdict, decide

POLICY = Policy(base=30, cap=3600, hold=120)
V = Verdict


def decision(
    verdict: Verdict, *, retry: int = 0, most: int = 3, chance: float = 0.5, **fields: object
) -> Decision:
    outcome = Outcome(verdict, **fields)  # type: ignore[arg-type]
    return decide(outcome=outcome, retry_count=retry, max_retries=most, policy=POLICY, chance=chance)


@pytest.mark.parametrize(
    ("verdict", "fields", "expected"),
    [
        (V.ACCEPTED, {}, Decision("sent", 0, None, failed=False)),
        (V.RETURNED, {}, Decision("pending", 0, None, failed=False)),
        (V.RETURNED, {"wait": 7.0}, Decision("pending", 0, 7.0, failed=False)),
        (V.SUPPRESSED, {}, Decision("suppressed", 0, None, failed=False)),
        (V.HELD, {}, Decision("failed", 0, 120, failed=False)),
        (V.HELD, {"wait": 0.0}, Decision("failed", 0, 0.0, failed=False)),
        (V.THROTTLED, {}, Decision("pending", 0, 30, failed=False)),
        (V.THROTTLED, {"wait": 0.0}, Decision("pending", 0, 0.0, failed=False)),
        (V.MISCONFIGURED, {"wait": 9.0}, Decision("pending", 0, 9.0, failed=False)),
        (V.PERMANENT, {}, Decision("dead_lettered", 0, None, failed=True)),
        (V.TRANSIENT, {}, Decision("failed", 1, 15.0, failed=True)),
        (V.TRANSIENT, {"wait": 4.0}, Decision("failed", 1, 4.0, failed=True)),
        (V.TRANSIENT, {"charged": False}, Decision("pending", 0, 30, failed=True)),
        (V.TRANSIENT, {"charged": False, "wait": 5.0}, Decision("pending", 0, 5.0, failed=True)),
        (V.AMBIGUOUS, {}, Decision("failed", 1, 120, failed=True)),
        (V.AMBIGUOUS, {"wait": 1.0}, Decision("failed", 1, 1.0, failed=True)),
        (V.AMBIGUOUS, {"charged": False}, Decision("failed", 0, 120, failed=True)),
    ],
)
def test_a_first_attempt(verdict, fields, expected):
    assert decision(verdict, **fields) == expected


@pytest.mark.parametrize("verdict", [V.TRANSIENT, V.AMBIGUOUS])
def test_the_last_retry_is_tried_and_the_next_failure_is_a_dead_letter(verdict):
    assert decision(verdict, retry=2).retry_count == 3
    assert decision(verdict, retry=2).status == "failed"
    assert decision(verdict, retry=3) == Decision("dead_lettered", 3, None, failed=True)
    assert decision(verdict, retry=0, most=0) == Decision("dead_lettered", 0, None, failed=True)


@pytest.mark.parametrize("verdict", [V.TRANSIENT, V.AMBIGUOUS])
def test_what_is_not_the_mails_own_fault_dead_letters_nothing(verdict):
    later = decision(verdict, retry=3, charged=False)
    assert later.status in ("pending", "failed") and later.retry_count == 3


@pytest.mark.parametrize(
    "verdict", [V.ACCEPTED, V.RETURNED, V.SUPPRESSED, V.HELD, V.THROTTLED, V.MISCONFIGURED]
)
def test_the_retries_that_were_used_stay_as_they_are(verdict):
    assert decision(verdict, retry=2).retry_count == 2


def test_waits_grow_with_the_retries_and_are_spread_by_chance():
    assert [decision(V.TRANSIENT, retry=n, most=9, chance=0.99).wait for n in (0, 1, 2)] == [
        pytest.approx(0.99 * longest) for longest in (30, 60, 120)
    ]
    assert decision(V.TRANSIENT, chance=0.0).wait == 0


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


def test_what_an_attempt_led_to_cannot_be_changed_afterwards():
    for value, name in (
        (Outcome(V.ACCEPTED), "wait"),
        (Decision("sent", 0, None, failed=False), "status"),
        (POLICY, "base"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 1.0)


def test_the_policy_is_the_settings(settings):
    settings.RETRY_BACKOFF_BASE, settings.RETRY_BACKOFF_CAP, settings.AMBIGUOUS_HOLD_SECONDS = 1.0, 2.0, 3.0
    assert Policy.from_settings() == Policy(base=1.0, cap=2.0, hold=3.0)
