"""Always has a stream of the WAL: connects again, leads or waits for its turn, and tells what it learns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import psycopg
import structlog

from outbox.process.loop import run_until_stopped
from outbox.telemetry import health, instruments
from outbox.wal.pgoutput import Committed, Watched
from outbox.wal.stream import SLOT_SECONDS, NotReady, Stream, StreamEnded

log = structlog.get_logger(__name__)

#: How often a follower that is ready asks whether it may lead.
LEAD_SECONDS = 0.25
RECEIVE_SECONDS = 1.0
ERRORS = (psycopg.Error, OSError, StreamEnded, NotReady)

State = Literal["away", "ready", "streaming"]


class Listener(Protocol):
    """What the owner of a follower brings. All is called in the follower's thread and must not take long."""

    def became(self, state: State, /) -> None:
        """Take the new state.

        streaming   look at everything once: a temporary slot has nothing of what was committed before it
        ready       another follower leads
        away        no changes are told of: look without being told
        """

    def changed(self, committed: Committed, /) -> None:
        """Look at the tables in which a transaction made rows due. It may not be visible yet."""

    def alive(self) -> None:
        """Take note that the stream runs; called every second at least."""


class Follower:
    """Follows the tables `watched`; `params` returns those of a role that may replicate."""

    def __init__(
        self, *, params: Callable[[], Mapping[str, Any]], watched: Sequence[Watched], listener: Listener
    ) -> None:
        self._params, self._watched, self._listener = params, watched, listener
        self._stopped = threading.Event()
        self._stream: Stream | None = None
        self._seen = 0  # up to where the streams before this one received
        self.state: State = "away"

    def check(self) -> None:
        """Raise `NotReady` if nothing can be followed; a server that is away is no reason."""
        try:
            with contextlib.closing(self._connect()) as stream:
                stream.check()
        except (psycopg.Error, OSError) as error:
            log.warning("wal cannot be followed yet", error=str(error).strip())

    def run(self, *, stopped: threading.Event) -> None:
        """Follow until `stopped`."""
        self._stopped = stopped
        self._listener.became(self.state)
        try:
            run_until_stopped(
                step=self._step,
                stopped=stopped,
                errors=ERRORS,
                reconnect=self._disconnect,
                describe=lambda _: "wal is not followed, trying again",
            )
        finally:
            self._disconnect()

    def _connect(self) -> Stream:
        return Stream(params=self._params(), watched=self._watched)

    def _become(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._listener.became(state)

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._seen = max(self._seen, self._stream.position)
            self._stream.close()
            self._stream = None
        self._become("away")

    def _step(self) -> None:
        if self._stream is None:
            self._stream = self._connect()
            self._stream.check()
        if self.state != "streaming":
            self._lead(self._stream)
            return
        if committed := self._stream.receive(seconds=RECEIVE_SECONDS):
            instruments.CHANGES.labels("wal", "seen").inc()
            self._listener.changed(committed)
        self._listener.alive()

    def _lead(self, stream: Stream) -> None:
        if not stream.lead():
            if self.state != "ready":
                log.info("wal is followed by another process, this one is ready")
            self._become("ready")
            self._stopped.wait(LEAD_SECONDS)
            return
        self._become("away")
        health.beat(within_seconds=SLOT_SECONDS + health.WITHIN_SECONDS)
        start = stream.begin()
        instruments.WAL_STREAMS.inc()
        unseen = max(0, start - self._seen) if self._seen else None
        log.info("wal is followed", slot=stream.slot, unseen_bytes=unseen)
        self._become("streaming")
