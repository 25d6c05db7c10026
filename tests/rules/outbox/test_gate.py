"""The breakers of several processes in Redis, and each process alone without Redis."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import pytest
from redis.commands.core import Script

from local.machine import free_port
from local.servers import EmbeddedValkey
from outbox.gate import gate as module
from outbox.gate.gate import TAKE
from outbox.gate.shared_gate import AWAY_SECONDS
from tests.kit.breakers import HOUR, let_an_hour_pass
from tests.kit.fast import Fast
from tests.kit.proxy import Proxy
from tests.kit.waiting import until
from tests.kit.words import BreakerState, Capacity, Gate, Rules, make_client

#: An open breaker lets a probe through at once.
QUICK = Rules(untried_every_seconds=0.0, waiting_every_seconds=0.0)
#: An open breaker lets no probe through, however slow the test is, until `let_an_hour_pass`.
HOURLY = Rules(untried_every_seconds=HOUR, waiting_every_seconds=HOUR)


def make(url: str, *, rate: float = 0, names=("one", "two"), rules: Rules = HOURLY) -> Gate:
    return Gate(providers=names, url=url, rate=rate, burst=1, rules=rules)


def fail(gate: Gate, name: str = "one", *, times: int) -> None:
    for number in range(times):
        gate.failed(gate.enter(only=name), message=str(number), reason="503")


def shut(gate: Gate, name: str = "one") -> None:
    fail(gate, name, times=gate.rules.threshold)


def state(gate: Gate) -> BreakerState:
    """Return the state of the first provider."""
    return gate.read_providers()[0].state


@contextmanager
def counted(url: str) -> Iterator[tuple[str, Proxy]]:
    """Return a URL that leads to a Redis, and the proxy that counts the requests to it."""
    parts = urlparse(url)
    with Proxy(port=parts.port or 6379) as proxy:
        yield parts._replace(netloc=f"{parts.hostname}:{proxy.port}").geturl(), proxy


class TestSeveralProcesses:
    def test_know_of_an_opening_in_another_after_ten_sends_at_most(self, valkey_url):
        here, there = make(valkey_url), make(valkey_url)
        assert there.enter().provider == "one"
        shut(here)
        for _ in range(TAKE - 1):
            there.enter()
        entry = there.enter()
        assert (entry.provider, entry.is_probe) == ("two", False)
        shut(there, "two")
        for _ in range(TAKE - 1):
            here.enter()
        nobody = here.enter()
        assert nobody.provider == "" and 0 < nobody.wait_seconds <= HOUR

    def test_count_their_failures_together(self, valkey_url):
        gates = [make(valkey_url) for _ in range(5)]
        for number, gate in enumerate(gates):
            assert state(gate) is BreakerState.CLOSED
            gate.failed(gate.enter(only="one"), message=str(number), reason="503")
        assert state(gates[0]) is BreakerState.OPEN

    def test_keep_it_closed_within_a_second_of_an_acceptance_in_one(self, valkey_url):
        rules = Rules(quiet_seconds=HOUR)  # a second, on a busy machine
        here, there = make(valkey_url, rules=rules), make(valkey_url, rules=rules)
        fail(there, times=4)
        here.accepted(here.enter(only="one"))
        fail(there, times=9)
        assert state(here) is BreakerState.CLOSED

    def test_let_one_message_through_at_a_time(self, valkey_url):
        gates = [make(valkey_url, names=("one",)) for _ in range(4)]
        shut(gates[0])
        let_an_hour_pass(valkey_url, *gates)
        entries = [gate.enter(is_untried=True) for gate in gates for _ in range(4)]
        (probe,) = [entry for entry in entries if entry.provider]
        assert probe.is_probe
        gates[3].accepted(probe)
        assert not gates[1].enter().is_probe
        assert gates[0].capacity(batch=100) == Capacity(100)

    def test_stop_at_a_pause_that_a_provider_asked_for_at_once_or_after_at_most_ten_sends(self, valkey_url):
        gates = [make(valkey_url, names=("one",)) for _ in range(3)]
        first, *_ = [gate.enter() for gate in gates]
        gates[0].pause(first, seconds=60, reason="429")
        assert gates[0].enter().provider == ""
        for gate in gates[1:]:
            assert sum(bool(gate.enter().provider) for _ in range(40)) < TAKE

    def test_have_one_manual_override_that_survives_a_restart(self, valkey_url):
        assert make(valkey_url).force("one", "open", reason="by anna")
        fresh = make(valkey_url)
        assert fresh.enter().provider == "two"
        (view, _) = fresh.read_providers()
        assert (view.state, view.breaker.forced, view.breaker.reason) == (
            BreakerState.OPEN,
            "open",
            "by anna",
        )
        fresh.force("one", None, reason="by anna")
        assert make(valkey_url).enter().provider == "one"

    def test_ignore_a_field_of_a_later_release(self, valkey_url):
        with make_client(url=valkey_url) as client:
            later = '{"epoch": 3, "opened_at": 1.0, "of_a_later_release": [1]}'
            client.set("orderpost:breaker:one", later)
        gate = make(valkey_url)
        assert state(gate) is BreakerState.OPEN
        gate.accepted(gate.enter(only="one", is_untried=True))
        assert state(make(valkey_url)) is BreakerState.CLOSED

    def test_start_closed_after_a_flush(self, valkey_url):
        gate = make(valkey_url)
        shut(gate)
        with make_client(url=valkey_url) as client:
            client.flushdb()
        gate.rest()
        assert gate.enter().provider == "one"


def test_an_answer_from_before_another_thread_opened_the_breaker_does_not_close_it(valkey_url, monkeypatch):
    gate = make(valkey_url, names=("one",), rules=HOURLY)
    real = Script.__call__

    def overtaken(script, *arguments, **options):
        monkeypatch.setattr(Script, "__call__", real)
        answer = real(script, *arguments, **options)
        shut(gate)
        return answer

    monkeypatch.setattr(Script, "__call__", overtaken)
    gate.capacity(batch=1)
    assert gate.enter().provider == ""


class TestTheChoice:
    def test_a_message_that_was_tried_is_a_probe_only_while_no_other_provider_is_closed(self, valkey_url):
        gate = make(valkey_url)
        shut(gate)
        let_an_hour_pass(valkey_url, gate)
        assert gate.enter().provider == "two"
        assert gate.enter(only="one").provider == ""
        assert gate.enter(without=["two"]).is_probe  # the closed one has refused it already
        let_an_hour_pass(valkey_url, gate)
        assert gate.enter(is_untried=True).is_probe
        shut(gate, "two")
        let_an_hour_pass(valkey_url, gate)
        assert gate.enter(only="one").is_probe

    def test_providers_that_are_to_be_last_come_after_the_others_in_their_order(self, valkey_url):
        gate = make(valkey_url, names=("one", "two", "three"))
        assert gate.enter(last=["one"]).provider == "two"
        assert gate.enter(last=["two", "one"]).provider == "three"
        assert gate.enter(last=["two", "one"], without=["three"]).provider == "two"
        assert gate.enter(last=["three", "one", "two"]).provider == "three"

    def test_there_is_capacity_for_one_row_when_a_probe_may_go_and_for_none_before(self, valkey_url):
        gate = make(valkey_url, names=("one",))
        assert gate.capacity(batch=100) == Capacity(100)
        shut(gate)
        before = gate.capacity(batch=100)
        assert before.rows == 0 and 0 < before.wait_seconds <= HOUR
        let_an_hour_pass(valkey_url, gate)
        assert gate.capacity(batch=100) == Capacity(1, 0.05, is_untried_first=True, is_retry_allowed=True)
        gate.enter(is_untried=True)
        assert gate.capacity(batch=100).rows == 0


def test_ten_sends_cost_one_request_and_an_acceptance_none(valkey_url, monkeypatch):
    monkeypatch.setattr(module, "LIFE_SECONDS", HOUR)
    with counted(valkey_url) as (url, proxy):
        gate = make(url, rate=1000)
        gate.capacity(batch=1)  # connects and counts the processes
        before, began = proxy.requests, time.monotonic()
        for _ in range(2 * TAKE):
            gate.accepted(gate.enter())
        # A slow machine counts the processes again, once a second.
        assert 2 <= proxy.requests - before <= 3 + (time.monotonic() - began)


class TestWithoutRedis:
    @pytest.fixture
    def valkey(self, tmp_path: Path) -> Iterator[EmbeddedValkey]:
        server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
        server.start(log=tmp_path / "log")
        yield server
        server.stop()

    @pytest.fixture
    def frozen(self, valkey: EmbeddedValkey) -> Iterator[int]:
        with make_client(url=valkey.url) as client:
            pid = client.info("server")["process_id"]
        yield pid
        os.kill(pid, signal.SIGCONT)

    @pytest.fixture(autouse=True)
    def _early(self, fast: Fast) -> None:
        fast.valkey()

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[None]:
        """Return a list with an item for each request to Redis."""
        asked: list[None] = []
        real = Script.__call__

        def ask(script, *arguments, **options):
            asked.append(None)
            return real(script, *arguments, **options)

        monkeypatch.setattr(Script, "__call__", ask)
        return asked

    @staticmethod
    def goes_on_alone(gate: Gate, asked: list[None]) -> None:
        gate.rest()
        assert gate.enter().provider == "two"  # it was told that one is open
        assert not gate.is_shared
        asked.clear()
        began = time.monotonic()
        for _ in range(200):
            gate.enter()
        assert len(asked) <= 1 + (time.monotonic() - began) / AWAY_SECONDS  # not one for each
        shut(gate, "two")
        assert gate.enter().provider == ""  # alone, it still breaks circuits

    @staticmethod
    def shares_again(gate: Gate) -> None:
        until(lambda: gate.enter() and gate.is_shared, "the gate is shared again")

    def test_a_process_goes_on_alone_keeps_what_it_knew_and_shares_again(self, valkey, asked, tmp_path):
        gate = make(valkey.url, rules=HOURLY)
        shut(gate)
        valkey.stop()
        self.goes_on_alone(gate, asked)
        valkey.start(log=tmp_path / "log2")
        self.shares_again(gate)

    def test_it_does_the_same_while_redis_is_frozen(self, valkey, frozen, asked):
        gate = make(valkey.url, rules=HOURLY)
        shut(gate)
        os.kill(frozen, signal.SIGSTOP)
        self.goes_on_alone(gate, asked)
        os.kill(frozen, signal.SIGCONT)
        self.shares_again(gate)

    def test_a_breaker_that_closed_meanwhile_closes_for_all_once_redis_answers(self, valkey, frozen):
        gate = make(valkey.url, names=["one"], rules=QUICK)
        shut(gate)
        gate.rest()
        os.kill(frozen, signal.SIGSTOP)
        self.sends_until(gate, lambda: not gate.is_shared and state(gate) is BreakerState.CLOSED)
        os.kill(frozen, signal.SIGCONT)
        self.shares_again(gate)
        self.sends_until(gate, lambda: state(make(valkey.url, names=["one"])) is BreakerState.CLOSED)

    @staticmethod
    def sends_until(gate: Gate, condition: Callable[[], bool]) -> None:
        def send() -> None:
            entry = gate.enter(is_untried=True)
            if entry.provider:
                gate.accepted(entry)
            gate.rest()
            time.sleep(0.02)

        until(condition, meanwhile=send)

    def test_what_could_not_be_forced_is_not_forced_once_redis_answers(self, valkey, frozen):
        gate = make(valkey.url, names=["one"])
        os.kill(frozen, signal.SIGSTOP)
        assert gate.force("one", "open", reason="me") is False
        os.kill(frozen, signal.SIGCONT)
        self.shares_again(gate)
        assert state(gate) is BreakerState.CLOSED

    def test_nothing_is_raised_when_it_was_never_there(self):
        gate = make("redis://127.0.0.1:1/0", rate=100)
        entry = gate.enter()
        assert entry.provider == "one"
        gate.failed(entry, message="m", reason="x")
        gate.accepted(entry)
        gate.pause(entry, seconds=1, reason="x")
        assert gate.force("one", "open", reason="me") is False
        assert gate.capacity(batch=10).rows > 0
