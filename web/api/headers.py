"""Headers that have one value."""

from __future__ import annotations


def single_value(header: str) -> str:
    """Return the value of a header that was perhaps sent twice.

    The server joins two headers of a name with a comma. A value whose halves are equal is that value once.
    Otherwise a comma is a part of the value.

    >>> single_value("a,a"), single_value('"a", "a"'), single_value("a,b"), single_value("a,b,a,b")
    ('a', '"a"', 'a,b', 'a,b')
    """
    parts = header.split(",")
    middle = len(parts) // 2
    first, second = (",".join(half).strip() for half in (parts[:middle], parts[middle:]))
    return first if first == second else header
