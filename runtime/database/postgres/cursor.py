"""A cursor that prepares statements of the type `Prepared`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from psycopg import Cursor, OperationalError
from psycopg._preparing import Prepare
from psycopg._queries import PostgresQuery
from psycopg.abc import PQGen
from psycopg.errors import FeatureNotSupported, InvalidSqlStatementName, error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from runtime.database.postgres.connection import BoundedConnection

if TYPE_CHECKING:
    ServerBindingCursor = Cursor[Any]  # the stubs do not say that Django's is one
else:
    from django.db.backends.postgresql.base import ServerBindingCursor

#: A power of two above five: PostgreSQL plans the first five uses for their values.
FIRST_USES = 8
#: A plan that is older than this is not used again.
PLAN_SECONDS = 60.0
STATEMENTS_OF_A_TEXT = 8
#: PostgreSQL raises the first if a migration has changed the type of a column that a prepared statement
#: returns, and the second if the session has no such statement.
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


class Last(Prepared):
    """The last statement of a transaction, which COMMIT follows in the same trip unless it fails."""

    __slots__ = ()


class PreparingCursor(ServerBindingCursor):
    """Prepare `Prepared` statements, unless the connection leads to a pooler.

    BEGIN travels with the first statement of a transaction if that is prepared already, and COMMIT with the
    `Last`. One that is both is a transaction by itself. Others take psycopg's way.
    """

    connection: BoundedConnection
    _is_last = False

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, **options: Any) -> Self:
        if not isinstance(query, Prepared):
            return super().execute(query, params, prepare=prepare, **options)
        self._is_last = isinstance(query, Last)
        self.connection.brings_begin = True
        try:
            return super().execute(self._replanned(query), params, prepare=True, **options)
        except STALE:
            self.connection.forget_prepared()
            raise
        finally:
            self._is_last = self.connection.brings_begin = False

    def _maybe_prepare_gen(
        self, pgq: PostgresQuery, *, prepare: bool | None = None, binary: bool | None = None
    ) -> PQGen[None]:
        connection, pgconn = self.connection, self._pgconn
        begins = ends = False
        if connection.brings_begin:
            prepared, name = self._get_prepared(pgq, prepare)
            if prepared is Prepare.YES:
                is_idle = pgconn.transaction_status == TransactionStatus.IDLE
                begins, ends = is_idle and not connection.autocommit, self._is_last
            else:  # its first use, or there is a pooler
                connection.brings_begin = False
                yield from connection._start_query()
        if begins == ends:
            yield from super()._maybe_prepare_gen(pgq, prepare=prepare, binary=binary)
            return
        connection._prepared.maybe_add_to_cache(pgq, prepared, name)  # as one that was just used
        pgconn.enter_pipeline_mode()
        if begins:
            pgconn.send_query_params(connection._get_tx_start_command(), None)
        self._send_query_prepared(name, pgq, binary=binary)
        if ends:
            pgconn.send_query_params(b"COMMIT", None)
        pgconn.pipeline_sync()
        results = yield from _fetch_up_to_sync(pgconn)
        if (failed := _failed(results)) is not None:
            raise error_from_result(failed, encoding=self._encoding)
        self._set_results([results[1 if begins else 0]])

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


def _fetch_up_to_sync(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Send what waits, and return the results of all statements, and of the Sync.

    If the session ends in between, close the connection. Return what it said of the reason, or raise
    `OperationalError`.
    """
    results: list[PGresult] = []
    try:
        yield from send(pgconn)
        while not results or results[-1].status != ExecStatus.PIPELINE_SYNC:
            answer = yield from fetch_many(pgconn)
            if not answer:
                raise OperationalError("the session has ended in the middle of a statement")
            results += answer
        pgconn.exit_pipeline_mode()
    except BaseException as error:
        pgconn.finish()  # more answers may come, which nobody reads
        if not isinstance(error, OperationalError) or _failed(results) is None:
            raise
    return results


def _failed(results: list[PGresult]) -> PGresult | None:
    return next((result for result in results if result.status == ExecStatus.FATAL_ERROR), None)
