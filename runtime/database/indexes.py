"""Our indexes: those that the models declare by name, next to those that PostgreSQL has and uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.db import models

from runtime.database.parts import HAS_TRIGRAMS, is_of_parts


def declared() -> Iterator[tuple[type[models.Model], models.Index]]:
    """Yield each index of our models, but not those that belong to keys and constraints."""
    for app in apps.get_app_configs():
        if Path(app.path).parent == settings.BASE_DIR:  # not a library's
            for model in app.get_models():
                if model._meta.managed:
                    yield from ((model, index) for index in model._meta.indexes)


def select_missing() -> str:
    """Return the SELECT of the indexes that are missing, or invalid after a build that failed.

    Leave out those of a table of which one is being built now, and those for which an extension is missing.
    """
    names = ", ".join(
        f"('{index.name}', '{model._meta.db_table}', {not is_of_parts(index)})" for model, index in declared()
    )
    return f"""
        SELECT index.name, indexrelid IS NOT NULL AS is_there
        FROM (VALUES {names}) AS index (name, of_table, is_plain)
            LEFT JOIN pg_index ON indexrelid = to_regclass(index.name)
        WHERE (is_plain OR {HAS_TRIGRAMS})
            AND (indexrelid IS NULL OR NOT indisvalid OR NOT indisready)
            AND NOT EXISTS (
            SELECT FROM pg_stat_progress_create_index AS build
                LEFT JOIN pg_inherits AS part ON part.inhrelid = build.relid
            WHERE to_regclass(of_table) IN (build.relid, part.inhparent)
        )
        ORDER BY 1
    """  # noqa: S608 - names of our models
