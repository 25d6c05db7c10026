"""Let a person send ten test e-mails an hour: previews, tests of providers, and links to the own address.

They go out at once, past the rate limit and the breakers, and some to any address that is typed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from runtime.process.counts import count

PREFIX = "orderpost:test-emails:"
MOST, SECONDS = 10, 3600
_AWAY = "test e-mails are not counted: Valkey is away"


class TooManyTestEmails(Exception):
    """The person has to wait, and nothing was sent. The text says how long."""


@contextlib.contextmanager
def count_test_email(user: Any) -> Iterator[None]:
    """Count the test e-mail that the block sends, unless it raises `ValueError`, which means it sent none.

    Raise `TooManyTestEmails` before the block if it would be one too many.
    """
    key = f"{PREFIX}{user.pk}"
    number, seconds_left = count(key, kept_seconds=SECONDS, away=_AWAY)
    if number > MOST:
        minutes = math.ceil(seconds_left / 60)
        raise TooManyTestEmails(
            f"You have sent {MOST} test e-mails within an hour, which is the most. Try again in"
            f" {minutes} minute{'s' * (minutes > 1)}."
        )
    try:
        yield
    except ValueError:
        count(key, kept_seconds=SECONDS, away=_AWAY, by=-1)
        raise
