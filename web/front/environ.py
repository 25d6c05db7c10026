"""Make WSGI's environment of a request that came through Granian's RSGI."""

from __future__ import annotations

import io
import sys
from typing import Any, Protocol

_NOTHING = io.BytesIO()
_BASE: dict[str, Any] = {
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SCRIPT_NAME": "",
    "SERVER_SOFTWARE": "Granian",
    "wsgi.errors": sys.stderr,
    "wsgi.input": _NOTHING,
    "wsgi.multiprocess": True,
    "wsgi.multithread": True,
    "wsgi.run_once": False,
    "wsgi.version": (1, 0),
}
#: WSGI's names of usual headers. Others are made anew, because strangers choose them.
_NAMES = {
    name: f"HTTP_{name.upper().replace('-', '_')}"
    for name in (
        *("accept", "accept-encoding", "accept-language", "authorization", "cache-control", "connection"),
        *("cookie", "host", "idempotency-key", "origin", "referer", "traceparent", "user-agent"),
        *("x-correlation-id", "x-forwarded-for", "x-forwarded-proto", "x-wc-webhook-signature"),
    )
} | {"content-length": "CONTENT_LENGTH", "content-type": "CONTENT_TYPE"}


class Headers(Protocol):
    """Granian's headers. `items` has those of visible ASCII characters, and `len` counts all names."""

    def items(self) -> list[tuple[str, str]]: ...
    def keys(self) -> list[str]: ...
    def __len__(self) -> int: ...


class Scope(Protocol):
    """Granian's description of a request."""

    http_version: str
    scheme: str
    method: str
    path: str
    query_string: str
    authority: str | None
    server: str
    client: str

    @property
    def headers(self) -> Headers: ...


def make_environ(scope: Scope) -> dict[str, Any]:
    """Return the environment of a request without its body.

    A header whose name has an underscore is left out: WSGI could not tell `X_Forwarded_For` from
    `X-Forwarded-For`. A value with other bytes than visible ASCII is empty. Equal names are joined.
    """
    environ = dict(_BASE)
    headers = scope.headers
    names = set()
    for name, value in headers.items():
        names.add(name)
        if (key := _NAMES.get(name)) is None:
            if "_" in name:
                continue
            key = f"HTTP_{name.upper().replace('-', '_')}"
        if key in environ:
            if key in ("CONTENT_LENGTH", "CONTENT_TYPE"):
                continue
            value = f"{environ[key]}{';' if key == 'HTTP_COOKIE' else ','}{value}"
        environ[key] = value
    if len(names) != len(headers):
        for name in headers.keys():  # noqa: SIM118 - no mapping
            if name not in names and "_" not in name:
                environ[_NAMES.get(name) or f"HTTP_{name.upper().replace('-', '_')}"] = ""
    if "HTTP_HOST" not in environ:
        environ["HTTP_HOST"] = scope.authority or ""
    path, query = scope.path, scope.query_string
    environ["REQUEST_METHOD"] = scope.method
    environ["PATH_INFO"] = path if path.isascii() else path.encode().decode("latin-1")
    environ["QUERY_STRING"] = query if query.isascii() else query.encode().decode("latin-1")
    environ["REMOTE_ADDR"] = _address(scope.client)[0]
    environ["SERVER_NAME"], environ["SERVER_PORT"] = _address(scope.server)
    environ["SERVER_PROTOCOL"] = f"HTTP/{scope.http_version}"
    environ["wsgi.url_scheme"] = scope.scheme
    return environ


def _address(text: str) -> tuple[str, str]:
    """Split an address and its port.

    >>> _address("127.0.0.1:8000"), _address("[::1]:8000")
    (('127.0.0.1', '8000'), ('::1', '8000'))
    """
    host, _, port = text.rpartition(":")
    return host.strip("[]"), port
