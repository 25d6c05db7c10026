"""Slots of the rate: when they are due, by how many takers ever, and that a send uses its slot in time."""

from __future__ import annotations

import bisect
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from local.machine import PROJECT, free_port
from local.servers import EmbeddedValkey
from outbox.gate import shared_gate
from outbox.gate.gate import LIFE_SECONDS, SendSlots
from outbox.gate.shared_gate import SharedGate
from tests.kit.fast import Fast
from tests.kit.words import Gate, make_client

LIMITS = [10, 50, 100]
#: The monotonic time of a stopped clock.
STOPPED = 1000.0
RATE, ALIVE = "orderpost:gate:rate", "orderpost:gate:alive"


def make(url: str, limit: int, *, burst: float | None = None, clock=time.monotonic) -> SendSlots:
    """Make the slots of one process, by default with the burst of a worker."""
    burst = max(1.0, limit / 20) if burst is None else burst
    return SendSlots(SharedGate(names=["one"], url=url, rate=limit, burst=burst), clock=clock)


def stopped(url: str, limit: int, **options) -> SendSlots:
    """Make slots by a clock that stands still, so that none lapses."""
    return make(url, limit, clock=lambda: 0.0, **options)


def take(slots: SendSlots, count: int) -> Iterator[float]:
    """Yield when slots are due by Redis' clock, without waiting for them. `slots` has a stopped clock."""
    for _ in range(count):
        slot = slots.take_slot(patience_seconds=600)
        assert slot.is_taken
        yield slot.due_at + slots.redis_time()


def most_in_a_second(dues: Iterable[float]) -> int:
    dues = sorted(dues)
    return max(bisect.bisect_left(dues, due + 1) - number for number, due in enumerate(dues))


@pytest.mark.parametrize("limit", LIMITS)
def test_at_most_a_tenth_more_than_the_limit_is_due_in_any_second(valkey_url, limit):
    chance = random.Random(14)
    workers = [stopped(valkey_url, limit) for _ in range(2)]
    dues: list[float] = []
    while len(dues) < 4 * limit:
        worker = chance.choice(workers)
        dues += take(worker, chance.randrange(1, 12))
        if chance.random() < 0.2:
            worker.give_back()
    assert limit <= most_in_a_second(dues) <= 1.1 * limit


@pytest.mark.parametrize(("before", "after"), [(100, 10), (10, 100)])
def test_a_changed_limit_holds_as_soon_as_both_workers_have_it(valkey_url, before, after):
    old, new = stopped(valkey_url, before), stopped(valkey_url, after)
    first = list(take(old, before))
    mixed = [due for _ in range(5) for worker in (old, new) for due in take(worker, 5)]
    last = list(take(new, 3 * after)) + list(take(stopped(valkey_url, after), after))
    assert most_in_a_second(first + mixed + last) <= 1.1 * max(before, after)
    assert after <= most_in_a_second(due for due in last if due > max(mixed)) <= 1.1 * after


def test_slots_are_never_more_than_the_burst_and_the_rate_since(valkey_url):
    workers = [stopped(valkey_url, 200, burst=4) for _ in range(3)]
    dues = sorted(due for number in range(300) for due in take(workers[number % 3], 1))
    assert not [due for count, due in enumerate(dues, 1) if count > 4 + 200 * (due - dues[0] + 1e-4)]


class TestUnusedSlots:
    @pytest.fixture
    def rate_time(self, valkey_url):
        """Return a function that reads the end of the last slot that is taken, in microseconds."""
        with make_client(url=valkey_url) as client:
            yield lambda: int(client.get(RATE))

    def test_go_back_to_the_rate_once(self, valkey_url, rate_time):
        slots = stopped(valkey_url, 250, burst=1)
        slots.take_slot(patience_seconds=60)
        before = rate_time()
        for _ in range(2):
            slots.give_back()
            assert rate_time() == before - 9 * 4000

    def test_lapse_where_another_process_has_taken_later_ones(self, valkey_url, rate_time):
        slots, other = (stopped(valkey_url, 250, burst=1) for _ in range(2))
        slots.take_slot(patience_seconds=60)
        other.take_slot(patience_seconds=60)
        before = rate_time()
        slots.give_back()
        assert rate_time() == before

    def test_are_not_used_once_they_lapsed(self, valkey_url, rate_time):
        now = 0.0
        slots = make(valkey_url, 250, burst=1, clock=lambda: now)
        slots.take_slot(patience_seconds=60)
        before = rate_time()
        now = 0.2
        slots.take_slot(patience_seconds=60)
        assert rate_time() > before


def test_a_process_that_only_shows_the_breakers_gets_no_share(valkey_url):
    shown = gate(valkey_url, 40, Clock([]))
    with make_client(url=valkey_url) as client:
        shown.read_providers()
        assert client.zcard(ALIVE) == 0
        assert shown.enter().provider == "one"
        assert client.zcard(ALIVE) == 1


@pytest.fixture
def _time_stands_still(monkeypatch):
    """Stop the clocks of Redis and of this process, so that slots do not depend on the machine's speed."""
    stopped = shared_gate._REFRESH.replace("redis.call('TIME')", "{1000000, 0}").replace("60000", "3600000")
    monkeypatch.setattr(shared_gate, "_REFRESH", stopped)
    monkeypatch.setattr(shared_gate, "time", SimpleNamespace(monotonic=lambda: STOPPED, time=time.time))


