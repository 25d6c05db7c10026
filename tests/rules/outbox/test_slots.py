"""When slots of the rate are due, by how many takers ever, and that a send uses its slot in time."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from local.machine import free_port
from local.servers import EmbeddedValkey
from outbox.delivery.gate.slots import LIFE_SECONDS, Slot
from tests.kit.words import Gate

LIMITS = [10, 50, 100]


def make(url: str, limit: int, **options) -> Gate:
    """Make a gate as `notifications.delivery.process` does, with the default burst."""
    return Gate(providers=["one"], url=url, rate=limit, burst=max(1.0, limit / 20), **options)


def take_slots(gate: Gate, count: int) -> Iterator[float]:
    """Yield when slots are due by Redis' clock, without waiting for them."""
    for _ in range(count):
        slot = gate._slots.take_slot(patience_seconds=600)
        assert slot.is_taken
        yield slot.due_at + gate._slots._ahead


def most_in_a_second(dues: Iterable[float]) -> int:
    dues = sorted(dues)
    return max(bisect.bisect_left(dues, due + 1) - number for number, due in enumerate(dues))


@pytest.mark.parametrize("limit", LIMITS)
def test_at_most_a_tenth_more_than_the_limit_is_due_in_any_second(valkey_url, limit):
    chance = random.Random(14)
    gates = [make(valkey_url, limit) for _ in range(2)]
    dues: list[float] = []
    while len(dues) < 4 * limit:
        gate = chance.choice(gates)
        dues += take_slots(gate, chance.randrange(1, 12))
        if chance.random() < 0.2:
            gate.rest()
    assert limit <= most_in_a_second(dues) <= 1.1 * limit


@pytest.mark.parametrize(("before", "after"), [(100, 10), (10, 100)])
def test_a_changed_limit_holds_as_soon_as_both_workers_have_it(valkey_url, before, after):
    old, new = make(valkey_url, before), make(valkey_url, after)
    first = list(take_slots(old, before))
    mixed = [due for _ in range(5) for gate in (old, new) for due in take_slots(gate, 5)]
    last = list(take_slots(new, 3 * after)) + list(take_slots(make(valkey_url, after), after))
    assert most_in_a_second(first + mixed + last) <= 1.1 * max(before, after)
    assert after <= most_in_a_second(due for due in last if due > max(mixed)) <= 1.1 * after


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
    server.start(log=tmp_path / "log")
    yield server
    server.stop()


@pytest.mark.parametrize("limit", LIMITS)
def test_two_workers_keep_to_the_limit_while_redis_goes_and_comes_back(valkey, tmp_path, limit):
    gates = [make(valkey.url, limit) for _ in range(2)]
    dues: list[float] = []

    def take_of_both(count: int) -> None:
        for number in range(count):
            slot = gates[number % 2]._slots.take_slot(patience_seconds=600)
            dues.append(slot.due_at)  # the clock of this machine, whoever hands slots out

    take_of_both(2 * limit)
    for gate in gates:
        gate.rest()
        gate._shared._alive = 2  # as if both had reported as processes of their own
    valkey.stop()
    take_of_both(2 * limit)
    assert not any(gate.is_shared for gate in gates)
    valkey.start(log=tmp_path / "log2")  # empty: it has forgotten the rate's time
    for gate in gates:
        gate._shared._away_until = 0.0
    take_of_both(2 * limit)
    assert all(gate.is_shared for gate in gates)
    # Alone, a worker does not know of the slots that the other one took last.
    assert limit <= most_in_a_second(dues) <= 1.1 * limit + len(gates)


class Clock:
    """A clock that moves when somebody waits, by as much longer or shorter as `errors` say in turn."""

    def __init__(self, errors: Iterable[float]) -> None:
        self.now, self.errors = 1000.0, iter(errors)

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += max(0.0, seconds + next(self.errors))
        return False


def recorded(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> list[Slot]:
    """Return the list of the slots that the gate will have taken."""
    slots: list[Slot] = []
    real = gate._slots.take_slot

    def take_slot(*, patience_seconds: float) -> Slot:
        slots.append(real(patience_seconds=patience_seconds))
        return slots[-1]

    monkeypatch.setattr(gate._slots, "take_slot", take_slot)
    return slots


def test_a_send_uses_its_slot_no_earlier_than_it_is_due_and_at_most_a_tenth_of_a_second_later(
    valkey_url, monkeypatch
):
    chance = random.Random(14)
    clock = Clock(chance.choice([-0.004, 0.0, 0.03, LIFE_SECONDS + 0.01, 0.3]) for _ in range(10_000))
    gate = make(valkey_url, 50, clock=clock)
    slots = recorded(gate, monkeypatch)
    for _ in range(100):
        assert gate.enter(patience_seconds=600, pause=clock.wait).provider == "one"
        assert slots[-1].due_at <= clock() <= slots[-1].due_at + 0.1
    assert len(slots) > 100  # those that lapsed during a wait were not used


def test_a_wait_that_is_always_too_long_ends_with_the_patience(valkey_url):
    clock = Clock(iter(lambda: 1.0, None))
    gate = make(valkey_url, 10, clock=clock)
    gate.enter()
    entry = gate.enter(patience_seconds=5.0, pause=clock.wait)
    assert entry.provider == ""
    assert clock() - 1000.0 < 5.0 + 2.0
