"""Migration operations for tables that are `PARTITION BY RANGE` of their UUIDv7 primary key."""

from __future__ import annotations

from typing import Any, cast

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

#: How long a migration waits for a lock that writers want, too. Writers queue behind the migration, which is
#: why it must be short.
LOCK_TIMEOUT = "3s"


class AddPartitionedIndex(migrations.AddIndex):
    """AddIndex for a partitioned table: build it on each partition without blocking writers, and attach it.

    The migration needs `atomic = False`. It waits at most `LOCK_TIMEOUT` for each lock of the parent, and
    without limit for a concurrent build. After an interruption, run it again.
    """

    atomic = False

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Create the index on the parent only, then on each partition concurrently, and attach these."""
        model = to_state.apps.get_model(app_label, self.model_name)
        editor = cast(Any, schema_editor)
        quote = editor.quote_name
        table, name = model._meta.db_table, str(self.index.name)
        sql = str(self.index.create_sql(model, schema_editor))
        parent = f" ON {quote(table)} "
        assert parent in sql and sql.startswith("CREATE INDEX ")
        editor.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
        on_parent = sql.replace(parent, f" ON ONLY {quote(table)} ", 1)
        editor.execute(on_parent.replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS", 1))
        for partition in _without_index(editor, table, name):
            child = f"{partition}_{name}"[-63:]
            own = sql.replace(parent, f" ON {quote(partition)} ", 1).replace(quote(name), quote(child), 1)
            # A lock_timeout would also abort a concurrent build, and leave an invalid index.
            editor.execute("SET lock_timeout = 0")
            editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {quote(child)}")  # of an interrupted run
            editor.execute(own.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1))
            editor.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
            editor.execute(f"ALTER INDEX {quote(name)} ATTACH PARTITION {quote(child)}")
        editor.execute("RESET lock_timeout")


def _without_index(editor: Any, table: str, index: str) -> list[str]:
    """List the partitions of a table that do not have the index yet."""
    with editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT part.inhrelid::regclass::text FROM pg_inherits AS part"
            " WHERE part.inhparent = to_regclass(%s) AND NOT EXISTS (SELECT FROM pg_inherits AS child"
            " JOIN pg_index ON pg_index.indexrelid = child.inhrelid"
            " WHERE child.inhparent = to_regclass(%s) AND pg_index.indrelid = part.inhrelid)",
            [table, index],
        )
        return [child for (child,) in cursor.fetchall()]


class CreatePartitionedModel(migrations.CreateModel):
    """CreateModel whose table is PARTITION BY RANGE of its primary key. Django's state does not change."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Create the parent table. Its partitions are made after migrate."""
        key = to_state.apps.get_model(app_label, self.name)._meta.pk
        assert key is not None
        editor = cast(Any, schema_editor)
        plain = editor.sql_create_table
        editor.sql_create_table = f"{plain} PARTITION BY RANGE ({editor.quote_name(key.column)})"
        try:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        finally:
            editor.sql_create_table = plain
