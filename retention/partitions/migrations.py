"""Migration operations for tables that are `PARTITION BY RANGE` of their UUIDv7 primary key."""

from __future__ import annotations

from typing import Any, cast

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

from retention.partitions.indexes import build


class AddPartitionedIndex(migrations.AddIndex):
    """AddIndex for a partitioned table: build it on each partition without blocking writers, and attach it.

    The migration needs `atomic = False`. It waits at most `indexes.LOCK_TIMEOUT` for each lock of the parent,
    and without limit for a concurrent build. After an interruption, run it again.
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
        sql = str(self.index.create_sql(model, schema_editor))
        using = schema_editor.connection.alias
        build(schema_editor.execute, model._meta.db_table, str(self.index.name), sql, using=using)


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
