"""The shop under test, and the facts that faults record for the auditor."""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.kit.audit import Entry
from tests.kit.shop import Shop
from tests.kit.smtp import SmtpServer

#: A second relay and a second consumer are in `background`.
PROCESSES = ("web", "worker", "worker:2", "beat", "standby", "relay", "consumer", "partitions", "background")
#: Processes of a long run that no fault restarts, so that their memory can be compared over its whole time.
SPARED = ("worker:3", "relay:2", "consumer:2")
#: The processes that send e-mails. `background` has a standby, too.
SENDERS = frozenset({"worker", "worker:2", "worker:3", "standby", "background"})
#: Seconds before each reply of a slow SMTP server: less than EMAIL_READ_TIMEOUT, and a mail's together more
#: than both time-outs (in production: 4 s with time-outs of 3 and 10).
SMTP_DELAY = 0.65
#: A process that was alive for so long counts as started.
START_SECONDS = 15.0
#: More failed starts in a run mean that a process cannot start.
FAILED_STARTS = 5


@dataclasses.dataclass
class World:
    """The shop under test, the random numbers, and the facts about faults that the auditor needs."""

    shop: Shop
    chance: random.Random
    smtp: SmtpServer
    #: The providers in the order in which they are tried.
    providers: Sequence[str]
    #: If false, the SMTP server listens only during `slow_smtp`, so the second provider is away otherwise.
    smtp_always: bool = False
    #: Seconds until a process must have exited after SIGTERM.
    grace: float = 15.0
    operator: int = 0  # the id of a user who may do everything
    losses: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    stops: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    held: set[str] = dataclasses.field(default_factory=set)  # topics that took nothing for a while
    #: How often an e-mail was in flight when its worker, or the way to PostgreSQL, was cut off.
    in_flight: Counter[str] = dataclasses.field(default_factory=Counter)
    entries: list[Entry] = dataclasses.field(default_factory=list)
    #: The old months of e-mails that rollovers archived.
    months: list[str] = dataclasses.field(default_factory=list)
    #: Bulk jobs by their ids, with the states in which they may be at the end.
    jobs: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    #: When a process was first and last found alive (monotonic), by its id.
    alive: dict[int, tuple[float, float]] = dataclasses.field(default_factory=dict)
    failed_starts: Counter[str] = dataclasses.field(default_factory=Counter)

    def some(self, low: float, high: float) -> None:
        """Wait for a random time while a fault lasts."""
        time.sleep(self.chance.uniform(low, high))

    def any_process(self) -> str:
        return self.chance.choice(PROCESSES)

    def stop_gently(self, name: str) -> None:
        """Stop a process (SIGTERM). If it does not exit within `grace`, kill it and record a finding."""
        began = time.monotonic()
        if self.shop.terminate(name, seconds=self.grace):
            self.stops.append((name, time.monotonic() - began))
        else:
            self.wrong.append(f"{name} did not end within {self.grace:g} s of SIGTERM")

    def supervise(self) -> None:
        """Start the processes that exited, as a supervisor does.

        An exit is a finding, except the first few during a start: PostgreSQL may be starting, too.
        """
        for name, process in list(self.shop.processes.items()):
            now = time.monotonic()
            since, until = self.alive.get(process.pid, (now, now))
            if (code := process.poll()) is None:
                self.alive[process.pid] = since, now
                continue
            self.failed_starts[name] += (starting := until - since < START_SECONDS)
            if not starting or self.failed_starts[name] > FAILED_STARTS:
                self.wrong.append(f"{name} exited with status {code}")
            self.shop.start(name, wait=False)

    def kill(self, *names: str) -> None:
        """Kill processes (SIGKILL). Stop them first, so that the e-mails in flight can be counted."""
        for name in names:
            if self.shop.processes[name].poll() is None:
                self.shop.signal(name, signal.SIGSTOP)
        if SENDERS.intersection(names):
            self.note_in_flight()
        for name in names:
            self.shop.kill(name)

    def note_in_flight(self) -> None:
        """Count the claimed e-mails, because their workers may not be able to settle them."""
        claimed = self.shop.query("SELECT id::text FROM email_notifications WHERE status = 'processing'")
        self.in_flight.update(id for (id,) in claimed)

    @contextmanager
    def listening_smtp(self) -> Iterator[None]:
        """Run a slow SMTP server within the block."""
        self.smtp.delay = SMTP_DELAY
        try:
            if self.smtp_always:
                yield
            else:
                with self.smtp:
                    yield
        finally:
            self.smtp.delay = 0.0
