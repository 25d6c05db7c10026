"""What a function asks of its caller's transaction: that there is one, or to be told of its commit."""

from __future__ import annotations

import contextvars
from collections.abc import Callable

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
