"""Keep a stream of the WAL: reconnect, lead or wait to lead, and report changes to a listener."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import psycopg
import structlog
from opentelemetry.trace import SpanKind

from outbox.process.loop import run_until_stopped
from outbox.telemetry import health, instruments, tracing
from outbox.wal.pgoutput import Committed, Watched
from outbox.wal.stream import SLOT_SECONDS, NotReady, Stream, StreamEnded

log = structlog.get_logger(__name__)

#: How often a follower that is ready tries to lead.
LEAD_SECONDS = 0.25
RECEIVE_SECONDS = 1.0
ERRORS = (psycopg.Error, OSError, StreamEnded, NotReady)

State = Literal["away", "ready", "streaming"]


class Listener(Protocol):
    """The part of a follower's owner. The follower's thread calls it, so it must return at once."""

    def became(self, state: State, /) -> None:
        """React to the new state.

        streaming   Check all tables once, because a temporary slot has no changes from before it was made.
        ready       Another follower leads.
        away        No changes are reported, so poll.
        """

    def changed(self, committed: Committed, /) -> None:
        """Check the tables in which a transaction made rows due. It may not be visible yet."""

    def alive(self) -> None:
        """Note that the stream runs. This is called at least every second."""


class Follower:
    """Follow the tables `watched`. `params` returns connection parameters of a role that may replicate."""

    def __init__(
        self, *, params: Callable[[], Mapping[str, Any]], watched: Sequence[Watched], listener: Listener
    ) -> None:
        self._params, self._watched, self._listener = params, watched, listener
        self._stopped = threading.Event()
        self._stream: Stream | None = None
        self._seen = 0  # the position up to which earlier streams received
        self.state: State = "away"

    def check(self) -> None:
        """Raise `NotReady` if the server or the role cannot follow. If the server is away, only log it."""
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
            instruments.CHANGE_DELAYS.labels("wal").observe(max(0.0, time.time() - committed.committed_at))
            with tracing.span("trigger wal", kind=SpanKind.CONSUMER):
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
