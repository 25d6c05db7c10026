"""A simulation of web processes, workers, PostgreSQL and the provider, for `benchmarks/scale.py`.

Cores are shared round robin in slices of `SLICE` seconds, as the kernel does. A web process computes for one
request at a time (the interpreter lock) and has so many threads; a worker sends one batch after the other,
each with so many e-mails at the provider at once. No dependency; the same seed gives the same result.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections import deque
from collections.abc import Callable, Generator

from benchmarks.figures import percentile

SLICE = 0.003  # seconds of CPU before others get the core: EEVDF's base slice on few cores
#: A step of a task: ("cpu", class, seconds), ("wait", seconds), ("take", resource) or ("give", resource).
Step = tuple[object, ...]
Task = Generator[Step, None, None]


@dataclasses.dataclass(frozen=True)
class Costs:
    """CPU seconds for one order placed and paid (two writes, one e-mail, two events), by class of process."""

    web: float
    postgres: float
    worker: float
    relay: float = 0.0
    provider: float = 0.0
    others: float = 0.0  # supervisor, console, Valkey
    client: float = 0.0002

    @property
    def system(self) -> float:
        """CPU seconds of the whole system for an order, without the load client."""
        return self.web + self.postgres + self.worker + self.relay + self.provider + self.others


@dataclasses.dataclass(frozen=True)
class System:
    """The sizes of the system. Times are in seconds."""

    costs: Costs
    cores: int = 2
    web_processes: int = 2
    web_threads: int = 8
    workers: int = 1
    sends: int = 32  # EMAIL_CONCURRENCY
    commit: float = 0.002  # a commit's wait for the disk
    provider_delay: float = 0.0
    wake: float = 0.25  # between two wake-ups of a web process under load: outbox/process/waker.py
    settle_rows: int = 20  # outcomes in one write, or fewer after settle_seconds:
    settle_seconds: float = 0.1  # outbox/delivery/unsettled.py
    stall: float = 0.08  # a web process stops for so long: a full garbage collection, measured …
    stall_every: float = 3.0  # … so often, on average: fitted to the run of 4277d79, nothing else is


class Resource:
    """A number of places. A task that finds none waits in order."""

    def __init__(self, places: int) -> None:
        self.free, self.queue = places, deque[Task]()


class Machine:
    """The clock, the events and the cores."""

    def __init__(self, cores: int) -> None:
        self.now, self.busy, self.idle = 0.0, 0.0, cores
        self.used: dict[str, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._ready: deque[tuple[Task, str, float]] = deque()

    def at(self, delay: float, action: Callable[[], None]) -> None:
        """Schedule a call after a delay."""
        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, action))

    def start(self, task: Task) -> None:
        """Run a task's steps until it waits or ends."""
        for step in task:
            match step:
                case ("cpu", str(kind), float(seconds)):
                    self._ready.append((task, kind, seconds))
                    return self._dispatch()
                case ("wait", float(seconds)):
                    return self.at(seconds, lambda: self.start(task))
                case ("take", Resource() as resource) if resource.free:
                    resource.free -= 1
                case ("take", Resource() as resource):
                    return resource.queue.append(task)
                case ("give", Resource() as resource) if resource.queue:
                    waiting = resource.queue.popleft()
                    self.at(0.0, lambda one=waiting: self.start(one))  # type: ignore[misc]
                case ("give", Resource() as resource):
                    resource.free += 1
                case _:
                    raise ValueError(f"no step: {step}")
        return None

    def _dispatch(self) -> None:
        while self.idle and self._ready:
            task, kind, left = self._ready.popleft()
            self.idle -= 1
            spent = min(left, SLICE)
            self.used[kind] = self.used.get(kind, 0.0) + spent
            self.at(spent, lambda t=task, k=kind, s=left - spent: self._ran(t, k, s))  # type: ignore[misc]

    def _ran(self, task: Task, kind: str, left: float) -> None:
        self.idle += 1
        if left > 1e-12:
            self._ready.append((task, kind, left))
        else:
            self.start(task)
        self._dispatch()

    def run(self, until: float) -> None:
        """Run the events up to a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until


class Shop:
    """Orders that arrive at a rate, equally spaced like those of the load client."""

    def __init__(self, system: System, *, seed: int) -> None:
        self.system, self.random = system, random.Random(seed)
        self.machine = Machine(system.cores)
        self.writes: list[float] = []
        self.mails: list[float] = []
        self.due: deque[float] = deque()  # when the e-mails were committed
        self._web = [(Resource(system.web_threads), Resource(1)) for _ in range(system.web_processes)]
        self._wakes = [-1.0] * system.web_processes  # when each had its last wake-up, or has its next
        self._idle_workers, self._in_flight = system.workers, 0
        self._slots = Resource(system.sends * system.workers)
        self._unsettled: list[float] = []

    def _cost(self, mean: float) -> float:
        return (
            self.random.gammavariate(4.0, mean / 4.0) if mean else 0.0
        )  # half of the mean as standard deviation

    def _write(self, pays: bool) -> Task:
        due, costs = self.machine.now, self.system.costs
        number = self.random.randrange(len(self._web))
        threads, interpreter = self._web[number]
        yield "cpu", "client", costs.client / 2
        yield "take", threads
        yield "take", interpreter
        yield "cpu", "web", self._cost(costs.web / 4)  # half of a write's CPU before its transaction
        yield "give", interpreter
        yield "cpu", "PostgreSQL", self._cost(costs.postgres * 0.4)  # the rest: claims, settling, the relay
        yield "wait", self.system.commit
        if pays:
            self.due.append(self.machine.now)
            self._wake(number)
        yield "take", interpreter
        yield "cpu", "web", self._cost(costs.web / 4)
        yield "give", interpreter
        yield "give", threads
        self.writes.append(self.machine.now - due)
        yield "cpu", "relay", costs.relay / 2
        yield "cpu", "others", costs.others / 2

    def _wake(self, number: int) -> None:
        now = self.machine.now
        if self._wakes[number] > now:
            return  # a wake-up is already scheduled
        self._wakes[number] = max(now, self._wakes[number] + self.system.wake)
        self.machine.at(self._wakes[number] - now, self._awake)

    def _awake(self) -> None:
        if self._idle_workers and self.due:
            self._idle_workers -= 1
            self.machine.start(self._work())

    def _work(self) -> Task:
        while self.due:
            for committed in [self.due.popleft() for _ in range(min(100, len(self.due)))]:
                yield "take", self._slots
                yield "cpu", "worker", self._cost(self.system.costs.worker)
                self._in_flight += 1
                self.machine.start(self._send(committed))
        self._idle_workers += 1

    def _send(self, committed: float) -> Task:
        yield "cpu", "provider", self.system.costs.provider
        yield "wait", self.system.provider_delay
        yield "give", self._slots
        self._in_flight -= 1
        self._unsettled.append(committed)
        if len(self._unsettled) < self.system.settle_rows and (self._in_flight or self.due):
            yield "wait", self.system.settle_seconds
        several, self._unsettled = self._unsettled, []
        if several:  # else another task has settled it
            yield "cpu", "PostgreSQL", self.system.costs.postgres * 0.2 * len(several)
            self.mails += [self.machine.now - one for one in several]

    def _stall(self, interpreter: Resource, until: float) -> Task:
        while self.machine.now < until:
            yield "wait", self.random.expovariate(1 / self.system.stall_every)
            yield "take", interpreter
            yield "wait", self.system.stall
            yield "give", interpreter

    def run(self, *, rate: float, seconds: float) -> dict[str, float]:
        """Place orders and pay each a second later. Return the results, with times in ms."""
        for number in range(int(rate * seconds)):
            at = number / rate
            self.machine.at(at, lambda: self.machine.start(self._write(False)))
            self.machine.at(at + 1.0, lambda: self.machine.start(self._write(True)))
        if self.system.stall:
            for _, interpreter in self._web:
                self.machine.start(self._stall(interpreter, seconds))
        begin = min(2.0, seconds / 2)  # payments come a second after orders
        self.machine.run(begin)
        before = sum(self.machine.used.values())
        self.machine.run(seconds)
        backlog, used = len(self.due), sum(self.machine.used.values()) - before
        placed = int(rate * seconds)
        unanswered = placed + min(placed, int(rate * max(0.0, seconds - 1))) - len(self.writes)
        self.machine.run(seconds * 5)
        return {
            "cores used": used / (seconds - begin),
            "write p50": percentile(self.writes, 0.5) * 1000,
            "write p99": percentile(self.writes, 0.99) * 1000,
            "mail p99": percentile(self.mails, 0.99) * 1000,
            "mails waiting at the end": float(backlog),
            "requests waiting at the end": float(unanswered),
        }
