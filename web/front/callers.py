"""Who asks: a caller with a live token, a person with a live session, or a stranger.

The headers decide before a body is read. A process knows the live tokens, which it reads again every few
seconds, and the sessions that it saw in the last minute. Others are looked up once. The views check token and
session again: what is known here only decides who waits for whom.
"""

from __future__ import annotations

import enum
import time
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from django.http.cookie import parse_cookie

from runtime.process.cached_rows import CachedRows, version_of
from web.api.authentication import bearer_digest
from web.api.first_read import LIVE, read_first

#: How long a caller that was looked up stays known, and how many do.
KNOWN_SECONDS, MOST_KNOWN = 60.0, 1000
API = "/api/"


class Caller(enum.Enum):
    """Who asks."""

    TOKEN = enum.auto()
    SESSION = enum.auto()
    STRANGER = enum.auto()


def _load_digests() -> dict[str, bool]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT token.digest FROM api_tokens AS token WHERE {LIVE}")  # noqa: S608 - no values
        return {digest: True for (digest,) in cursor.fetchall()}


#: The digests of the live tokens.
DIGESTS: CachedRows[bool] = CachedRows(
    version=version_of("api_tokens AS token", where=LIVE), load=_load_digests
)
#: Keys of sessions and digests of tokens that were looked up, and until when they are known.
_known_until: dict[str, float] = {}


def recognise(environ: dict[str, Any]) -> Caller:
    """Return who asks, as far as the process knows. Read nothing."""
    kind, secret = _credentials(environ)
    if secret and (
        (kind is Caller.TOKEN and secret in (DIGESTS.value or ()))
        or _known_until.get(secret, 0.0) > time.monotonic()
    ):
        return kind
    return Caller.STRANGER


def is_unproven(environ: dict[str, Any]) -> bool:
    """Return whether a stranger shows a token or session, which `look_up` could find."""
    return bool(_credentials(environ)[1])


def look_up(environ: dict[str, Any]) -> Caller:
    """Return who asks by a statement for its token or session."""
    kind, secret = _credentials(environ)
    if kind is Caller.TOKEN:
        is_live = bool(secret) and read_first(digest=secret) is not None
    else:
        is_live = bool(secret) and "_auth_user_id" in SessionStore(secret).load()
    if not is_live:
        return Caller.STRANGER
    if len(_known_until) >= MOST_KNOWN:
        _known_until.clear()
    _known_until[secret] = time.monotonic() + KNOWN_SECONDS
    return kind


def _credentials(environ: dict[str, Any]) -> tuple[Caller, str]:
    if environ["PATH_INFO"].startswith(API):
        return Caller.TOKEN, bearer_digest(environ.get("HTTP_AUTHORIZATION", ""))
    if cookies := environ.get("HTTP_COOKIE"):
        return Caller.SESSION, parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME, "")
    return Caller.STRANGER, ""
