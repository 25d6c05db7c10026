"""Ask for a transaction, for its commit, or whether the commits of others are visible yet."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection

from django.db import connection, transaction


class TransactionRequired(RuntimeError):
    """An intent was to be written outside the transaction of the change that it belongs to."""


def require_transaction(what: str) -> None:
    """Raise `TransactionRequired` unless a transaction is open."""
    if not connection.in_atomic_block:
        raise TransactionRequired(f"{what} belongs into the transaction of the change that causes it")


def after_commit(tell: Callable[[], None], *, using: str = "default") -> None:
    """Call `tell` after the outermost commit, at once outside a transaction, and never after a rollback.

    Log lines about rows are written so: `manage.py after_restore` takes a line as proof. `tell` runs in the
    context of now, so its lines have the correlation id of the change. Django logs its error, and runs the
    other callbacks.
    """
    context = contextvars.copy_context()
    transaction.on_commit(lambda: context.run(tell), using=using, robust=True)


def invisible(xids: Collection[int]) -> set[int]:
    """Return those of these committed transactions that a statement of now does not see yet.

    The write-ahead log tells of a commit before it is visible: the session that commits still waits for a
    synchronous standby or for the processor. `xids` are the lower 32 bits of transaction ids.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        snapshot: str = cursor.fetchone()[0]
    return unseen(xids, snapshot)


def unseen(xids: Collection[int], snapshot: str) -> set[int]:
    """Return those of `xids` that a snapshot, as PostgreSQL writes it, does not see.

    A running transaction that is newer than all that have ended is not listed in it. Ids of 32 bits wrap
    around.

    >>> sorted(unseen({100, 102, 104, 2**32 - 1}, "101:103:102"))
    [102, 104]
    """
    _, ceiling, running = snapshot.split(":")
    in_progress = {int(id) % 2**32 for id in running.split(",") if id}
    return {xid for xid in xids if xid in in_progress or (xid - int(ceiling)) % 2**32 < 2**31}
