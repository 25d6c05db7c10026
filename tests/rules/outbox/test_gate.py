"""The gate over several processes: one breaker and one rate for all, and each by itself without Redis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.machine import PROJECT, free_port
from local.servers import EmbeddedValkey
from outbox.delivery.gate import slots
from outbox.delivery.gate.slots import TAKE
from tests.kit.words import Capacity, Gate, Rules, State

QUICK = Rules(untried_every_seconds=0.3, waiting_every_seconds=0.3)


def make(url: str, *, rate: float = 0, burst: float = 1, names=("one", "two"), rules: Rules = QUICK) -> Gate:
    return Gate(providers=names, url=url, rate=rate, burst=burst, rules=rules)


def shut(gate: Gate, name: str = "one") -> None:
    for number in range(gate.rules.threshold):
        gate.failed(gate.enter(only=name), message=str(number), reason="503")


def test_an_opening_in_one_process_is_known_to_every_other_after_ten_sends_at_most(valkey_url):
    rules = Rules(
        untried_every_seconds=60.0, waiting_every_seconds=60.0
    )  # no probe, however slow this test is
    here, there = make(valkey_url, rules=rules), make(valkey_url, rules=rules)
    assert there.enter().provider == "one"
    shut(here)
    for _ in range(TAKE - 1):
        there.enter()
    entry = there.enter()
    assert (entry.provider, entry.permit.is_probe) == ("two", False)
    shut(there, "two")
    for _ in range(TAKE - 1):
        here.enter()
    nobody = here.enter()
    assert nobody.provider == "" and 0 < nobody.wait_seconds <= 60.0


def test_a_look_that_was_answered_before_another_thread_opened_the_breaker_does_not_close_it(valkey_url):
    gate = make(valkey_url, names=("one",))
    shared = gate._shared
    real = shared._refresh

    def overtaken(**options):
        answer = real(**options)
        shared._refresh = real
        shut(gate)
        return answer

    shared._refresh = overtaken
    shared.refresh()
    assert shared.known["one"].opened_at is not None


def test_failures_of_several_processes_make_one_run(valkey_url):
    gates = [make(valkey_url) for _ in range(5)]
    for number, gate in enumerate(gates):
        assert gate.read_providers()[0].state is State.CLOSED
        gate.failed(gate.enter(only="one"), message=str(number), reason="503")
    assert gates[0].read_providers()[0].state is State.OPEN


def test_all_processes_together_let_one_message_through_at_a_time(valkey_url):
    gates = [make(valkey_url, names=("one",)) for _ in range(4)]
    shut(gates[0])
    time.sleep(0.35)
    entries = [gate.enter(is_untried=True) for gate in gates for _ in range(4)]
    (probe,) = [entry for entry in entries if entry.provider]
    assert probe.permit.is_probe
    gates[3].accepted(probe)
    assert not gates[1].enter().permit.is_probe
    assert gates[0].capacity(batch=100) == Capacity(100)


def test_a_message_that_was_tried_tests_an_open_breaker_only_while_no_provider_is_closed(valkey_url):
    gate = make(valkey_url)
    shut(gate)
    time.sleep(0.35)
    assert gate.enter().provider == "two"
    assert gate.enter(only="one").provider == ""
    assert gate.enter(without=["two"]).permit.is_probe  # the closed one has refused it already
    time.sleep(0.35)
    assert gate.enter(is_untried=True).permit.is_probe
    shut(gate, "two")
    time.sleep(0.35)
    assert gate.enter(only="one").permit.is_probe


def test_providers_that_are_to_be_last_come_after_the_others_in_their_order(valkey_url):
    gate = make(valkey_url, names=("one", "two", "three"))
    assert gate.enter(last=["one"]).provider == "two"
    assert gate.enter(last=["two", "one"]).provider == "three"
    assert gate.enter(last=["two", "one"], without=["three"]).provider == "two"
    assert gate.enter(last=["three", "one", "two"]).provider == "three"


def test_a_field_of_a_later_release_is_ignored_and_does_not_stop_a_change(valkey_url):
    gate = make(valkey_url)
    later = '{"epoch": 3, "opened_at": 1.0, "of_a_later_release": [1]}'
    gate._shared._client.set("orderpost:breaker:one", later)
    assert gate.read_providers()[0].state is State.OPEN
    gate.accepted(gate.enter(only="one", is_untried=True))
    assert make(valkey_url).read_providers()[0].state is State.CLOSED


def test_an_acceptance_of_another_process_within_a_second_keeps_it_closed(valkey_url):
    here, there = make(valkey_url, rules=Rules()), make(valkey_url, rules=Rules())
    for number in range(4):
        there.failed(there.enter(only="one"), message=str(number), reason="503")
    here.accepted(here.enter(only="one"))
    for number in range(9):
        there.failed(there.enter(only="one"), message=str(number), reason="503")
    assert here.read_providers()[0].state is State.CLOSED


def test_there_is_capacity_for_one_row_when_a_probe_may_go_and_for_none_before(valkey_url):
    gate = make(valkey_url, names=("one",))
    assert gate.capacity(batch=100) == Capacity(100)
    shut(gate)
    before = gate.capacity(batch=100)
    assert before.rows == 0 and 0 < before.wait_seconds <= 0.3
    time.sleep(0.35)
    assert gate.capacity(batch=100) == Capacity(1, 0.05, is_untried_first=True, is_retry_allowed=True)
    gate.enter(is_untried=True)
    assert gate.capacity(batch=100).rows == 0


def test_an_acceptance_costs_no_round_trip_while_nothing_failed(valkey_url, monkeypatch):
    gate = make(valkey_url)
    entry = gate.enter()
    asked = []
    monkeypatch.setattr(gate._shared, "_ask", lambda call: asked.append(call))
    gate.accepted(entry)
    assert asked == []


def test_ten_sends_cost_one_round_trip(valkey_url, monkeypatch):
    monkeypatch.setattr(slots, "LIFE_SECONDS", 60.0)
    gate = make(valkey_url, rate=1000)
    gate.capacity(batch=1)  # counts the processes
    asked, ask = [], gate._shared._ask
    monkeypatch.setattr(gate._shared, "_ask", lambda call: asked.append(call) or ask(call))
    for _ in range(20):
        gate.accepted(gate.enter())
    assert len(asked) == 2


def test_a_pause_that_a_provider_asked_for_stops_the_own_process_at_once(valkey_url):
    gate = make(valkey_url, names=("one",))
    gate.pause(gate.enter(), seconds=60, reason="429")
    assert gate.enter().provider == ""


def test_a_pause_lets_at_most_ten_sends_of_each_other_process_begin(valkey_url):
    gates = [make(valkey_url, names=("one",)) for _ in range(3)]
    first, *_ = [gate.enter() for gate in gates]
    gates[0].pause(first, seconds=60, reason="429")
    for gate in gates[1:]:
        assert sum(bool(gate.enter().provider) for _ in range(40)) < TAKE


def test_slots_that_were_not_used_go_back_to_the_rate(valkey_url):
    gate = make(valkey_url, rate=250, burst=1)
    gate.enter()
    before = int(gate._shared._client.get("orderpost:gate:rate"))
    gate.rest()
    assert int(gate._shared._client.get("orderpost:gate:rate")) == before - 9 * 4000  # microseconds
    gate.rest()
    assert int(gate._shared._client.get("orderpost:gate:rate")) == before - 9 * 4000


def test_slots_that_were_not_used_lapse_where_another_process_has_taken_later_ones(valkey_url):
    gate, other = make(valkey_url, rate=250, burst=1), make(valkey_url, rate=250, burst=1)
    gate.enter()
    other.enter()
    due = gate._shared._client.get("orderpost:gate:rate")
    gate.rest()
    assert gate._shared._client.get("orderpost:gate:rate") == due


def test_a_slot_that_waited_too_long_for_a_send_is_not_used(valkey_url):
    gate = make(valkey_url, rate=250, burst=1)
    gate.enter()
    time.sleep(0.2)
    due = gate._shared._client.get("orderpost:gate:rate")
    gate.enter()
    assert gate._shared._client.get("orderpost:gate:rate") != due


def test_slots_of_several_processes_are_never_more_than_the_rate_lets_out(valkey_url, monkeypatch):
    monkeypatch.setattr(slots, "LIFE_SECONDS", 60.0)  # each one is used, however slow this machine is
    gates = [make(valkey_url, rate=200, burst=4) for _ in range(3)]
    clock, began = gates[0]._shared, gates[0]._shared.refresh().now
    used = []
    for number in range(300):
        slot = gates[number % 3]._slots.take_slot(patience_seconds=60)
        used.append(clock.refresh().now + max(0.0, slot.due_at - time.monotonic()) - began)
    used.sort()
    assert len(used) == 300
    # A hundredth of a second: the time was read a moment after the slot was taken.
    assert not [at for count, at in enumerate(used, 1) if count > 4 + 200 * (at + 0.01)]


def test_a_manual_override_is_for_everyone_and_survives_a_restart(valkey_url):
    assert make(valkey_url).force("one", "open", reason="by anna")
    fresh = make(valkey_url)
    assert fresh.enter().provider == "two"
    (view, _) = fresh.read_providers()
    assert (view.state, view.breaker.forced, view.breaker.reason) == (State.OPEN, "open", "by anna")
    fresh.force("one", None, reason="by anna")
    assert make(valkey_url).enter().provider == "one"


def test_a_flushed_redis_starts_closed(valkey_url):
    gate = make(valkey_url)
    shut(gate)
    gate._shared._client.flushdb()
    gate.rest()
    assert gate.enter().provider == "one"


HAMMER = """
import sys, time
from outbox.delivery.gate.gate import Gate
gate = Gate(providers=["one"], url=sys.argv[1], rate=50, burst=2.5)
until = time.time() + float(sys.argv[2])
while time.time() < until:
    gate.enter()
    print(time.time(), flush=True)
