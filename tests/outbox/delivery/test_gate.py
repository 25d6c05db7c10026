"""The gate over several processes: one breaker and one rate for all, and each by itself without Redis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from config.local.machine import PROJECT, free_port
from config.local.servers import EmbeddedValkey
from outbox.delivery.breaker import Rules, State
from outbox.delivery.gate import Gate

QUICK = Rules(seconds=0.3, cap=0.6, jitter=0.0)


def make(url: str, *, rate: float = 0, burst: float = 1, names=("one", "two"), rules: Rules = QUICK) -> Gate:
    return Gate(providers=names, url=url, rate=rate, burst=burst, rules=rules)


def shut(gate: Gate, name: str = "one") -> None:
    for _ in range(gate.rules.threshold):
        entry = gate.enter(only=name)
        gate.failed(entry, reason="503 down")


def test_an_opening_in_one_process_is_known_to_every_other_at_its_next_send(valkey_url):
    here, there = make(valkey_url), make(valkey_url)
    assert there.enter().provider == "one"
    shut(here)
    entry = there.enter()
    assert (entry.provider, entry.permit.probe) == ("two", None)
    shut(there, "two")
    nobody = here.enter()
    assert nobody.provider == "" and 0 < nobody.wait <= 0.3


def test_failures_of_several_processes_make_one_run(valkey_url):
    gates = [make(valkey_url) for _ in range(5)]
    opened = [gate.failed(gate.enter(only="one"), reason="503") for gate in gates]
    assert opened == [False] * 4 + [True]


def test_all_processes_together_let_five_probes_out(valkey_url):
    gates = [make(valkey_url, names=("one",)) for _ in range(4)]
    shut(gates[0])
    time.sleep(0.35)
    entries = [gate.enter() for gate in gates for _ in range(4)]
    probes = [entry for entry in entries if entry.provider]
    assert len(probes) == 5 and len({entry.permit.probe for entry in probes}) == 5
    assert gates[0].room(batch=100) == (0, 1.0)
    gates[3].succeeded(probes[0])
    assert gates[1].enter().permit.probe is None
    assert gates[0].room(batch=100) == (100, 0.0)


def test_there_is_room_for_as_many_rows_as_probes_when_half_open_and_for_none_when_open(valkey_url):
    gate = make(valkey_url, names=("one",))
    assert gate.room(batch=100) == (100, 0.0)
    shut(gate)
    rows, wait = gate.room(batch=100)
    assert rows == 0 and 0 < wait <= 0.3
    time.sleep(0.35)
    assert gate.room(batch=100) == (5, 0.0)


def test_a_success_costs_no_round_trip_while_nothing_failed(valkey_url, monkeypatch):
    gate = make(valkey_url)
    entry = gate.enter()
    asked = []
    monkeypatch.setattr(gate, "_ask", lambda call: asked.append(call))
    gate.succeeded(entry)
    assert asked == []


def test_a_send_costs_one_round_trip(valkey_url, monkeypatch):
    gate = make(valkey_url, rate=1000)
    gate.enter()
    asked, ask = [], gate._ask
    monkeypatch.setattr(gate, "_ask", lambda call: asked.append(call) or ask(call))
    for _ in range(10):
        gate.succeeded(gate.enter())
    assert len(asked) == 10


def test_a_persons_word_is_for_everyone_and_survives_a_restart(valkey_url):
    assert make(valkey_url).force("one", "open", reason="by anna")
    fresh = make(valkey_url)
    assert fresh.enter().provider == "two"
    (view, _) = fresh.views()
    assert (view.state, view.breaker.forced, view.breaker.reason) == (State.OPEN, "open", "by anna")
    fresh.force("one", None, reason="by anna")
    assert make(valkey_url).enter().provider == "one"


def test_a_flushed_redis_starts_closed(valkey_url):
    gate = make(valkey_url)
    shut(gate)
    gate._client.flushdb()
    assert gate.enter().provider == "one"


HAMMER = """
import sys, time
from outbox.delivery.gate import Gate
gate = Gate(providers=["one"], url=sys.argv[1], rate=50, burst=2.5)
until = time.time() + float(sys.argv[2])
while time.time() < until:
    entry = gate.enter()
    time.sleep(entry.wait)
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
        gate = make(valkey.url, rules=Rules(seconds=60))
        shut(gate)
        if how == "killed":
            valkey.stop()
        else:
            os.kill(valkey._process.pid, signal.SIGSTOP)
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
        gates[0]._client.zadd("orderpost:gate:alive", {"another:1": time.time()})
        gates[0]._alive_at = 0
        gates[0].enter()
        valkey.stop()
        waits = [gates[0].enter().wait for _ in range(11)]
        assert waits[-1] == pytest.approx(10 * 2 / 40, abs=0.1)

    def test_nothing_is_raised_when_it_was_never_there(self):
        gate = make("redis://127.0.0.1:1/0", rate=100)
        entry = gate.enter()
        assert entry.provider == "one"
        gate.failed(entry, reason="x")
        gate.succeeded(entry)
        gate.pause(entry, seconds=1, reason="x")
        assert gate.force("one", "open", reason="me") is False
        assert gate.room(batch=10)[0] > 0
