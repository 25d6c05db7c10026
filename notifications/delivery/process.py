"""The state that one process keeps between drains: threads, the gate, first attempts. A fork resets it."""

from __future__ import annotations

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from django.conf import settings
from opentelemetry.trace import INVALID_SPAN, Span

from outbox.delivery.gate.breaker import Rules
from outbox.delivery.gate.gate import Gate
from outbox.delivery.gate.neighbours import Neighbours

#: Seconds between the untried e-mails that an open breaker lets through.
UNTRIED_SECONDS = 5.0


class Process:
    """The pool and the gate are created at their first use, with the settings of that moment."""

    def __init__(self) -> None:
        self.draining = threading.Lock()
        self.stopping = threading.Event()
        self.neighbours = Neighbours()
        self.drain_span: Span = INVALID_SPAN  # of the latest drain

    @functools.cached_property
    def pool(self) -> ThreadPoolExecutor:
        """The sending threads, each with its own provider connections."""
        return ThreadPoolExecutor(settings.EMAIL_CONCURRENCY, thread_name_prefix="send")

    @functools.cached_property
    def gate(self) -> Gate:
        """The circuit breakers and the shared rate limit."""
        every = settings.BREAKER_OPEN_SECONDS
        return Gate(
            providers=settings.EMAIL_PROVIDERS,
            url=settings.REDIS_URL,
            rate=settings.EMAIL_RATE_LIMIT,
            burst=settings.EMAIL_RATE_BURST,
            rules=Rules(untried_every_seconds=min(UNTRIED_SECONDS, every), waiting_every_seconds=every),
        )


_process = Process()


def current() -> Process:
    return _process


def gate() -> Gate:
    """Return this process's circuit breakers and rate limit."""
    return _process.gate


def start_anew() -> None:
    """Discard the state, after a fork or a change of settings (tests)."""
    global _process
    _process = Process()


os.register_at_fork(after_in_child=start_anew)


def fit_into_lease(seconds: float) -> float:
    """Return `seconds`, or less if the lease is short: a send and its waits must fit into the lease."""
    left = settings.LEASE_SECONDS - settings.EMAIL_CONNECT_TIMEOUT - settings.EMAIL_READ_TIMEOUT
    return float(min(seconds, left / 4))
