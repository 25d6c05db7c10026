"""The backend: `ENGINE = "outbox.database.postgres"`, with `OPTIONS = {"deadline": 4.0, "prepared": True}`.

`deadline` is in seconds. With `prepared`, the connection prepares `cursor.Prepared` statements. If `prepared`
is None, it does so unless a pooler shares the sessions. `own_session` names the setting whose URL must not
lead to shared sessions.

Migrations, and statements that make or drop whole databases, have no deadline. psycopg's connection pools are
not supported, because they connect with their own class.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base, schema
from django.db.utils import DatabaseErrorWrapper, OperationalError
from django.utils.functional import cached_property
from psycopg.errors import ReadOnlySqlTransaction

from outbox.database.postgres.connection import BoundedConnection, Gate
from outbox.database.postgres.cursor import PreparingCursor
from outbox.database.postgres.sessions import SharedSession, has_shared_sessions

#: An idle connection must answer its health check within this time. Otherwise it is replaced.
HEALTH_CHECK_SECONDS = 1.0

#: A connection that answered within this time and was not closed since needs no health check.
RECENT_SECONDS = 1.0

#: A `prepare_threshold` that no statement reaches, so that only `Prepared` statements are prepared.
ON_REQUEST = 2**31

#: A pooler must answer each statement of the test for shared sessions within this time.
PROBE_SECONDS = 1.0

#: The gate of each server, by host and port.
_gates: defaultdict[tuple[str, str], Gate] = defaultdict(Gate)

#: Whether a pooler shares its sessions, by host, port, user and database. A process tests each once.
_shared: dict[tuple[str, ...], bool] = {}
_asking = threading.Lock()


#: Parameters that a server reports without a request. If one is on, the server refuses writes.
READ_ONLY = ("in_hot_standby", "default_transaction_read_only")


class ErrorWrapper(DatabaseErrorWrapper):
    """Close the connection to a server that refuses writes, because after a failover another takes them."""

    wrapper: DatabaseWrapper

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if isinstance(exc_value, ReadOnlySqlTransaction):
            self.wrapper.errors_occurred = True
            self.wrapper.connection.pgconn.finish()
            raise OperationalError(f"{exc_value}; the connection was closed") from exc_value
        super().__exit__(exc_type, exc_value, traceback)


class DatabaseSchemaEditor(schema.DatabaseSchemaEditor):
    """A schema editor without a deadline, because a migration's statements may take minutes."""

    def __enter__(self) -> DatabaseSchemaEditor:
        self.connection.ensure_connection()
        self._waiting = contextlib.ExitStack()
        self._waiting.enter_context(self.connection.connection.waiting(seconds=None))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with self._waiting:
            super().__exit__(*error)


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's wrapper of a connection, with a `BoundedConnection`."""

    SchemaEditorClass = DatabaseSchemaEditor
    Database = SimpleNamespace(**(vars(psycopg) | {"connect": BoundedConnection.connect}))  # type: ignore[assignment]  # for a module

    #: Whether other clients use the sessions of this connection, too.
    sessions_shared = False
    _own_session = ""
    _prepared: bool | None = False

    @cached_property
    def wrap_database_errors(self) -> ErrorWrapper:
        return ErrorWrapper(self)

    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()
        deadline = params.pop("deadline", None)
        self._own_session = params.pop("own_session", "")
        self._prepared = params.pop("prepared", False)
        if self._prepared is not False:
            if params["prepare_threshold"] is None:
                params["prepare_threshold"] = ON_REQUEST
            params["cursor_factory"] = PreparingCursor
        server = str(params.get("host", "")), str(params.get("port", ""))
        return params | {
            "deadline": None if self.alias == NO_DB_ALIAS else deadline,
            "gate": _gates[server],
        }

    def init_connection_state(self) -> None:
        """Detect a pooler, and set how prepared statements are planned.

        `Prepared` statements have one plan for all values. With a `prepare_threshold` in the URL, all
        statements are prepared, and each use is planned for its values. A plan for all values cannot use a
        partial index, as most of ours are, and would take minutes instead of milliseconds. This method
        changes the setting, because pgbouncer refuses it as an option of the connection.

        Raise `SharedSession`.
        """
        super().init_connection_state()
        threshold = self.connection.prepare_threshold
        mode = "auto" if threshold == ON_REQUEST else "force_custom_plan"
        with self.connection.cursor() as cursor:
            # A pooler invents the process id that it reports to its clients.
            told = self.connection.info.backend_pid
            cursor.execute("SELECT pg_backend_pid() = %s", [told], prepare=False)
            pooled = not cursor.fetchone()[0]
            self.sessions_shared = pooled and self._ask_pooler()
            if threshold is not None and not self.sessions_shared:
                cursor.execute("SELECT set_config('plan_cache_mode', %s, false)", [mode], prepare=False)
        if self.sessions_shared:
            self._share_sessions()

    def _ask_pooler(self) -> bool:
        params = self.get_connection_params()
        key = tuple(str(params.get(name, "")) for name in ("host", "port", "user", "dbname"))
        with _asking:
            if key not in _shared:
                params |= {"deadline": PROBE_SECONDS, "gate": Gate(), "prepare_threshold": None}
                with self.connection.waiting(seconds=PROBE_SECONDS):
                    found = has_shared_sessions(
                        self.connection, connect=lambda: BoundedConnection.connect(**params)
                    )
                if found is None:
                    return False
                _shared[key] = found
            return _shared[key]

    def _share_sessions(self) -> None:
        if self._own_session:
            self.close()
            raise SharedSession(
                setting=self._own_session,
                why="The locks taken through it live as long as a session. Unset, it is DATABASE_URL.",
            )
        if self._prepared is None:
            self.connection.prepare_threshold = None

    def chunked_cursor(self) -> Any:
        """Return a server-side cursor, or a plain one if a shared session would lose it after a statement."""
        self.ensure_connection()
        if self.sessions_shared and not self.in_atomic_block:
            return self.cursor()
        return super().chunked_cursor()

    def is_usable(self) -> bool:
        if self.connection is None:
            return False
        if self.connection.is_alive(seconds=RECENT_SECONDS):
            return True  # so that the requests of a busy process need no SELECT 1
        with self.connection.waiting(seconds=HEALTH_CHECK_SECONDS):
            usable: bool = super().is_usable()
            return usable and not self._turned_read_only()

    def _turned_read_only(self) -> bool:
        """Return whether a server that was chosen for writes now reports that it refuses them."""
        if self.settings_dict["OPTIONS"].get("target_session_attrs") != "read-write":
            return False
        info = self.connection.info
        return any(info.parameter_status(name) == "on" for name in READ_ONLY)
