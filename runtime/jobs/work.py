"""Other work of workers, such as what came in and was stored. Each app registers its own.

PostgreSQL has what is to be done: a lost wake-up is left to the poll.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from celery import current_app
from django.conf import settings

from runtime.process.waker import Waker

#: The task that does some of it, sent by its name.
DO_WORK = "do_work"


def _enqueue() -> None:
    current_app.send_task(DO_WORK, expires=settings.POLL_INTERVAL)  # the next poll sends another


waker = Waker(_enqueue, target="work")


class BackgroundStep(NamedTuple):
    """A kind of work."""

    #: Whether something is to be done. Each poll asks, by one statement.
    is_waiting: Callable[[], bool]
    #: Does some of it, for a few seconds. Returns whether more is left to do at once.
    do: Callable[[], bool]
    #: A standby, which must go on sending, leaves work to workers that waits for other hosts.
    waits_for_others: bool = False


_work: list[BackgroundStep] = []


def register_work(*kinds: BackgroundStep) -> None:
    _work.extend(kinds)


def is_waiting() -> bool:
    return any(work.is_waiting() for work in _work)


def do_work(*, is_standby: bool = False) -> bool:
    """Do some of each kind. Return whether more is left to do at once."""
    left = [work.do() for work in _work if not (is_standby and work.waits_for_others)]
    return any(left)
