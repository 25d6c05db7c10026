"""Errors as RFC 9457's `application/problem+json`, without internal details.

Views and parsers raise `Problem`. `problem_response` is DRF's exception handler. The functions at the end are
Django's handlers for requests that reach no view. Only the admin keeps Django's error pages.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import structlog
from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.template.loader import render_to_string
from django.urls import reverse
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from runtime.database.away import explain_silence, is_lock_timeout, silence
from runtime.database.partitions import why_misplaced
from runtime.faults import ServerTrouble
from web.api.problem_types import (
    CLOCK,
    FORBIDDEN,
    INTERNAL,
    LENGTH_REQUIRED,
    MALFORMED,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    OVERLOADED,
    PAUSED,
    TOO_LARGE,
    TOO_MANY_REQUESTS,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    VALIDATION,
    ProblemType,
)

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"
MAX_ERRORS = 100  # a body of a megabyte could name a hundred thousand unknown fields


@dataclasses.dataclass(frozen=True, slots=True)
class RequestFault:
    """One fault of a request. `path` is its keys and indexes from the root."""

    path: tuple[str | int, ...]
    detail: str
    place: str = "body"  # or "query", "header"

    @property
    def document(self) -> dict[str, str]:
        """Return the entry of `errors`. Its `pointer` is an RFC 6901 pointer as a URI fragment."""
        steps = (str(step).replace("~", "~0").replace("/", "~1") for step in self.path)
        pointer = "#" + "".join("/" + quote(step, safe="~", errors="replace") for step in steps)
        where = {} if self.place == "body" else {"in": self.place}
        return {"pointer": pointer, "detail": self.detail} | where


class Problem(Exception):
    """The error answer to a request. `members` are added to it."""

    def __init__(
        self, type: ProblemType, /, *, detail: str, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.type = type
        self.detail = detail
        self.headers = headers or {}
        self.members = members

    def response(self, request: HttpRequest | Request | None = None) -> HttpResponse:
        """Return the answer. Its `help` is absolute if `request` has an allowed host, else a path."""
        document = {
            "type": f"urn:orderpost:problem:{self.type.slug}",
            "title": self.type.title,
            "status": self.type.status,
            "detail": self.detail,
            "help": _help_url(self.type, request),
            **self.members,
        }
        body = JSONRenderer().render(document)
        return HttpResponse(body, CONTENT_TYPE, self.type.status, headers=dict(self.headers))


def _help_url(type: ProblemType, request: HttpRequest | Request | None) -> str:
    page = reverse("problem", args=[type.slug])
    try:
        return page if request is None else str(request.build_absolute_uri(page))
    except DisallowedHost:
        return page


def invalid(faults: Iterable[RequestFault]) -> Problem:
    """Return the 400 that lists the faults of a request's values."""
    listed = list(faults)
    return Problem(
        VALIDATION,
        detail=listed[0].detail if len(listed) == 1 else f"{len(listed)} values are not valid.",
        errors=[fault.document for fault in listed[:MAX_ERRORS]],
    )


def malformed(detail: str) -> Problem:
    """Return the 400 for a request that cannot be parsed."""
    return Problem(
        MALFORMED,
        detail=detail,
        errors=[RequestFault((), detail).document],
    )


def not_found(detail: str = "Unknown address. Use one of those at /api/docs.") -> Problem:
    return Problem(NOT_FOUND, detail=detail)


def too_large() -> Problem:
    return Problem(TOO_LARGE, detail="A body has at most 1 MB.")


def unavailable() -> Problem:
    """Return the 503 for a database that does not answer."""
    return Problem(
        UNAVAILABLE,
        detail="The database did not answer. Nothing is known to be changed; send the request again,"
        " with the same Idempotency-Key if it had one.",
        headers={"Retry-After": "1"},
    )


def busy() -> Problem:
    """Return the 503 for a row that others hold for too long."""
    return Problem(
        UNAVAILABLE,
        detail="Other requests are changing this order. Nothing was changed; send the request again, with the"
        " same Idempotency-Key if it had one.",
        headers={"Retry-After": "1"},
    )


def took_too_long(seconds: float) -> Problem:
    """Return the 503 for a list of events whose time is over."""
    return Problem(
        UNAVAILABLE,
        detail=f"The list took longer than {seconds:.0f} s. Send it again: processed events are repeats.",
        headers={"Retry-After": "1"},
    )


def overloaded(*, retry_seconds: int) -> Problem:
    """Return the 503 for new work that was refused before it began."""
    return Problem(
        OVERLOADED,
        detail="The machine has too much to do. Nothing was changed; send the request again after Retry-After"
        " seconds, with the same Idempotency-Key if it had one.",
        headers={"Retry-After": str(retry_seconds)},
    )


def length_required() -> Problem:
    """Return the 411 for a body in chunks.

    WSGI hides a body without a length. A refund of 5 would become a refund of everything.
    """
    return Problem(LENGTH_REQUIRED, detail="Send the body with Content-Length, not in chunks.")


def paused() -> Problem:
    """Return the 503 for events while a person has paused the consumers."""
    return Problem(
        PAUSED,
        detail="An operator has paused the processing of events. Send them again later; an event that was"
        " processed is then a repeat.",
        headers={"Retry-After": "60"},
    )


