"""The manifest of a cold file, which is stored next to the cold file and in the partition's record."""

from __future__ import annotations

import dataclasses
import re

from retention.models import DetachedPartition
from retention.partitioned import partitioned_models
from retention.partitions.catalogue import partition_named

_COLUMN = re.compile(r"[a-z_][a-z0-9_]*")


class ColdFileDiffers(RuntimeError):
    """A cold file is missing, damaged, or differs from its manifest or its table."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The JSON document next to a cold file. Times are ISO 8601 in UTC. The range is [since, until).

    The tables' owner makes statements from these names. A manifest with names that no cold file can have
    raises `ColdFileDiffers`, wherever it comes from.
    """

    partition: str
    table: str
    since: str
    until: str
    columns: list[list[str]]  # name and type, in the CSV's order
    rows: int
    first_id: str | None
    last_id: str | None
    csv_sha256: str
    csv_bytes: int
    file: str
    file_sha256: str
    file_bytes: int
    written_at: str

    def __post_init__(self) -> None:
        model = next((model for model in partitioned_models() if model._meta.db_table == self.table), None)
        if model is None or partition_named(model=model, name=self.partition) is None:
            raise ColdFileDiffers(f"The manifest is of {self.partition!r}, which is no partition of a table.")
        if not re.fullmatch(rf"{self.table}/{self.partition}\.[0-9a-f]+\.csv\.zst", self.file):
            raise ColdFileDiffers(f"The manifest of {self.partition} names the file {self.file!r}.")
        for column, _ in self.columns:
            if not _COLUMN.fullmatch(column):
                raise ColdFileDiffers(f"The manifest of {self.partition} has the column {column!r}.")

    @property
    def name(self) -> str:
        """The name of the manifest's own file in the store."""
        return self.file.removesuffix(".csv.zst") + ".json"

    @classmethod
    def of(cls, record: DetachedPartition) -> Manifest:
        """Read a record's manifest. Raise `ColdFileDiffers` if it has none, or another partition's."""
        if not record.manifest:
            raise ColdFileDiffers(
                f"{record.name} has no cold file. `partitions rollover` writes it after the warm days. Until"
                " then, query the table."
            )
        manifest = cls(**record.manifest)
        if (manifest.table, manifest.partition) != (record.table, record.name):
            raise ColdFileDiffers(f"The record of {record.name} has the manifest of {manifest.partition}.")
        return manifest
