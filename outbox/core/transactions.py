"""The check of a function that must run in its caller's transaction."""

from __future__ import annotations

from django.db import connection


class TransactionRequired(RuntimeError):
    """An intent was to be written outside the transaction of the change that it belongs to."""


def require_transaction(what: str) -> None:
    """Raise `TransactionRequired` unless a transaction is open."""
    if not connection.in_atomic_block:
        raise TransactionRequired(f"{what} belongs into the transaction of the change that causes it")
