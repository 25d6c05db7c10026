"""The breaker as a value: what opens it, what closes it, and what must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.delivery import breaker as circuit
from outbox.delivery.breaker import Breaker, Permit, Rules, State

RULES = Rules(jitter=0.0)
NOW = 1000.0


def ask(breaker: Breaker, now: float = NOW, probe: int = 1) -> tuple[Breaker, Permit]:
    return circuit.enter(breaker, RULES, now=now, probe=probe)


def fail(breaker: Breaker, permit: Permit, now: float = NOW, *, at_once: bool = False, chance: float = 0.5):
    return circuit.failed(breaker, RULES, permit, now=now, chance=chance, at_once=at_once, reason="503")


def opened(now: float = NOW) -> Breaker:
    breaker = Breaker()
    for _ in range(RULES.threshold):
        breaker = fail(breaker, ask(breaker, now)[1], now)
    return breaker


def test_opens_at_the_fifth_failure_in_a_row_and_not_before():
    breaker = Breaker()
    for number in range(1, 5):
        breaker = fail(breaker, ask(breaker)[1])
        assert (breaker.state(NOW), breaker.failures) == (State.CLOSED, number)
    breaker = fail(breaker, ask(breaker)[1])
    assert breaker.state(NOW) is State.OPEN
    assert not ask(breaker)[1].allowed and ask(breaker)[1].wait == 30


def test_a_success_ends_the_run():
    breaker = Breaker()
    for _ in range(4):
        breaker = fail(breaker, ask(breaker)[1])
    breaker = circuit.succeeded(breaker, ask(breaker)[1], now=NOW)
    assert breaker.failures == 0


def test_opens_at_once_when_the_provider_refuses_us():
    assert fail(Breaker(), Permit(True), at_once=True).state(NOW) is State.OPEN


def test_lets_five_probes_out_when_its_time_is_over_and_no_sixth():
    breaker, permits = opened(), []
    for number in range(6):
        breaker, permit = ask(breaker, NOW + 31, probe=number)
        permits.append(permit.allowed)
    assert permits == [True] * 5 + [False]


def test_a_probe_whose_end_nobody_tells_is_forgotten():
    breaker = opened()
    for number in range(5):
        breaker, _ = ask(breaker, NOW + 31, probe=number)
    assert not ask(breaker, NOW + 31)[1].allowed
    assert ask(breaker, NOW + 31 + RULES.probe_seconds + 1)[1].allowed


def test_the_first_probe_that_succeeds_closes_it():
    breaker, permit = ask(opened(), NOW + 31)
    breaker = circuit.succeeded(breaker, permit, now=NOW + 32)
    assert breaker.state(NOW + 32) is State.CLOSED and breaker.failures == breaker.openings == 0


def test_each_reopening_lasts_twice_as_long_up_to_the_cap():
    breaker, now, waits = opened(), NOW, []
    for _ in range(8):
        now = breaker.open_until + 1
        breaker, permit = ask(breaker, now)
        breaker = fail(breaker, permit, now)
        waits.append(breaker.open_until - now)
    assert waits == [60, 120, 240, 480, 600, 600, 600, 600]


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.999])
def test_openings_are_spread_by_chance(chance):
    breaker = circuit.failed(
        Breaker(failures=4), Rules(), Permit(True), now=NOW, chance=chance, at_once=False, reason=""
    )
    assert breaker.open_until - NOW == pytest.approx(30 * (0.8 + 0.4 * chance))


def test_a_late_failure_of_before_the_opening_does_not_open_a_closed_one():
    old = Permit(True, epoch=0)
    breaker, probe = ask(opened(), NOW + 31)
    breaker = circuit.succeeded(breaker, probe, now=NOW + 31)
    for _ in range(10):
        breaker = fail(breaker, old, NOW + 32)
    assert breaker.state(NOW + 32) is State.CLOSED and breaker.failures == 0


def test_a_late_success_of_before_the_opening_does_not_close_an_open_one():
    breaker = circuit.succeeded(opened(), Permit(True, epoch=0), now=NOW)
    assert breaker.state(NOW) is State.OPEN


def test_a_pause_keeps_everyone_away_counts_nothing_and_the_longest_wins():
    breaker = circuit.paused(Breaker(), until=NOW + 5, reason="429")
    breaker = circuit.paused(breaker, until=NOW + 2, reason="429")
    assert ask(breaker)[1].wait == 5 and breaker.failures == 0
    assert ask(breaker, NOW + 5)[1].allowed


def test_a_persons_word_wins_until_it_is_taken_back():
    closed = circuit.forced(opened(), to="closed", now=NOW, reason="me")
    assert ask(closed)[1].allowed
    for _ in range(9):
        closed = fail(closed, ask(closed)[1])
    assert ask(closed)[1].allowed
    open_ = circuit.forced(Breaker(), to="open", now=NOW, reason="me")
    assert not ask(open_, NOW + 10**6)[1].allowed
    assert ask(circuit.forced(open_, to=None, now=NOW, reason="me"))[1].allowed


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ok", "fail", "refuse", "wait", "pause"]), st.floats(0, 1), st.floats(0, 700)
        ),
        max_size=60,
    )
)
def test_whatever_happens_it_is_never_shut_for_longer_than_its_cap_and_never_lets_out_a_sixth_probe(steps):
    breaker, now, rules = Breaker(), NOW, Rules()
    permits: list[Permit] = []
    for kind, chance, seconds in steps:
        breaker, permit = circuit.enter(breaker, rules, now=now, probe=len(permits))
        if permit.allowed:
            permits.append(permit)
        used = permits[int(chance * (len(permits) - 1))] if permits else Permit(True)
        if kind == "ok":
            breaker = circuit.succeeded(breaker, used, now=now)
        elif kind in ("fail", "refuse"):
            breaker = circuit.failed(
                breaker, rules, used, now=now, chance=chance, at_once=kind == "refuse", reason=""
            )
        elif kind == "pause":
            breaker = circuit.paused(breaker, until=now + seconds, reason="")
        else:
            now += seconds
        assert len(breaker.probes) <= rules.probes
        assert permit.allowed or permit.wait <= max(rules.cap * 1.2, 700)
        shut = [at for at in (breaker.open_until, breaker.paused_until) if at]
        later = max([now, *shut]) + rules.probe_seconds + 1
        assert circuit.enter(breaker, rules, now=later, probe=0)[1].allowed
