"""Tell from an error of urllib3 whether any of the request can have been sent.

The error's class does not show it:

- `SSLError` comes from the handshake, or from an answer that cannot be decrypted.
- `ProxyError` comes from the proxy, or from a reset while waiting for the answer, when http.client has
  forgotten the tunnel.
- `ReadTimeoutError` comes from the handshake or from the answer.

The traceback shows it exactly, because `connect` returns before the first byte of the request is written.
Called by the providers that send over requests or boto3.
"""

from __future__ import annotations

import traceback

from urllib3.connection import HTTPConnection, HTTPSConnection

_CONNECT = frozenset({HTTPConnection.connect.__code__, HTTPSConnection.connect.__code__})


def has_failed_to_connect(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes was raised while the connection was opened."""
    if error is None:
        return False
    if any(frame.f_code in _CONNECT for frame, _ in traceback.walk_tb(error.__traceback__)):
        return True
    return has_failed_to_connect(error.__cause__) or has_failed_to_connect(error.__context__)
