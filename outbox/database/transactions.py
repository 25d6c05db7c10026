"""Require a transaction, act after its commit, and find other sessions' commits that are not visible yet."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection

from django.db import connection, transaction


class TransactionRequired(RuntimeError):
    """A row was to be written outside the transaction of the change that causes it."""


def require_transaction(what: str) -> None:
    """Raise `TransactionRequired` unless a transaction is open."""
    if not connection.in_atomic_block:
        raise TransactionRequired(f"{what} must be in the transaction of the change that causes it")


def after_commit(tell: Callable[[], None], *, using: str = "default") -> None:
    """Call `tell` after the outermost commit, or at once outside a transaction, but never after a rollback.

    Write log lines about rows in this way, because `manage.py after_restore` takes a line as proof. `tell`
    runs in the present context, so its lines have the correlation id of the change. If it fails, Django logs
    the error and runs the other callbacks.
    """
    context = contextvars.copy_context()
    transaction.on_commit(lambda: context.run(tell), using=using, robust=True)


def invisible(xids: Collection[int]) -> set[int]:
    """Return those of the committed transactions `xids` that a statement does not see yet.

    The write-ahead log shows a commit before it is visible, because the committing session may still wait for
    a synchronous standby or for the processor. `xids` are the lower 32 bits of transaction ids.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        snapshot: str = cursor.fetchone()[0]
    return unseen(xids, snapshot)


def unseen(xids: Collection[int], snapshot: str) -> set[int]:
    """Return those of `xids` that a snapshot in PostgreSQL's text format does not see.

    The snapshot does not list running transactions that are newer than all finished ones. Ids of 32 bits wrap
    around.

    >>> sorted(unseen({100, 102, 104, 2**32 - 1}, "101:103:102"))
    [102, 104]
    """
    _, ceiling, running = snapshot.split(":")
    in_progress = {int(id) % 2**32 for id in running.split(",") if id}
    return {xid for xid in xids if xid in in_progress or (xid - int(ceiling)) % 2**32 < 2**31}
