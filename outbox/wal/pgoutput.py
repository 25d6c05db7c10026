"""Read from the messages of PostgreSQL's plugin `pgoutput` in which tables a transaction made rows due.

The decoder stores no part of a row, so a large transaction needs no more memory. The format is protocol
version 1 of https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable

_BEGIN, _RELATION, _INSERT, _UPDATE, _COMMIT, _NEW = b"B", b"R", b"I", b"U", b"C", b"N"
_NULL, _UNCHANGED = b"n", b"u"
EPOCH = 946_684_800  # PostgreSQL's epoch, 2000-01-01, in seconds of Unix time


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """A table and its rows that count: those whose `column` has one of `values`.

    Without a `column`, every row counts. With `has_updates`, updated rows count, too, otherwise only
    inserted.
    """

    table: str
    column: str = ""
    values: frozenset[str] = frozenset()
    has_updates: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction: the position after it, and the tables in which it wrote rows that count.

    `xid` has the lower 32 bits of its id. `committed_at` is by the server's clock (epoch seconds).
    """

    position: int
    tables: frozenset[str]
    xid: int
    committed_at: float


class Decoder:
    """Read the messages of one stream in their order."""

    def __init__(self, watched: Iterable[Watched]) -> None:
        self._watched = {one.table: one for one in watched}
        self._relations: dict[int, tuple[Watched | None, int]] = {}  # by oid, with the column's index
        self._tables: set[str] = set()
        self._xid = 0

    def read(self, message: bytes) -> Committed | None:
        """Read the next message. If it is a commit, return what the transaction did."""
        kind = message[:1]
        if kind in (_INSERT, _UPDATE):
            self._read_row(message)
        elif kind == _RELATION:
            self._read_relation(message)
        elif kind == _BEGIN:
            (self._xid,) = struct.unpack_from(">I", message, 17)  # after the commit's position and time
        elif kind == _COMMIT:
            position, micros = struct.unpack_from(">Qq", message, 10)  # after flags and the commit's position
            tables, self._tables = frozenset(self._tables), set()
            return Committed(position, tables, self._xid, EPOCH + micros / 1_000_000)
        return None

    def _read_relation(self, message: bytes) -> None:
        (oid,) = struct.unpack_from(">I", message, 1)
        _, at = _text(message, 5)
        table, at = _text(message, at)
        (count,) = struct.unpack_from(">H", message, at + 1)  # after the replica identity
        at += 3
        columns = []
        for _ in range(count):
            name, at = _text(message, at + 1)  # after the flags
            at += 8  # type and its modifier
            columns.append(name)
        watched = self._watched.get(table)
        index = columns.index(watched.column) if watched and watched.column else -1
        self._relations[oid] = watched, index

    def _read_row(self, message: bytes) -> None:
        (oid,) = struct.unpack_from(">I", message, 1)
        watched, index = self._relations[oid]
        if watched is None or watched.table in self._tables:
            return
        at = 5
        if message[at : at + 1] != _NEW:  # an update that changed the key begins with the old key
            at = _after(message, at + 1)
        if index < 0 or _value(message, at + 1, index) in watched.values:
            self._tables.add(watched.table)


def _text(message: bytes, at: int) -> tuple[str, int]:
    """Return the text at `at`, and the position of the next field."""
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def _field(message: bytes, at: int) -> tuple[int, int]:
    """Return the bounds of a column's value, which are equal if it is null or not sent."""
    if message[at : at + 1] in (_NULL, _UNCHANGED):
        return at + 1, at + 1
    (length,) = struct.unpack_from(">I", message, at + 1)
    return at + 5, at + 5 + length


def _after(message: bytes, at: int) -> int:
    """Return the end of the row that begins at `at`."""
    (count,) = struct.unpack_from(">H", message, at)
    at += 2
    for _ in range(count):
        _, at = _field(message, at)
    return at


def _value(message: bytes, at: int, index: int) -> str:
    """Return the value of a row's column as text."""
    begin = end = at + 2
    for _ in range(index + 1):
        begin, end = _field(message, end)
    return message[begin:end].decode()
