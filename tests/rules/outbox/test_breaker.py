"""The breaker as a value: what opens it, what closes it, and what must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.words import Breaker, BreakerState, Rules
from tests.kit.words import breaker as circuit

RULES = Rules()
NOW = 1000.0


def ask(breaker: Breaker, now: float = NOW, *, untried: bool = True) -> tuple[Breaker, float]:
    return circuit.enter(breaker, RULES, now=now, is_untried=untried)


def fail(
    breaker: Breaker, message: object, now: float = NOW, *, epoch=None, accepted_at=0.0, at_once=False
) -> Breaker:
    return circuit.failed(
        breaker,
        RULES,
        epoch=breaker.epoch if epoch is None else epoch,
        now=now,
        message=str(message),
        accepted_at=accepted_at,
        at_once=at_once,
        reason="503",
    )


def opened() -> Breaker:
    breaker = Breaker()
    for number in range(RULES.threshold):
        breaker = fail(breaker, number)
    return breaker


def test_opens_at_the_fifth_message_that_failed_in_a_row_and_not_before():
    breaker = Breaker()
    for number in range(1, 5):
        breaker = fail(breaker, number)
        assert (breaker.state(NOW), len(breaker.failed)) == (BreakerState.CLOSED, number)
    assert fail(breaker, 5).state(NOW) is BreakerState.OPEN


def test_one_message_that_fails_again_and_again_does_not_open_it():
    breaker = Breaker()
    for _ in range(50):
        breaker = fail(breaker, "the same")
    assert breaker.state(NOW) is BreakerState.CLOSED


def test_failures_do_not_open_it_within_a_second_of_an_acceptance():
    breaker = Breaker()
    for number in range(9):
        breaker = fail(breaker, number, accepted_at=NOW - 0.9)
    assert breaker.state(NOW) is BreakerState.CLOSED
    assert fail(breaker, 9, NOW + 0.2, accepted_at=NOW - 0.9).state(NOW) is BreakerState.OPEN


def test_an_acceptance_ends_the_run_and_is_remembered_for_all():
    breaker = Breaker()
    for number in range(4):
        breaker = fail(breaker, number)
    breaker = circuit.accepted(breaker, now=NOW)
    assert breaker.failed == ()
    for number in range(5):
        breaker = fail(breaker, number, NOW + 0.5)
    assert breaker.state(NOW) is BreakerState.CLOSED


def test_opens_at_once_when_the_provider_refuses_us():
    assert fail(Breaker(), 1, accepted_at=NOW, at_once=True).state(NOW) is BreakerState.OPEN


def test_open_it_lets_an_untried_message_through_every_5_seconds_before_any_that_waits():
    breaker, passed = opened(), []
    for second in range(1, 61):
        for untried in (True, False):
            breaker, wait = ask(breaker, NOW + second, untried=untried)
            if not wait:
                passed.append((second, untried))
    assert passed == [(second, True) for second in range(5, 61, 5)]


def test_alone_a_waiting_message_passes_every_30_seconds_however_long_it_was_open():
    breaker, passed = opened(), []
    for second in range(1, 3601):
        breaker, wait = ask(breaker, NOW + second, untried=False)
        if not wait:
            passed.append(second)
    assert passed == list(range(30, 3601, 30))


def test_says_when_the_next_message_may_go():
    assert ask(opened(), NOW + 2)[1] == 3
    assert ask(opened(), NOW + 2, untried=False)[1] == 28


def test_a_failed_probe_changes_nothing_and_an_acceptance_closes_it():
    breaker, _ = ask(opened(), NOW + 5)
    assert fail(breaker, 9, NOW + 6) == breaker
    closed = circuit.accepted(breaker, now=NOW + 7)
    assert closed.state(NOW + 7) is BreakerState.CLOSED and closed.failed == ()


def test_a_late_acceptance_of_before_the_opening_closes_it_too():
    assert circuit.accepted(opened(), now=NOW).state(NOW) is BreakerState.CLOSED


def test_a_late_failure_of_before_the_opening_does_not_open_a_closed_one():
    breaker = circuit.accepted(opened(), now=NOW)
    for number in range(10):
        breaker = fail(breaker, number, NOW + 32, epoch=0)
    assert breaker.state(NOW + 32) is BreakerState.CLOSED and breaker.failed == ()


def test_a_pause_keeps_everyone_away_counts_nothing_and_the_longest_wins():
    breaker = circuit.paused(Breaker(), until=NOW + 5, reason="429")
    breaker = circuit.paused(breaker, until=NOW + 2, reason="429")
    assert breaker.state(NOW) is BreakerState.PAUSED
    assert ask(breaker)[1] == 5 and breaker.failed == ()
    assert not ask(breaker, NOW + 5)[1]


def test_a_pause_keeps_probes_away_too():
    breaker = circuit.paused(opened(), until=NOW + 60, reason="429")
    assert ask(breaker, NOW + 59)[1]
    assert not ask(breaker, NOW + 61)[1]


def test_a_manual_override_wins_until_it_is_taken_back_and_leaves_nothing_behind():
    closed = circuit.forced(opened(), to="closed", now=NOW, reason="me")
    assert not ask(closed)[1]
    for number in range(9):
        closed = fail(closed, number)
    assert not ask(closed)[1]
    free = circuit.forced(closed, to=None, now=NOW, reason="me")
    assert free.state(NOW) is BreakerState.CLOSED and free.failed == ()
    open_ = circuit.forced(Breaker(), to="open", now=NOW, reason="me")
    assert ask(open_, NOW + 10**6)[1]
    assert not ask(circuit.forced(open_, to=None, now=NOW, reason="me"))[1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ok", "fail", "refuse", "wait", "pause"]), st.booleans(), st.floats(0, 20)
        ),
        max_size=80,
    )
)
def test_whatever_happens_an_open_one_lets_out_at_most_14_in_any_minute_and_always_one_in_the_end(steps):
    breaker, now = Breaker(), NOW
    probes: list[float] = []
    for number, (kind, untried, seconds) in enumerate(steps):
        is_open = breaker.opened_at is not None
        breaker, wait = ask(breaker, now, untried=untried)
        if is_open and not wait:
            probes.append(now)
        match kind:
            case "ok" if not wait:
                breaker, probes = circuit.accepted(breaker, now=now), []
            case "fail" | "refuse" if not wait:
                breaker = fail(breaker, number, now, at_once=kind == "refuse")
            case "pause":
                breaker = circuit.paused(breaker, until=now + seconds, reason="429")
            case "wait":
                now += seconds
        assert sum(at > now - 60 for at in probes) <= 14
    assert not ask(breaker, max(now, breaker.paused_until) + 30, untried=False)[1]


@pytest.mark.parametrize("untried", [True, False])
def test_a_closed_one_lets_everything_through_and_writes_nothing(untried):
    assert ask(Breaker(), untried=untried) == (Breaker(), 0.0)