"""


def hammer(url: str, *, processes: int, seconds: float) -> list[float]:
    command = [sys.executable, "-c", HAMMER, url, str(seconds)]
    running = [
        subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    return sorted(float(line) for one in running for line in one.communicate(timeout=60)[0].split())


def test_four_processes_at_50_a_second_send_no_more_than_55_in_any_second(valkey_url):
    times = hammer(valkey_url, processes=4, seconds=3)
    windows = [sum(start <= at < start + 1 for at in times) for start in times]
    assert max(windows) <= 55
    assert len(times) >= 120  # and it is not for want of sending


class TestWithoutRedis:
    @pytest.fixture
    def valkey(self, tmp_path: Path):
        server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
        server.start(log=tmp_path / "log")
        yield server
        if server._process:
            os.kill(server._process.pid, signal.SIGCONT)
        server.stop()

    @pytest.mark.parametrize("how", ["killed", "frozen"])
    def test_a_process_goes_on_alone_keeps_what_it_knew_and_shares_again(self, valkey, how, tmp_path):
        gate = make(valkey.url, rules=Rules())
        shut(gate)
        if how == "killed":
            valkey.stop()
        else:
            os.kill(valkey._process.pid, signal.SIGSTOP)
        gate.rest()
        assert gate.enter().provider == "two"  # it was told that one is open
        assert not gate.is_shared
        began = time.monotonic()
        for _ in range(200):
            gate.enter()
        assert time.monotonic() - began < 5  # not half a second for each
        shut(gate, "two")
        assert gate.enter().provider == ""  # alone, it still breaks circuits
        if how == "killed":
            valkey.start(log=tmp_path / "log2")
        else:
            os.kill(valkey._process.pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while not gate.is_shared and time.monotonic() < deadline:
            gate.enter()
            time.sleep(0.05)
        assert gate.is_shared

    def test_the_rate_is_then_this_processes_share(self, valkey):
        gates = [make(valkey.url, rate=40, burst=1) for _ in range(2)]
        gates[0].enter()
        gates[0]._shared._client.zadd("orderpost:gate:alive", {"another:1": time.time()})
        gates[0]._shared._alive_at = 0
        gates[0]._shared.refresh()
        gates[0].rest()
        valkey.stop()
        dues = [gates[0]._slots.take_slot(patience_seconds=60).due_at for _ in range(11)]
        assert dues[-1] - dues[0] == pytest.approx(10 * 2 / 40, abs=0.1)

    def test_nothing_is_raised_when_it_was_never_there(self):
        gate = make("redis://127.0.0.1:1/0", rate=100)
        entry = gate.enter()
        assert entry.provider == "one"
        gate.failed(entry, message="m", reason="x")
        gate.accepted(entry)
        gate.pause(entry, seconds=1, reason="x")
        assert gate.force("one", "open", reason="me") is False
        assert gate.capacity(batch=10).rows > 0
