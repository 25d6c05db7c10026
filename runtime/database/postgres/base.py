"""The backend: `ENGINE = "runtime.database.postgres"`, with `OPTIONS = {"deadline": 4.0, "direct": ""}`.

`deadline` is in seconds. `direct` names the setting whose URL must not lead to a pooler, or is empty. A
connection prepares `cursor.Prepared` statements, unless a pooler is in between.

Migrations, and statements that make or drop whole databases, have no deadline. psycopg's connection pools
connect with their own class, and are not supported.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base, operations, schema
from django.db.utils import DatabaseError, DatabaseErrorWrapper, Error, OperationalError
from django.utils.functional import cached_property
from psycopg.errors import ReadOnlySqlTransaction

from runtime.database.postgres.connection import BoundedConnection, ConnectLock, PoolerFound
from runtime.database.postgres.cursor import Last, Prepared, PreparingCursor

#: An idle connection must answer its health check within this time. Otherwise it is replaced.
HEALTH_CHECK_SECONDS = 1.0

#: A connection that answered within this time and was not closed since needs no health check.
RECENT_SECONDS = 1.0

#: A `prepare_threshold` that no statement reaches. Only `Prepared` statements are prepared.
ON_REQUEST = 2**31

#: The turn to connect to each server, by host and port.
_turns: defaultdict[tuple[str, str], ConnectLock] = defaultdict(ConnectLock)


#: Parameters that a server reports without a request. If one is on, the server refuses writes.
READ_ONLY = ("in_hot_standby", "default_transaction_read_only")


class ErrorWrapper(DatabaseErrorWrapper):
    """Close the connection to a server that refuses writes. After a failover another one takes them."""

    wrapper: DatabaseWrapper

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if isinstance(exc_value, ReadOnlySqlTransaction):
            self.wrapper.errors_occurred = True
            self.wrapper.connection.pgconn.finish()
            raise OperationalError(f"{exc_value}; the connection was closed") from exc_value
        super().__exit__(exc_type, exc_value, traceback)


class DatabaseOperations(operations.DatabaseOperations):
    """Django's, except that a name is quoted even if it begins and ends with a quote.

    Django would put such a name into a statement as it is, whatever stands between the quotes.
    """

    def quote_name(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'


class DatabaseSchemaEditor(schema.DatabaseSchemaEditor):
    """A schema editor without a deadline. A migration's statements may take minutes."""

    def __enter__(self) -> DatabaseSchemaEditor:
        self.connection.ensure_connection()
        self._waiting = contextlib.ExitStack()
        self._waiting.enter_context(self.connection.connection.waiting(seconds=None))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with self._waiting:
            super().__exit__(*error)


class Unsent(Protocol):
    """Writes of a block that wait to be sent as one statement."""

    def statement(self) -> tuple[Prepared, Sequence[Any]]: ...


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's wrapper of a connection, with a `BoundedConnection` and a unit of work.

    `unsent` writes are sent before the block's next statement, or else with COMMIT when the block ends. Their
    errors are raised there, as those of a deferred constraint. If the block fails, they are never sent.
    """

    SchemaEditorClass = DatabaseSchemaEditor
    ops_class = DatabaseOperations
    Database = SimpleNamespace(**(vars(psycopg) | {"connect": BoundedConnection.connect}))  # type: ignore[assignment]  # for a module

    #: Whether the connection leads to a pooler, such as pgbouncer.
    is_pooled = False
    unsent: Unsent | None = None
    _direct = ""

    @cached_property
    def wrap_database_errors(self) -> ErrorWrapper:
        return ErrorWrapper(self)

    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()
        deadline = params.pop("deadline", None)
        self._direct = params.pop("direct", "")
        server = str(params.get("host", "")), str(params.get("port", ""))
        return params | {
            "deadline": None if self.alias == NO_DB_ALIAS else deadline,
            "turn": _turns[server],
            "prepare_threshold": ON_REQUEST,
            "cursor_factory": PreparingCursor,
        }

    def init_connection_state(self) -> None:
        """Find out whether a pooler is in between. Raise `PoolerFound` if this connection must not have one.

        The process id that a pooler reports to its clients is invented and differs from the server's. If it
        does, other clients may use the session, too, and this connection prepares no statements.
        """
        super().init_connection_state()
        told = self.connection.info.backend_pid
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid() = %s", [told], prepare=False)
            self.is_pooled = not cursor.fetchone()[0]
        if self.is_pooled:
            self.connection.prepare_threshold = None
            if self._direct:
                self.close()
                raise PoolerFound(
                    setting=self._direct,
                    why="The locks taken through it live as long as a session. Unset, it is DATABASE_URL.",
                )

    def send_unsent(self, *, kind: type[Prepared] = Prepared) -> None:
        unsent, self.unsent = self.unsent, None
        if unsent is None:
            return
        try:
            text, parameters = unsent.statement()
            with super()._cursor() as cursor:  # type: ignore[misc]  # which the stubs leave out, as those below
                cursor.execute(kind(text), parameters)
        except DatabaseError:
            raise  # Django rolls back
        except BaseException:  # such as a value that cannot be encoded: Django expects none here
            if self.in_atomic_block:
                self.needs_rollback = True
            else:
                self._undo()
            raise

    def _undo(self) -> None:
        try:
            self.rollback()
        except Error:
            self.close()

    def validate_no_broken_transaction(self) -> None:
        """Send what is unsent: Django calls this before each statement."""
        super().validate_no_broken_transaction()
        self.send_unsent()

    def _cursor(self, name: str | None = None) -> Any:
        self.send_unsent()  # before a COPY, too
        return super()._cursor(name)  # type: ignore[misc]

    def _commit(self) -> None:
        self.send_unsent(kind=Last)
        super()._commit()  # type: ignore[misc]  # sends nothing if the transaction is over

    def _rollback(self) -> None:
        self.unsent = None
        super()._rollback()  # type: ignore[misc]

    def _savepoint_rollback(self, sid: str) -> None:
        self.unsent = None  # it is younger than the savepoint, before which everything was sent
        super()._savepoint_rollback(sid)  # type: ignore[misc]

    def _close(self) -> None:
        self.unsent = None
        super()._close()  # type: ignore[misc]

    def chunked_cursor(self) -> Any:
        """Return a server-side cursor, or a plain one if a pooler would lose it after a statement."""
        self.ensure_connection()
        if self.is_pooled and not self.in_atomic_block:
            return self.cursor()
        return super().chunked_cursor()

    def is_usable(self) -> bool:
        if self.connection is None:
            return False
        if self.connection.is_alive(seconds=RECENT_SECONDS):
            return True  # the requests of a busy process need no SELECT 1
        with self.connection.waiting(seconds=HEALTH_CHECK_SECONDS):
            usable: bool = super().is_usable()
            return usable and not self._turned_read_only()

    def _turned_read_only(self) -> bool:
        """Return whether a server that was chosen for writes now reports that it refuses them."""
        if self.settings_dict["OPTIONS"].get("target_session_attrs") != "read-write":
            return False
        info = self.connection.info
        return any(info.parameter_status(name) == "on" for name in READ_ONLY)
