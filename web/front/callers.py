"""The caller of a request: one with a live token, a person with a live session, or a stranger.

The headers decide before a body is read. A process knows the live tokens, which it reads again every few
seconds, and the sessions that it saw in the last minute. Others are looked up once. The views check token and
session again: what is known here only decides who waits for whom.
"""

from __future__ import annotations

import enum
import re
import time
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
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
    TOKEN = enum.auto()
    SESSION = enum.auto()
    STRANGER = enum.auto()


def _load_digests() -> dict[str, bool]:
    with connection.cursor() as cursor:
        columns = "token.digest, token.previous_digest"
        cursor.execute(f"SELECT {columns} FROM api_tokens AS token WHERE {LIVE}")  # noqa: S608 - no values
        return {digest: True for digests in cursor.fetchall() for digest in digests if digest}


#: The digests of the live tokens, also those of before a rotation.
DIGESTS: CachedRows[bool] = CachedRows(
    version=version_of("api_tokens AS token", where=LIVE), load=_load_digests
)
#: Django's keys of sessions.
_SESSION_KEY = re.compile(r"[a-z0-9]{32}")
Credentials = tuple[Caller, str]
#: Until when tokens (by digest) and sessions (by key) that were looked up are known.
_known_until: dict[Credentials, float] = {}


def recognise(environ: dict[str, Any]) -> Caller:
    """Return who asks, as far as the process knows. Read nothing."""
    kind, secret = shown = _credentials(environ)
    if kind is Caller.TOKEN and secret in (DIGESTS.value or ()):
        return kind
    return kind if _known_until.get(shown, 0.0) > time.monotonic() else Caller.STRANGER


def is_unproven(environ: dict[str, Any]) -> bool:
    """Return whether a stranger shows a token or session, which `look_up` could find."""
    return bool(_credentials(environ)[1])


def look_up(environ: dict[str, Any]) -> Caller:
    """Return who asks by a statement for the token or session that `environ` shows."""
    kind, secret = shown = _credentials(environ)
    if kind is Caller.TOKEN:
        is_live = read_first(digest=secret) is not None
    else:
        is_live = SESSION_KEY in SessionStore(secret).load()
    if not is_live:
        return Caller.STRANGER
    if len(_known_until) >= MOST_KNOWN:
        _known_until.clear()
    _known_until[shown] = time.monotonic() + KNOWN_SECONDS
    return kind


def _credentials(environ: dict[str, Any]) -> Credentials:
    """Return what a request shows: a token's digest or a session's key, or an empty text."""
    if environ["PATH_INFO"].startswith(API):
        return Caller.TOKEN, bearer_digest(environ.get("HTTP_AUTHORIZATION", ""))
    key = parse_cookie(environ.get("HTTP_COOKIE", "")).get(settings.SESSION_COOKIE_NAME, "")
    return Caller.SESSION, key if _SESSION_KEY.fullmatch(key) else ""
