"""Changes that the logs have and the database does not, collected in a temporary file.

Memory may be too small for them: after a restore to yesterday, they are the e-mails and events of a day.
"""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Iterator

#: One change in the logs: its `kind`, `id`, `first_at` and `last_at`, and other fields of its lines.
Lost = dict[str, str | bool]


class LostChanges:
    """The lost changes, each once. Iteration yields them by the time of their first line."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("")  # a temporary file that SQLite deletes
        weakref.finalize(self, self._file.close)  # whoever reads the report reads the file last
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute(
            "CREATE TABLE lost (kind TEXT, id TEXT, first_at TEXT, note TEXT, PRIMARY KEY (kind, id))"
        )

    def add(self, note: Lost) -> None:
        """Add a change, or merge it with the stored change of the same kind and id."""
        key = str(note["kind"]), str(note["id"])
        row = self._file.execute("SELECT note FROM lost WHERE kind = ? AND id = ?", key).fetchone()
        if row is not None:
            note = merged(json.loads(row[0]), note)
        values = (*key, str(note["first_at"]), json.dumps(note))
        self._file.execute("INSERT OR REPLACE INTO lost VALUES (?, ?, ?, ?)", values)

    def __len__(self) -> int:
        count: int = self._file.execute("SELECT count(*) FROM lost").fetchone()[0]
        return count

    def __iter__(self) -> Iterator[Lost]:
        for (note,) in self._file.execute("SELECT note FROM lost ORDER BY first_at, kind, id"):
            yield json.loads(note)


def merged(earlier: Lost, later: Lost) -> Lost:
    """Merge two records of one change, in either order. An e-mail that was ever sent stays `sent`.

    >>> sent = {"kind": "e-mail", "id": "1", "first_at": "12:01", "last_at": "12:02", "now": "sent"}
    >>> later = {"kind": "e-mail", "id": "1", "first_at": "12:03", "last_at": "12:03", "now": "pending"}
    >>> merged(sent, later) == merged(later, sent) == sent | {"last_at": "12:03"}
    True
    """
    if str(earlier["last_at"]) > str(later["last_at"]):
        earlier, later = later, earlier
    note = earlier | later
    note["first_at"] = min(str(earlier["first_at"]), str(later["first_at"]))
    if "sent" in (earlier.get("now"), later.get("now")):
        note["now"] = "sent"
    return note
