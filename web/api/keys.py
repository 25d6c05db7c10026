"""Read the `Idempotency-Key` header."""

from __future__ import annotations

import re

from rest_framework.request import Request

from web.api.problems import Fault, Problem, invalid

HEADER = "Idempotency-Key"
_HEADER = "HTTP_IDEMPOTENCY_KEY"  # as WSGI names it
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')  # RFC 8941's string


def read_key(request: Request) -> str | None:
    """Return the caller's key, or None without one. Raise the 400 problem for a malformed key.

    A bare key and the same key quoted as in RFC 8941 are equal.
    """
    header = request.META.get(_HEADER)
    if header is None:
        return None
    key: str = header.strip()
    if key.startswith('"'):
        quoted = _QUOTED.fullmatch(key)
        key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else ""
    if not _KEY.fullmatch(key):
        fault = Fault((HEADER,), "A key has 1 to 255 visible ASCII characters, in quotes or bare.", "header")
        raise invalid([fault])
    return key


def well_formed_key(request: Request) -> str | None:
    """Return the caller's key, or None without one or for a malformed one, which `read_key` refuses later."""
    try:
        return read_key(request)
    except Problem:
        return None
