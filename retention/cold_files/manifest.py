"""The manifest of a cold file, which is stored next to the cold file and in the partition's record."""

from __future__ import annotations

import dataclasses

from retention.models import DetachedPartition


class ColdFileDiffers(RuntimeError):
    """A cold file is missing, damaged, or differs from its manifest or its table."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The JSON document next to a cold file. Times are ISO 8601 in UTC. The range is [since, until)."""

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

    @property
    def name(self) -> str:
        """The name of the manifest's own file in the store."""
        return self.file.removesuffix(".csv.zst") + ".json"

    @classmethod
    def of(cls, record: DetachedPartition) -> Manifest:
        """Read a record's manifest. Raise `ColdFileDiffers` if it has none."""
        if not record.manifest:
            raise ColdFileDiffers(
                f"{record.name} has no cold file. `partitions rollover` writes it after the warm days. Until"
                " then, query the table."
            )
        return cls(**record.manifest)
