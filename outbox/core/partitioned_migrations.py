"""Migration operations for tables that are `PARTITION BY RANGE` of their UUIDv7 primary key."""

from __future__ import annotations

from typing import Any, cast

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState


class AddPartitionedIndex(migrations.AddIndex):
    """AddIndex for a partitioned table: built on each partition beside its writers, then attached.

    The migration needs `atomic = False`. A killed build leaves an invalid index: drop it and migrate again.
    """

    atomic = False

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Create the index on the parent alone, on each partition concurrently, and attach them."""
        model = to_state.apps.get_model(app_label, self.model_name)
        editor = cast(Any, schema_editor)
        quote = editor.quote_name
        table, name = model._meta.db_table, str(self.index.name)
        sql = str(self.index.create_sql(model, schema_editor))
        parent = f" ON {quote(table)} "
        assert parent in sql
        editor.execute(sql.replace(parent, f" ON ONLY {quote(table)} ", 1))
        with editor.connection.cursor() as cursor:
            cursor.execute(
                "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass(%s)", [table]
            )
            partitions = [found for (found,) in cursor.fetchall()]
        for partition in partitions:
            child = f"{partition}_{name}"[-63:]
            own = sql.replace(parent, f" ON {quote(partition)} ", 1).replace(quote(name), quote(child), 1)
            editor.execute(own.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1))
            editor.execute(f"ALTER INDEX {quote(name)} ATTACH PARTITION {quote(child)}")


class CreatePartitionedModel(migrations.CreateModel):
    """CreateModel whose table is PARTITION BY RANGE of its primary key. Django's state is the same."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Create the parent table; partitions follow after migrate."""
        key = to_state.apps.get_model(app_label, self.name)._meta.pk
        assert key is not None
        editor = cast(Any, schema_editor)
        plain = editor.sql_create_table
        editor.sql_create_table = f"{plain} PARTITION BY RANGE ({editor.quote_name(key.column)})"
        try:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        finally:
            editor.sql_create_table = plain
