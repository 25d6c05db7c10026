"""Say in a person's words why another server did not answer, in place of Python's classes and numbers."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import NamedTuple


class ServerTrouble(NamedTuple):
    """A fault of a server, and the advice for a person."""

    what: str
    do: str


#: OpenSSL's numbers of what is wrong with a certificate (X509_V_ERR_…).
_CERTIFICATES = {
    9: "is not valid yet",
    10: "has expired",
    18: "is signed by itself and not trusted",
    19: "is signed by an authority that is not trusted",
    20: "is signed by an authority that is not trusted",
    62: "is for another host",
    64: "is for another address",
}
_NUMBERS = {
    errno.ECONNREFUSED: "the connection is refused",
    errno.ECONNRESET: "the connection broke",
    errno.EPIPE: "the connection broke",
    errno.EHOSTUNREACH: "there is no route to the host",
    errno.ENETUNREACH: "there is no route to the network",
}


def describe_fault(error: BaseException, *, seconds: float | None = None, host: str = "") -> str | None:
    """Return what happened, or None for an error that is none of the network.

    `seconds` is how long the caller waited for an answer, and `host` what it looked up.

    >>> describe_fault(TimeoutError(), seconds=10)
    'no answer within 10 s'
    >>> describe_fault(socket.gaierror(-2, "Name or service not known"), host="smtp.example.com")
    'the name smtp.example.com does not resolve'
    >>> describe_fault(ValueError("x")) is None
    True
    """
    for cause in causes_of(error):
        match cause:
            case ssl.SSLCertVerificationError():
                why = _CERTIFICATES.get(cause.verify_code, f"cannot be trusted ({cause.verify_message})")
                return f"the certificate {why}"
            case ssl.SSLError():
                return f"TLS cannot be agreed on ({cause.reason or cause})"
            case socket.gaierror():
                return f"the name {host} does not resolve" if host else "the name does not resolve"
            case TimeoutError():
                return "no answer in time" if seconds is None else f"no answer within {seconds:g} s"
            case OSError() if cause.errno in _NUMBERS:
                return _NUMBERS[cause.errno]
    return None


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it, the last one first."""
    cause: BaseException | None = error
    for _ in range(20):  # a cause may lead back to itself
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__
