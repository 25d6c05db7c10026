"""What the providers that speak JSON over HTTP through requests share: reading their answers and failures.

The rules are HTTP's own (RFC 9110, 15): a provider's module names the answers for which its documentation
says otherwise.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from http import HTTPStatus

import requests
import urllib3.exceptions
from anymail.backends.base_requests import AnymailRequestsBackend
from anymail.exceptions import AnymailConfigurationError, AnymailRequestsAPIError

from notifications.providers.base import Provider
from notifications.providers.session import NeverConnected, Session, make_session
from outbox.delivery.outcomes import Outcome, Verdict

#: Answers about us rather than the message: a wrong key, plan, or address of the API.
ABOUT_US = frozenset({401, 402, 403, 404, 405, 406, 407, 410, 415, 421})
_LONGEST_WAIT = 3600.0


class LeanBackend(AnymailRequestsBackend):
    """To be mixed into one of anymail's: its session is ours, except behind a proxy."""

    def create_session(self) -> Session | requests.Session:
        """See `session`."""
        theirs: requests.Session = super().create_session()  # type: ignore[no-untyped-call]
        ours = make_session(url=self.api_url, headers={"User-Agent": str(theirs.headers["User-Agent"])})
        return ours or theirs


class HttpProvider(Provider):
    """A provider whose backend is one of anymail's that use requests, with `LeanBackend` before it."""

    #: The provider's own names of errors whose verdict their status does not tell.
    verdicts: Mapping[str, Verdict] = {}

    def refused(self, error: Exception) -> Outcome:
        """See `classify`."""
        return classify(provider=self.name, error=error, verdicts=self.verdicts)

    def not_connected(self, error: Exception) -> Outcome:
        """Opening connects to nothing yet: only our own configuration can fail."""
        return Outcome(Verdict.MISCONFIGURED, self.name, code=type(error).__name__, text=str(error))


def classify(*, provider: str, error: Exception, verdicts: Mapping[str, Verdict]) -> Outcome:
    """Say what an error of a JSON-over-HTTP provider means.

    With an answer, its named error or else its status decides. Without one it matters whether the request
    can have reached the provider: not when no connection was made (transient), perhaps otherwise (ambiguous).
    """
    response: requests.Response | None = getattr(error, "response", None)
    if isinstance(error, AnymailRequestsAPIError) and response is not None:
        return _by_answer(provider, response, verdicts)
    code = _name_of(error)
    if isinstance(error, requests.RequestException):
        verdict = Verdict.TRANSIENT if _never_connected(error) else Verdict.AMBIGUOUS
        return Outcome(verdict, provider, code=code, text=str(error.__cause__ or error))
    if isinstance(error, AnymailConfigurationError):
        return Outcome(Verdict.MISCONFIGURED, provider, code=code, text=str(error))
    # Whatever else is raised comes from making the message: a header or an address that cannot be.
    return Outcome(Verdict.PERMANENT, provider, code=code, text=str(error))


def by_status(status: int) -> Verdict:
    """Say what an HTTP status means when nothing more is known."""
    if status < HTTPStatus.MULTIPLE_CHOICES:  # a yes that could not be read: it may be a proxy's
        return Verdict.AMBIGUOUS
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Verdict.THROTTLED
    if status in ABOUT_US:
        return Verdict.MISCONFIGURED
    if 400 <= status < 500 and status not in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT):
        return Verdict.PERMANENT
    return Verdict.TRANSIENT


def _by_answer(provider: str, response: requests.Response, verdicts: Mapping[str, Verdict]) -> Outcome:
    name, text = _read(response)
    verdict = verdicts.get(name) or by_status(response.status_code)
    wait = _wait(response.headers) if verdict is Verdict.THROTTLED else None
    return Outcome(verdict, provider, code=str(response.status_code), text=text, wait=wait)


def _read(response: requests.Response) -> tuple[str, str]:
    """The provider's name of the error, if it has one, and its words; else the body's beginning.

    SendGrid answers with a list of `errors`, Resend with one `name` and `message`.
    """
    try:
        body = response.json()
        if "errors" in body:
            return "", "; ".join(str(error["message"]) for error in body["errors"])
        name = str(body["name"])
        return name, f"{name}: {body['message']}"
    except (ValueError, LookupError, TypeError):
        return "", response.text[:500] or response.reason


def _wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a 429 asks for, by the provider's own clock if it tells; None if it does not say."""
    date = (
        email.utils.parsedate_to_datetime(headers["Date"]).timestamp() if headers.get("Date") else time.time()
    )
    try:
        if after := headers.get("Retry-After"):
            seconds = float(after) if after.isdigit() else _epoch(after) - date
        elif reset := headers.get("X-RateLimit-Reset"):
            seconds = float(reset) - date
        else:
            return None
    except (ValueError, TypeError):
        return None
    return min(max(seconds, 1.0), _LONGEST_WAIT)


def _epoch(http_date: str) -> float:
    return email.utils.parsedate_to_datetime(http_date).timestamp()


def _never_connected(error: requests.RequestException) -> bool:
    if isinstance(error, NeverConnected | requests.ConnectTimeout):
        return True
    cause = error.__cause__ or error
    reason = getattr(cause.args[0], "reason", None) if cause.args else None
    return isinstance(reason, urllib3.exceptions.NewConnectionError)


def _name_of(error: Exception) -> str:
    """Anymail mixes its class with the original one; the original says more."""
    return type(error.__cause__ or error).__name__
