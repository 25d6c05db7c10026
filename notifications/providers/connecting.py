"""Tells from an error of urllib3 whether any of the request can have been sent.

Its class does not say so. A `SSLError` comes from the handshake or from an answer that cannot be decrypted. A
`ProxyError` comes from the proxy, or from a reset while the answer was awaited (http.client has forgotten the
tunnel by then). A `ReadTimeoutError` comes from the handshake or from the answer. The traceback says it
exactly, because `connect` returns before the first byte of the request is written. Called by the providers
that send over requests or boto3.
"""

from __future__ import annotations

import traceback

from urllib3.connection import HTTPConnection, HTTPSConnection

_CONNECT = frozenset({HTTPConnection.connect.__code__, HTTPSConnection.connect.__code__})


def failed_to_connect(error: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, was raised while the connection was opened."""
    if error is None:
        return False
    if any(frame.f_code in _CONNECT for frame, _ in traceback.walk_tb(error.__traceback__)):
        return True
    return failed_to_connect(error.__cause__) or failed_to_connect(error.__context__)
