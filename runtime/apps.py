"""Start a process's traces, name its unknown variables, and refuse migrations that would do harm."""

from __future__ import annotations

from typing import Any

import structlog
from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import pre_migrate

log = structlog.get_logger(__name__)

#: A migration and tables that every database had before each app had one initial migration.
EARLIER_MIGRATION = ("outbox", "0002_retired_partitions_and_erasures")
EARLIER_TABLES = {"dead_events", "retired_partitions"}


def refuse_pooler(*, using: str, **_: Any) -> None:
    """Raise `PoolerFound` if a migrate would change the settings of other clients' sessions."""
    from django.db import connections

    from runtime.database.postgres.connection import PoolerFound

    connection = connections[using]
    connection.ensure_connection()
    if getattr(connection, "is_pooled", False):
        raise PoolerFound(setting="DATABASE_URL", why="A migration changes settings of its session.")


def refuse_earlier_database(*, using: str, **_: Any) -> None:
    """Raise `ImproperlyConfigured` if an earlier release made the database.

    Its `django_migrations` has rows of apps that have other migrations today. A migrate would take those for
    done, and create only a part of the tables.
    """
    from django.db import connections
    from django.db.migrations.recorder import MigrationRecorder

    connection = connections[using]
    applied = MigrationRecorder(connection).applied_migrations()
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
    if EARLIER_MIGRATION in applied or not EARLIER_TABLES.isdisjoint(tables):
        raise ImproperlyConfigured(
            "An earlier release made this database, and this release cannot migrate it, so use an empty one"
            " (for a local run: `make clean`)."
        )


class RuntimeConfig(AppConfig):
    name = "runtime"
    roles = {
        "viewer": ["runtime.view_heartbeat", "runtime.view_bulkjob", "runtime.view_pause"],
        "operator": ["runtime.set_pause"],
    }

    def ready(self) -> None:
        """Name unknown variables, start traces, and refuse migrations that would do harm."""
        from django.conf import settings

        from runtime.telemetry import tracing

        for name, closest in settings.UNKNOWN_VARIABLES.items():
            log.warning("variable is not a setting", variable=name, closest=closest)
        tracing.start()
        pre_migrate.connect(refuse_pooler, sender=self, dispatch_uid="pooler")
        pre_migrate.connect(refuse_earlier_database, sender=self, dispatch_uid="earlier database")
