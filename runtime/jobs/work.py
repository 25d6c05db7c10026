"""Other work of workers, such as what came in and was stored. Each app registers its own.

The task of bulk jobs does it, so that a worker of the release before, which does not know the work, takes no
task that it cannot do. PostgreSQL has what is to be done: a lost wake-up is left to the poll.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Work(NamedTuple):
    """A kind of work."""

    #: Whether something is to be done. Each poll asks, by one statement.
    is_waiting: Callable[[], bool]
    #: Does some of it, for a few seconds. Returns whether more is left to do at once.
    do: Callable[[], bool]
    #: A standby, which must go on sending, leaves work to workers that waits for other hosts.
    waits_for_others: bool = False


WORK: list[Work] = []


def is_waiting() -> bool:
    return any(work.is_waiting() for work in WORK)


def do_work(*, is_standby: bool = False) -> bool:
    """Do some of each kind. Return whether more is left to do at once."""
    left = [work.do() for work in WORK if not (is_standby and work.waits_for_others)]
    return any(left)
