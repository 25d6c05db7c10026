"""The time zones by which e-mails write dates."""

from __future__ import annotations

import datetime as dt
import functools
import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

#: The form of an IANA name. Other files of the database, such as "localtime", begin with a small letter.
ZONE_NAME = "[A-Z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*"
LONGEST_ZONE = 50
_OFFSET = re.compile(r"([+-])(0[0-9]|1[0-4]):([0-5][0-9])")


@functools.lru_cache(maxsize=1024)
def find_zone(name: str) -> dt.tzinfo | None:
    """Return the time zone of an IANA name or of an offset from UTC, or None.

    >>> find_zone("-08:00"), find_zone("Mars/Base")
    (datetime.timezone(datetime.timedelta(days=-1, seconds=57600)), None)
    """
    if match := _OFFSET.fullmatch(name):
        offset = dt.timedelta(hours=int(match[2]), minutes=int(match[3]))
        return dt.timezone(-offset if match[1] == "-" else offset)
    return ZoneInfo(name) if is_zone_name(name) else None


@functools.lru_cache(maxsize=1024)
def is_zone_name(text: str) -> bool:
    """Return whether a text is the IANA name of a time zone."""
    if not re.fullmatch(ZONE_NAME, text):
        return False
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: of a folder, such as "Europe"
        return False
    return True
