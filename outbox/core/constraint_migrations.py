"""A migration operation for CHECK constraints of tables that are being written to."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState


class ReplaceConstraint(migrations.AddConstraint):
    """Replace the CHECK of the same name by this one, with a lock of a moment.

    Existing rows are checked after the lock is released. Needs `atomic = False` in its migration. If the lock
    is not granted in 5 seconds, or an existing row breaks the rule, migrate again: a second run is harmless.
    """

    LOCK_TIMEOUT = "5s"

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.remove_constraint(app_label, self.model_name_lower, self.constraint.name)
        super().state_forwards(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        constraint = next(one for one in model._meta.constraints if one.name == self.constraint.name)
        self._replace(schema_editor, model, constraint)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self.database_forwards(app_label, schema_editor, from_state, to_state)

    def describe(self) -> str:
        return f"Replace constraint {self.constraint.name} on model {self.model_name}"

    def _replace(self, editor: Any, model: type[models.Model], constraint: models.BaseConstraint) -> None:
        name = editor.quote_name(constraint.name)
        add = str(constraint.create_sql(model, editor))
        assert " ADD CONSTRAINT " in add
        with transaction.atomic(using=editor.connection.alias):
            editor.execute(f"SET LOCAL lock_timeout = '{self.LOCK_TIMEOUT}'")
            editor.execute(
                add.replace(" ADD CONSTRAINT ", f" DROP CONSTRAINT IF EXISTS {name}, ADD CONSTRAINT ", 1)
                + " NOT VALID"
            )
        editor.execute(f"ALTER TABLE {editor.quote_name(model._meta.db_table)} VALIDATE CONSTRAINT {name}")
