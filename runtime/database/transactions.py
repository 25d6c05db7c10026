"""Require a transaction, and act after its commit."""

from __future__ import annotations

import contextvars
from collections.abc import Callable

from django.db import connection, transaction


class TransactionRequired(RuntimeError):
    """A row was to be written outside the transaction of the change that causes it."""


def require_transaction(what: str) -> None:
    """Raise `TransactionRequired` unless a transaction is open."""
    if not connection.in_atomic_block:
        raise TransactionRequired(f"{what} must be in the transaction of the change that causes it")


def after_commit(tell: Callable[[], None], *, using: str = "default") -> None:
    """Call `tell` after the outermost commit, or at once outside a transaction, but never after a rollback.

    Write log lines about rows in this way: `manage.py after_restore` takes a line as proof. `tell` runs in
    the present context, and its lines have the correlation id of the change. If it fails, Django logs the
    error and runs the other callbacks.
    """
    context = contextvars.copy_context()
    transaction.on_commit(lambda: context.run(tell), using=using, robust=True)
