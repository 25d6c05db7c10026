"""Read PHP's `serialize`, in which some plug-ins store their lists."""

from __future__ import annotations

from typing import Any

_DEEPEST = 20
_MOST = 10_000  # values


class NotSerialized(ValueError):
    pass


def unserialize(text: str) -> Any:
    """Return the value of a text that PHP serialized. Raise `NotSerialized`, also for an object.

    A list becomes a dictionary with the keys of PHP's array.

    >>> unserialize('a:1:{i:0;a:1:{s:6:"number";s:3:"Zü";}}')
    {0: {'number': 'Zü'}}
    """
    reader = _Reader(text.encode())
    try:
        value = reader.read(0)
    except (ValueError, IndexError, RecursionError):
        raise NotSerialized from None
    if reader.place != len(reader.data):
        raise NotSerialized
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.place, self.count = data, 0, 0

    def read(self, depth: int) -> Any:
        self.count += 1
        if depth > _DEEPEST or self.count > _MOST:
            raise NotSerialized
        kind = self._take(1)
        if kind == b"N":
            return self._expect(b";", None)
        self._expect(b":", None)
        match kind:
            case b"i":
                return int(self._until(b";"))
            case b"d":
                return float(self._until(b";"))
            case b"b":
                return self._until(b";") == b"1"
            case b"s":
                text = self._take(self._length(b":", b'"'))
                return self._expect(b'";', text.decode("utf-8", "replace"))
            case b"a":
                count = self._length(b":", b"{")
                pairs = {self.read(depth + 1): self.read(depth + 1) for _ in range(count)}
                return self._expect(b"}", pairs)
        raise NotSerialized

    def _length(self, *marks: bytes) -> int:
        length = int(self._until(marks[0]))
        self._expect(marks[1], None)
        if not 0 <= length <= len(self.data):
            raise NotSerialized
        return length

    def _until(self, mark: bytes) -> bytes:
        end = self.data.index(mark, self.place)
        part, self.place = self.data[self.place : end], end + len(mark)
        return part

    def _take(self, count: int) -> bytes:
        part = self.data[self.place : self.place + count]
        if len(part) != count:
            raise NotSerialized
        self.place += count
        return part

    def _expect(self, mark: bytes, value: Any) -> Any:
        if self._take(len(mark)) != mark:
            raise NotSerialized
        return value
