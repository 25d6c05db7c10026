"""The base class of the providers with an HTTP API. It interprets answers and failures.

The rules are those of HTTP (RFC 9110, 15). A provider's module lists the answers for which its documentation
says otherwise.
"""

from __future__ import annotations

import dataclasses
import email.utils
import math
import time
import traceback
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from http import HTTPStatus
from types import CodeType
from typing import Any
from urllib.parse import urlsplit

import requests
from anymail.backends.base import BasePayload
from anymail.backends.base_requests import AnymailRequestsBackend
from anymail.exceptions import AnymailConfigurationError, AnymailRequestsAPIError
from anymail.message import AnymailRecipientStatus
from anymail.utils import EmailAddress, parse_address_list
from django.core.mail import EmailMultiAlternatives
from urllib3.connection import HTTPConnection, HTTPSConnection

from notifications.providers.base import Provider
from notifications.providers.headers import break_encoded_words
from notifications.providers.session import NeverConnected, Session, make_session
from notifications.states.outcomes import Outcome, Verdict
from runtime.faults import describe_fault

#: Statuses about our account or settings, not the message: a wrong key, plan, or address of the API.
ABOUT_US = frozenset({401, 402, 403, 404, 405, 406, 407, 410, 415, 421})
#: A gateway's statuses (504: RFC 9110, 15.6.5; 520 and 524: Cloudflare's). The gateway lost the answer of the
#: provider behind it, which may have accepted the e-mail. 521, 522, 523, 525 and 526 say that the gateway
#: never reached the provider.
FROM_A_GATEWAY = frozenset({502, 504, 520, 524})
_LONGEST_WAIT_SECONDS = 3600.0
#: Errors of reading an answer whose JSON is missing, invalid, too deep, or of another shape.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_CONNECT = frozenset({HTTPConnection.connect.__code__, HTTPSConnection.connect.__code__})


def split_addresses(addresses: str | Sequence[str]) -> list[EmailAddress]:
    """Split headers with addresses that were checked when they were stored or configured.

    Mail programs cannot decode the names.
    """
    pairs = email.utils.getaddresses([addresses] if isinstance(addresses, str) else addresses)
    parts = [(name, *address.rpartition("@")) for name, address in pairs]
    return [
        EmailAddress(break_encoded_words(name), username=user, domain=domain)  # type: ignore[no-untyped-call]
        for name, user, _, domain in parts
    ]


def _our_converter(attribute: str, theirs: Any) -> Any:
    """Return what reads an attribute of a message in place of anymail's converter.

    That of addresses checks each one again, which takes a tenth of the CPU that a send costs its worker.
    """
    if attribute == "subject":
        return break_encoded_words
    return split_addresses if theirs is parse_address_list else theirs


BasePayload.base_message_attrs = tuple(  # type: ignore[assignment]
    (name, combiner, _our_converter(name, converter))
    for name, combiner, converter in BasePayload.base_message_attrs
)


class UnreadAnswer:
    """A mixin of anymail's backends that leaves a 2xx answer to `Provider.accepted`.

    Anymail reads more than the id, such as each recipient's status, and raises its errors about a message
    that it cannot build for an answer that it cannot read. The provider has the e-mail by then.
    """

    def parse_recipient_status(
        self, response: Any, payload: Any, message: EmailMultiAlternatives
    ) -> dict[str, AnymailRecipientStatus]:
        queued = AnymailRecipientStatus(message_id=None, status="queued")  # type: ignore[no-untyped-call]
        return dict.fromkeys(message.recipients(), queued)


class LeanBackend(UnreadAnswer, AnymailRequestsBackend):
    """A mixin of anymail's backends. It posts over a `Session`, or over requests behind a proxy."""

    def create_session(self) -> Session | requests.Session:
        theirs: requests.Session = super().create_session()  # type: ignore[no-untyped-call]
        ours = make_session(url=self.api_url, headers={"User-Agent": str(theirs.headers["User-Agent"])})
        return ours or theirs


