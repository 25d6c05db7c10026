"""Time-ordered ids (UUIDv7, RFC 9562), and their use as bounds of partitions."""

from __future__ import annotations

import datetime as dt
import re
import uuid

from uuid_utils.compat import uuid7 as _uuid7

_LAST = 253_402_300_799_000  # the last second of the year 9999
_CANONICAL = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
#: The earliest time that a UUIDv7 can contain.
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def new_id() -> uuid.UUID:
    """Make a UUIDv7 that is greater than all earlier ones of this process.

    That holds also if the clock is set back. A fork makes no duplicates.
    """
    return _uuid7()


def parse_uuid(text: object) -> uuid.UUID | None:
    """Parse a UUID of any version in its 8-4-4-4-12 form. Return None for anything else."""
    return uuid.UUID(text) if isinstance(text, str) and _CANONICAL.fullmatch(text) else None


def id_floor(when: dt.datetime) -> uuid.UUID:
    """Return the smallest UUID of the millisecond `when` (aware), with all other bits zero.

    Times before 1970 give the nil UUID. As a bound of a range partition, this makes the upper bound of one
    month the lower bound of the next.
    """
    return uuid.UUID(int=max(0, round(when.timestamp() * 1000)) << 80)


def id_time(value: uuid.UUID) -> dt.datetime:
    """Return the time (UTC, milliseconds) in a UUIDv7, or for another id a time up to the year 9999."""
    return dt.datetime.fromtimestamp(min(value.int >> 80, _LAST) / 1000, dt.UTC)
