"""Fetch the logo of a profile once, when it is saved, and say what customers would not see.

E-mails have a link to it. What is wrong with a file that was fetched is an error. That it could not be
fetched is a warning: an outage, or a firewall before us, must not keep anybody from saving a profile.
"""

from __future__ import annotations

import time

from django.conf import settings

from runtime.bounded_http import Call, HttpAnswer, TooLong, Unreachable, ask, follow_redirects

MOST_BYTES = 1_000_000
#: For all redirects. The page of the profile holds the profile's row meanwhile.
MOST_SECONDS = 5.0
_PNG, _JPEG, _GIF = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", (b"GIF87a", b"GIF89a")
_NOWHERE = (404, 410)


class BadLogo(Exception):
    """Customers would not see the logo. The text says why."""


class LogoNotChecked(Exception):
    """The logo may be right, and could not be fetched. The text says why."""


def check_logo(url: str) -> None:
    """Fetch a logo. Raise `BadLogo` or `LogoNotChecked`."""
    ends_at = time.monotonic() + MOST_SECONDS
    server = "logo's server"

    def ask_once(url: str) -> HttpAnswer:
        call = Call(
            url=url,
            server=server,
            most_bytes=MOST_BYTES,
            is_private_allowed=settings.CONNECTIONS_PRIVATE,
            headers={"Accept": "image/*"},
        )
        return ask(call, seconds=max(0.0, ends_at - time.monotonic()))

    try:
        answer = follow_redirects(url, ask_once, server=server)
    except TooLong:
        raise BadLogo(f"The logo has more than {MOST_BYTES:,} bytes. Make it smaller.") from None
    except Unreachable as error:
        raise LogoNotChecked(f"The logo could not be checked. {error}") from None
    if answer.status in _NOWHERE:
        raise BadLogo(f"This address has no file. Its server answered with status {answer.status}.")
    if answer.status != 200:
        raise LogoNotChecked(
            f"The logo could not be checked. The {server} answered with status {answer.status}."
        )
    if not answer.body.startswith((_PNG, _JPEG, *_GIF)):
        raise BadLogo("This is not a PNG, JPEG or GIF image. Mail programs show no others.")
