"""What the answers of providers that speak JSON over HTTP mean, as far as they agree.

Called by the providers' modules, whose docstrings cite what is their own. With an answer its status decides;
without one it matters whether the request can have reached the provider.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from http import HTTPStatus

import requests
import urllib3.exceptions
from anymail.exceptions import AnymailConfigurationError, AnymailRequestsAPIError

from outbox.outcomes import Outcome, Verdict

#: Answers about us rather than the message: a wrong key, plan, or address of the API.
_ABOUT_US = frozenset({401, 402, 403, 404, 405, 406, 407, 410, 415, 421})
_LONGEST_WAIT = 3600.0


def classify(*, provider: str, error: Exception) -> Outcome:
    """This function will say what an error of a JSON-over-HTTP provider means.

    Not connected is transient: the request cannot have arrived. Anything lost after that is ambiguous.
    """
    response: requests.Response | None = getattr(error, "response", None)
    if isinstance(error, AnymailRequestsAPIError) and response is not None:
        return _by_status(provider, response)
    code = _name_of(error)
    if isinstance(error, requests.RequestException):
        verdict = Verdict.TRANSIENT if _never_connected(error) else Verdict.AMBIGUOUS
        return Outcome(verdict, provider, code=code, text=str(error.__cause__ or error))
    if isinstance(error, AnymailConfigurationError):
        return Outcome(Verdict.MISCONFIGURED, provider, code=code, text=str(error))
    # Whatever else is raised comes from making the message: a header or an address that cannot be.
    return Outcome(Verdict.PERMANENT, provider, code=code, text=str(error))


def _by_status(provider: str, response: requests.Response) -> Outcome:
    status = response.status_code
    verdict, wait = Verdict.TRANSIENT, None
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        verdict, wait = Verdict.THROTTLED, _wait(response.headers)
    elif status in _ABOUT_US:
        verdict = Verdict.MISCONFIGURED
    elif 400 <= status < 500 and status not in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT):
        verdict = Verdict.PERMANENT
    return Outcome(verdict, provider, code=str(status), text=_text(response), wait=wait)


def _text(response: requests.Response) -> str:
    """The provider's own words: SendGrid's list of errors, Resend's message, or the body's beginning."""
    try:
        body = response.json()
        if "message" in body:
            return f"{body.get('name', '')} {body['message']}".strip()
        return "; ".join(str(error["message"]) for error in body["errors"])
    except (ValueError, LookupError, TypeError):
        return response.text[:500] or response.reason


def _wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a 429 asks for, by the provider's own clock if it tells; None if it does not say."""
    date = (
        email.utils.parsedate_to_datetime(headers["Date"]).timestamp() if headers.get("Date") else time.time()
    )
    try:
        if after := headers.get("Retry-After"):
            seconds = float(after) if after.isdigit() else _epoch(after) - date
        elif reset := headers.get("X-RateLimit-Reset"):  # SendGrid's, in epoch seconds
            seconds = float(reset) - date
        else:
            return None
    except (ValueError, TypeError):
        return None
    return min(max(seconds, 1.0), _LONGEST_WAIT)


def _epoch(http_date: str) -> float:
    return email.utils.parsedate_to_datetime(http_date).timestamp()


def _never_connected(error: requests.RequestException) -> bool:
    if isinstance(error, requests.ConnectTimeout):
        return True
    cause = error.__cause__ or error
    reason = getattr(cause.args[0], "reason", None) if cause.args else None
    return isinstance(reason, urllib3.exceptions.NewConnectionError)


def _name_of(error: Exception) -> str:
    """Anymail mixes its class with the original one; the original says more."""
    return type(error.__cause__ or error).__name__
