"""Start a process's traces, name its unknown variables, and refuse to migrate through a pooler."""

from __future__ import annotations

from typing import Any

import structlog
from django.apps import AppConfig
from django.db.models.signals import pre_migrate

log = structlog.get_logger(__name__)


def refuse_pooler(*, using: str, **_: Any) -> None:
    """Raise `PoolerFound` if a migrate would change the settings of other clients' sessions."""
    from django.db import connections

    from runtime.database.postgres.connection import PoolerFound

    connection = connections[using]
    connection.ensure_connection()
    if getattr(connection, "is_pooled", False):
        raise PoolerFound(setting="DATABASE_URL", why="A migration changes settings of its session.")


class RuntimeConfig(AppConfig):
    name = "runtime"
    roles = {
        "viewer": ["runtime.view_heartbeat", "runtime.view_bulkjob", "runtime.view_pause"],
        "operator": ["runtime.set_pause", "runtime.delete_heartbeat"],
    }

    def ready(self) -> None:
        """Name unknown variables, start traces, and refuse to migrate through a pooler."""
        from django.conf import settings

        from runtime.telemetry import tracing

        for name, closest in settings.UNKNOWN_VARIABLES.items():
            log.warning("variable is not a setting", variable=name, closest=closest)
        tracing.start()
        pre_migrate.connect(refuse_pooler, sender=self, dispatch_uid="pooler")