def misplaced() -> Problem:
    """Return the 503 for a row that fits no partition."""
    return Problem(
        CLOCK,
        detail="This host's clock or the table's partitions are wrong, and the log says which."
        " Nothing was changed; send the request again later.",
        headers={"Retry-After": "60"},
    )


def unexpected() -> Problem:
    """Return the 500. The log has the cause, the answer does not."""
    return Problem(
        INTERNAL,
        detail="The cause was logged under this answer's X-Correlation-ID.",
    )


def problem_response(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """Return the answer for an error of a view. `context` is DRF's, of which only `request` is read."""
    return _problem_of(error).response(context.get("request"))


def _problem_of(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case exceptions.ValidationError():
            return invalid(faults_of(error.detail))
        case exceptions.NotAuthenticated() | exceptions.AuthenticationFailed():
            missing = isinstance(error, exceptions.NotAuthenticated)
            return Problem(
                UNAUTHENTICATED,
                detail="Send a token as Authorization: Bearer <token>." if missing else str(error.detail),
                headers={"WWW-Authenticate": "Bearer"},
            )
        case exceptions.PermissionDenied() | PermissionDenied():
            return Problem(FORBIDDEN, detail="The token may not do this. Use one that may.")
        case exceptions.NotFound() | Http404():
            return not_found()
        case exceptions.UnsupportedMediaType():
            return Problem(
                UNSUPPORTED_MEDIA_TYPE,
                detail="A body must be JSON, with the header Content-Type: application/json.",
                headers={"Accept-Post": "application/json"},
            )
        case exceptions.MethodNotAllowed():
            return Problem(METHOD_NOT_ALLOWED, detail="Use one of the methods in the header Allow.")
        case exceptions.Throttled():
            return Problem(TOO_MANY_REQUESTS, detail=str(error.detail))
        case exceptions.ParseError():
            return malformed(str(error.detail))
        case RequestDataTooBig():
            return too_large()
        case SuspiciousOperation() | UnreadablePostError():
            return malformed(
                "The request cannot be read. Check its Host, its length and its number of fields."
            )
        case IntegrityError() if reason := why_misplaced(error):
            log.error("a row fits no partition: is a clock wrong?", reason=reason)
            return misplaced()
        case OperationalError() if is_lock_timeout(error):
            log.warning("row is busy", reason=str(error).partition("\n")[0])
            return busy()
        case OperationalError() | InterfaceError() | InternalError():  # the last from a standby
            log.warning("database did not answer", exc_info=error)
            return unavailable()
        case _:
            log.error("request failed", exc_info=error)
            return unexpected()


def is_temporary(error: Exception) -> bool:
    """Return whether the database caused the error, and the same request may succeed later."""
    kinds = (OperationalError, InterfaceError, InternalError)
    return isinstance(error, kinds) or (isinstance(error, IntegrityError) and bool(why_misplaced(error)))


def faults_of(detail: Any, path: tuple[str | int, ...] = ()) -> Iterator[RequestFault]:
    """Yield the faults in DRF's nested errors. `non_field_errors` belong to the object that has them."""
    if isinstance(detail, Mapping):
        for key, value in detail.items():
            yield from faults_of(value, path if key == "non_field_errors" else (*path, key))
    elif isinstance(detail, list):
        for index, value in enumerate(detail):
            # A list of texts is about one value. A list of mappings is about the entries of a list.
            yield from faults_of(value, (*path, index) if isinstance(value, Mapping | list) else path)
    else:
        yield RequestFault(path, str(detail))


def _is_admin(request: HttpRequest) -> bool:
    return request.path.startswith("/admin")


@csrf_exempt
def unknown_path(request: HttpRequest) -> HttpResponse:
    """Answer 404 below the API's paths, even while DEBUG is on."""
    return not_found().response(request)


Handler = Callable[[HttpRequest, Exception], HttpResponse]


def _handler(page: Handler, error: Exception) -> Handler:
    """Return a handler that answers with Django's page in the admin and with a problem elsewhere."""

    def handle(request: HttpRequest, exception: Exception) -> HttpResponse:
        return page(request, exception) if _is_admin(request) else _problem_of(error).response(request)

    return handle


#: Handlers that Django calls: the first for a wrong Host or a query of thousands of fields.
handle_400 = _handler(defaults.bad_request, SuspiciousOperation())
handle_403 = _handler(defaults.permission_denied, PermissionDenied())
handle_404 = _handler(defaults.page_not_found, Http404())


def handle_500(request: HttpRequest) -> HttpResponse:
    """Answer with 503 if the database did not answer, else with 500. Django has logged the cause."""
    error = sys.exception()
    away = error if isinstance(error, OperationalError | InterfaceError) else None
    if not _is_admin(request):
        return (unavailable() if away else unexpected()).response(request)
    return away_page(explain_silence(away)) if away else defaults.server_error(request)


def away_page(trouble: ServerTrouble) -> HttpResponse:
    """Return the admin's page while PostgreSQL gives no answer. Anybody may read it."""
    context = {"what": trouble.what, "since": f"{silence.begin():%H:%M}"}
    answer = unavailable()
    page = render_to_string("503.html", context)
    return HttpResponse(page, status=answer.type.status, headers=dict(answer.headers))