@pytest.mark.usefixtures("_time_stands_still")
class TestWithoutRedis:
    @pytest.fixture
    def valkey(self, tmp_path: Path, fast: Fast) -> Iterator[EmbeddedValkey]:
        """Start a server that two workers use. A worker asks for it again at once while it is away."""
        fast.gate()
        server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
        server.start(log=tmp_path / "log")
        with make_client(url=server.url) as client:
            client.zadd(ALIVE, {"another:1": time.time() + 3600})
        yield server
        server.stop()

    @pytest.mark.parametrize("limit", LIMITS)
    def test_two_workers_keep_to_the_limit_while_it_goes_and_comes_back(self, valkey, tmp_path, limit):
        shared = [
            SharedGate(names=["one"], url=valkey.url, rate=limit, burst=max(1.0, limit / 20))
            for _ in range(2)
        ]
        workers = [SendSlots(state, clock=lambda: STOPPED) for state in shared]
        dues: list[float] = []

        def take_of_both(count: int) -> None:
            for number in range(count):
                slot = workers[number % 2].take_slot(patience_seconds=600)
                dues.append(slot.due_at)  # the clock of this machine, whoever hands slots out

        take_of_both(2 * limit)
        for worker in workers:
            worker.give_back()
        valkey.stop()
        take_of_both(2 * limit)
        assert all(state.is_away for state in shared)
        valkey.start(log=tmp_path / "log2")  # empty: it has forgotten the rate's time
        take_of_both(2 * limit)
        assert not any(state.is_away for state in shared)
        # Alone, a worker does not know of the slots that the other one took last.
        assert limit <= most_in_a_second(dues) <= 1.1 * limit + len(workers)

    def test_the_rate_is_this_processs_share(self, valkey):
        slots = make(valkey.url, 40, burst=1, clock=lambda: STOPPED)
        slots.take_slot(patience_seconds=60)
        slots.give_back()
        valkey.stop()
        dues = [slots.take_slot(patience_seconds=60).due_at for _ in range(11)]
        assert dues[-1] - dues[0] == pytest.approx(10 * 2 / 40)


class Clock:
    """A clock that moves when somebody waits, by as much longer or shorter as `errors` say in turn."""

    def __init__(self, errors: Iterable[float]) -> None:
        self.now, self.errors = 1000.0, iter(errors)
        self.dues: list[float] = []  # for which somebody waited

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.dues.append(self.now + seconds)
        self.now += max(0.0, seconds + next(self.errors))
        return False


def gate(url: str, limit: int, clock: Clock) -> Gate:
    return Gate(providers=["one"], url=url, rate=limit, burst=max(1.0, limit / 20), clock=clock)


def test_a_send_uses_its_slot_no_earlier_than_it_is_due_and_at_most_a_tenth_of_a_second_later(valkey_url):
    chance = random.Random(14)
    clock = Clock(chance.choice([-0.004, 0.0, 0.03, LIFE_SECONDS + 0.01, 0.3]) for _ in range(10_000))
    limited, waited = gate(valkey_url, 50, clock), 0
    for _ in range(100):
        due_before = len(clock.dues)
        assert limited.enter(patience_seconds=600, pause=clock.wait).provider == "one"
        if len(clock.dues) > due_before:
            waited += 1
            assert clock.dues[-1] - 1e-9 <= clock() <= clock.dues[-1] + 0.1
    assert waited > 50
    assert len(set(clock.dues)) > waited  # slots that lapsed during a wait were not used


def test_a_wait_that_is_always_too_long_ends_with_the_patience(valkey_url):
    clock = Clock(iter(lambda: 1.0, None))
    limited = gate(valkey_url, 10, clock)
    limited.enter()
    assert limited.enter(patience_seconds=5.0, pause=clock.wait).provider == ""
    assert clock() - 1000.0 < 5.0 + 2.0


#: Take slots by a clock that stands still, so that none lapses on a busy machine.
HAMMER = """
import sys
from outbox.gate.gate import SendSlots
from outbox.gate.shared_gate import SharedGate
from runtime.process.redis_client import make_client
make_client.__kwdefaults__["read_seconds"] = 240.0
shared = SharedGate(names=["one"], url=sys.argv[1], rate=50, burst=2.5)
slots = SendSlots(shared, clock=lambda: 0.0)
print("ready", flush=True)
sys.stdin.readline()
while (slot := slots.take_slot(patience_seconds=5.0)).is_taken:
    print(slot.due_at + slots.redis_time())
assert not shared.is_away
"""


def test_four_processes_at_50_a_second_take_no_more_than_55_slots_of_any_second(valkey_url):
    command = [sys.executable, "-c", HAMMER, valkey_url]
    with contextlib.ExitStack() as stack:
        running = []
        for _ in range(4):
            process = subprocess.Popen(
                command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)  # no process outlives this test
            running.append(process)
        for process in running:
            assert process.stdout.readline() == "ready\n"
        for process in running:
            process.stdin.write("go\n")
            process.stdin.flush()
        times = [float(line) for process in running for line in process.communicate()[0].split()]
        assert all(process.returncode == 0 for process in running)
    assert 50 <= most_in_a_second(times) <= 55
