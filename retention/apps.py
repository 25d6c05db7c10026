from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


def make_partitions(*, using: str, **_: Any) -> None:
    """Create the next partitions at the end of every migrate."""
    from retention.upkeep import ensure_all

    for _name in ensure_all(using=using):
        pass


class RetentionConfig(AppConfig):
    name = "retention"
    roles = {"viewer": ["retention.view_detachedpartition"]}

    def ready(self) -> None:
        post_migrate.connect(make_partitions, sender=self, dispatch_uid="partitions")