class HttpProvider(Provider):
    """A provider whose backend is `LeanBackend` with one of anymail's backends that use requests."""

    #: Verdicts by the provider's names of errors, for errors whose status would mislead.
    verdicts: Mapping[str, Verdict] = {}
    #: The name of the error with which the provider no longer sends to an address that bounced before.
    bounced_before: str | None = None

    @abstractmethod
    def read_error(self, body: Any) -> tuple[str, str]:
        """Return an error's name and text from its JSON. Raise LookupError or TypeError if it has none."""

    @abstractmethod
    def read_id(self, answer: requests.Response) -> Any:
        """Return the id in a 2xx answer. Raise LookupError, TypeError or ValueError if it has none."""

    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """Return the outcome of a 2xx answer. Without an id it may be a proxy's."""
        answer: requests.Response = message.anymail_status.esp_response  # type: ignore[attr-defined]
        try:
            id = self.read_id(answer)
        except _UNREADABLE:
            id = None
        if isinstance(id, str) and id:
            return Outcome(Verdict.ACCEPTED, self.name, id)
        return self._by_answer(answer)

    def verdict(self, *, status: int, name: str, text: str) -> Verdict:
        """Return an answer's verdict by its status, or by the name of its error if it is no 2xx."""
        by_name = self.verdicts.get(name) if status >= HTTPStatus.MULTIPLE_CHOICES else None
        return by_name or by_status(status)

    def refused(self, error: Exception) -> Outcome:
        """Return the outcome of an error.

        If the provider answered, its answer decides. Otherwise the outcome is unreachable if no connection
        was made, and ambiguous if the request may have reached the provider.
        """
        response: requests.Response | None = getattr(error, "response", None)
        if isinstance(error, AnymailRequestsAPIError) and response is not None:
            return self._by_answer(response)
        code = _name_of(error)
        if isinstance(error, requests.exceptions.InvalidHeader):  # do not repeat its text, which has the key
            text = "The API key has a line break or a character that no HTTP header can have."
            return Outcome(Verdict.MISCONFIGURED, self.name, code=code, text=text)
        if isinstance(error, requests.RequestException):
            stayed_here = isinstance(error, NeverConnected) or has_failed_to_connect(error)
            verdict = Verdict.UNREACHABLE if stayed_here else Verdict.AMBIGUOUS
            return Outcome(verdict, self.name, code=code, text=_words_of(error.__cause__ or error))
        if isinstance(error, AnymailConfigurationError):
            return Outcome(Verdict.MISCONFIGURED, self.name, code=code, text=str(error))
        # All other errors come from building the message, from an invalid header or address.
        return Outcome(Verdict.PERMANENT, self.name, code=code, text=str(error))

    def _by_answer(self, response: requests.Response) -> Outcome:
        try:
            name, text = self.read_error(response.json())
        except _UNREADABLE:
            name, text = "", response.text[:500] or response.reason
        status = response.status_code
        ambiguous = status in FROM_A_GATEWAY  # ignore the body, which the gateway wrote
        verdict = Verdict.AMBIGUOUS if ambiguous else self.verdict(status=status, name=name, text=text)
        wait = pause_asked_for(response.headers) if verdict is Verdict.THROTTLED else None
        outcome = self.refusal(verdict, code=str(status), text=text, wait_seconds=wait)
        bounced_before = outcome.verdict is Verdict.PERMANENT and name == self.bounced_before
        return dataclasses.replace(outcome, has_bounced_before=bounced_before)


def by_status(status: int) -> Verdict:
    """Return the verdict of an HTTP status alone."""
    unreadable_yes = status < HTTPStatus.MULTIPLE_CHOICES  # it may be a proxy's
    if unreadable_yes or status in FROM_A_GATEWAY:
        return Verdict.AMBIGUOUS
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Verdict.THROTTLED
    if status in ABOUT_US:
        return Verdict.MISCONFIGURED
    if 400 <= status < 500 and status not in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT):
        return Verdict.PERMANENT
    return Verdict.TRANSIENT


def pause_asked_for(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a 429 asks to wait, or None if it has no readable time.

    Use the provider's clock (`Date`) if the answer has it.
    """
    try:
        if (after := headers.get("Retry-After", "")).isdecimal():
            seconds = float(after)
        elif after:
            seconds = _epoch(after) - _now(headers)
        elif reset := headers.get("X-RateLimit-Reset"):
            seconds = float(reset) - _now(headers)
        else:
            return None
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return None
    return min(max(seconds, 1.0), _LONGEST_WAIT_SECONDS) if math.isfinite(seconds) else None


def _now(headers: Mapping[str, str]) -> float:
    """Return the time of the answer by the provider's clock if readable, else by ours."""
    try:
        return _epoch(headers["Date"])
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return time.time()


def _epoch(http_date: str) -> float:
    return email.utils.parsedate_to_datetime(http_date).timestamp()


def _name_of(error: Exception) -> str:
    """Return the name of the original error's class, which anymail hides behind its own."""
    return type(error.__cause__ or error).__name__


def _words_of(error: BaseException) -> str:
    """Return the text of an error of `Session`, or what happened if requests only quotes urllib3."""
    quoted = error.args[0] if error.args else None
    host = urlsplit(getattr(getattr(error, "request", None), "url", "") or "").hostname or ""
    return (isinstance(quoted, Exception) and describe_fault(quoted, host=host)) or str(error)


def has_failed_to_connect(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes was raised while the connection was opened.

    Then none of the request can have been sent. The class of urllib3's error does not show it:

    - `SSLError` comes from the handshake, or from an answer that cannot be decrypted.
    - `ProxyError` comes from the proxy, or from a reset while waiting for the answer, when http.client has
      forgotten the tunnel.
    - `ReadTimeoutError` comes from the handshake or from the answer.

    The traceback shows it exactly, because `connect` returns before the first byte of the request is written.
    """
    return is_raised_in(error, _CONNECT)


def is_raised_in(error: BaseException | None, functions: Set[CodeType]) -> bool:
    """Return whether an error or one of its causes was raised in a call of one of these functions."""
    if error is None:
        return False
    if any(frame.f_code in functions for frame, _ in traceback.walk_tb(error.__traceback__)):
        return True
    return is_raised_in(error.__cause__, functions) or is_raised_in(error.__context__, functions)
