"""A cursor that prepares the statements that ask for it."""

from __future__ import annotations

from typing import Any, Self

from django.db.backends.postgresql.base import ServerBindingCursor


class Prepared(str):
    """SQL that is prepared at its first use in a session, and then planned without its values.

    For statements that find single rows by a unique key, whose plan no value can improve. All others are
    planned for their values at each use: without them no partial index can be used.
    """

    __slots__ = ()


class PreparingCursor(ServerBindingCursor):
    """Prepares `Prepared` statements, and others after the connection's `prepare_threshold`."""

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, **options: Any) -> Self:
        wanted = True if isinstance(query, Prepared) else prepare
        super().execute(query, params, prepare=wanted, **options)  # type: ignore[misc]  # psycopg's
        return self
