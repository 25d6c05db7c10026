"""The tables of retention: detached partitions and erasures."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from runtime.database.ids import new_id


class DetachedPartition(models.Model):
    """A detached partition: the time of each later step, and the cold file's manifest.

    Records are kept for ever. The time of a step is null until the step is done. A step that was done but not
    recorded is repeated.
    """

    name = models.CharField(primary_key=True, max_length=63)
    table = models.CharField(max_length=63)
    since = models.DateTimeField()  # [since, until) are the times of its ids
    until = models.DateTimeField()
    manifest = models.JSONField(null=True)  # retention.cold_files.manifest.Manifest; null until archived
    detached_at = models.DateTimeField(db_default=Now())
    archived_at = models.DateTimeField(null=True)
    dropped_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)  # of the cold file, after ARCHIVE_YEARS

    class Meta:
        db_table = "detached_partitions"
        verbose_name = "partition"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class Erasure(models.Model):
    """An erasure of a person, identified by a keyed hash of the address, and its remaining work."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    address_hash = models.CharField(max_length=64, unique=True)
    cold_files = models.JSONField(default=list)  # partitions whose cold files must still be rewritten
    counts = models.JSONField(default=dict)  # rows changed, by table
    requested_at = models.DateTimeField(db_default=Now())  # first; the cold files are rewritten from it on
    repeated_at = models.DateTimeField(null=True)  # last, if the person asked again
    finished_at = models.DateTimeField(null=True)  # of everything except the cold files

    class Meta:
        db_table = "erasures"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"erasure of {self.requested_at:%Y-%m-%d}"
