"""A cursor that prepares statements of the type `Prepared`."""

from __future__ import annotations

import time
from typing import Any, Self

from django.db.backends.postgresql.base import ServerBindingCursor
from psycopg.errors import FeatureNotSupported, InvalidSqlStatementName

from runtime.database.postgres.connection import BoundedConnection

#: A power of two above five: PostgreSQL plans the first five uses for their values.
FIRST_USES = 8
#: A plan that is older than this is not used again.
PLAN_SECONDS = 60.0
STATEMENTS_OF_A_TEXT = 8
#: PostgreSQL raises them if a prepared statement would return other types than before, because a migration has
#: changed a column, and if the session has no such statement.
STALE = (FeatureNotSupported, InvalidSqlStatementName)


class Prepared(str):
    """SQL that is prepared at its first use in a session, and then planned without its values.

    Use it for statements that find rows by a unique key, or whose conditions for a partial index are written
    into the text: no value can improve their plan. All others are planned for their values at each use. A
    plan without values could not use a partial index.

    A plan that was made for an empty partition reads all of it, and PostgreSQL makes another one only when it
    has analyzed the table. A session therefore prepares the statement again after 8, 16, 32 … uses and after
    `PLAN_SECONDS`, and no plan stays in use long after the table has grown.
    """

    __slots__ = ()


class PreparingCursor(ServerBindingCursor):
    """Prepare `Prepared` statements, unless the connection leads to a pooler."""

    connection: BoundedConnection  # psycopg's attribute, which the stubs leave out

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, **options: Any) -> Self:
        if isinstance(query, Prepared):
            query, prepare = self._replanned(query), True
        try:
            super().execute(query, params, prepare=prepare, **options)  # type: ignore[misc]  # psycopg's
        except STALE:
            self.connection.forget_prepared()
            raise
        return self

    def _replanned(self, query: Prepared) -> str:
        """Return the statement's present text. After a change, psycopg and PostgreSQL prepare it again."""
        now = time.monotonic()
        uses, text, planned_at = self.connection.uses.get(query, (0, query, now))
        uses += 1
        if (uses >= FIRST_USES and uses.bit_count() == 1) or now - planned_at >= PLAN_SECONDS:
            text, planned_at = f"{query} /* {uses} */", now
            # psycopg deallocates those that were used longest ago, whose plans would take some MB. One text
            # can be several statements, by the types of its values.
            self.connection.prepared_max = STATEMENTS_OF_A_TEXT * len(self.connection.uses)
        self.connection.uses[query] = uses, text, planned_at
        return text
