"""Time-ordered ids (UUIDv7, RFC 9562) and the bounds that partitions make of them."""

from __future__ import annotations

import datetime as dt
import uuid

from uuid_utils.compat import uuid7 as _uuid7

_LAST = 253_402_300_799_000  # the last second of the year 9999
#: No UUIDv7 is of an earlier time.
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def new_id() -> uuid.UUID:
    """Make a UUIDv7 that is greater than every one this process made before.

    Monotonic within a process also when its clock is set back, and safe after a fork.
    """
    return _uuid7()


def id_floor(when: dt.datetime) -> uuid.UUID:
    """Return the smallest UUID of the millisecond `when` (aware): all other bits zero.

    Times before 1970 have the nil UUID. As a bound of a range partition it makes the upper bound of one month
    the lower bound of the next.
    """
    return uuid.UUID(int=max(0, round(when.timestamp() * 1000)) << 80)


def id_time(value: uuid.UUID) -> dt.datetime:
    """Return the time (UTC, milliseconds) that is in a UUIDv7; of another id, at most the year 9999."""
    return dt.datetime.fromtimestamp(min(value.int >> 80, _LAST) / 1000, dt.UTC)
