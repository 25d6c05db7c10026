"""The rules for rows that are deleted or emptied when they are old. A model lists its own in `purge_rules`.

`retention.purge` reads them, and knows no table by name but those of libraries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class PurgeRule:
    """Rows whose `column` is older than `days`, by the database's clock, except those to `keep`.

    With `most`, also the oldest of more rows than that, of a small table. The column has an index, or the
    table is small. A function of days reads a setting. `keep` is a condition in SQL, with `%%` for a percent
    sign. With `erased`, the SQL values of columns, rows are not deleted but get these. `keep` must then hold
    for a row that has them.
    """

    column: str
    days: float | Callable[[], int]
    keep: str = "false"
    most: int | None = None
    erased: Mapping[str, str] | None = None
