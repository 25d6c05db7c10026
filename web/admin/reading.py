"""Let a replica answer the admin's lists, charts and files, but not right after a user's change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse

from runtime.database import replica

#: The cookie of a user who has just changed something, and whom the primary must answer.
COOKIE = "orderpost_changed"
#: Longer than a replica that is read may be behind.
KEPT_SECONDS = int(2 * replica.LIMIT_SECONDS)

T = TypeVar("T")


def may_be_late(request: HttpRequest) -> bool:
    """Return whether a replica may answer: not a change, nor its user for `KEPT_SECONDS` after it."""
    return request.method == "GET" and COOKIE not in request.COOKIES


def read(request: HttpRequest, work: Callable[[], T]) -> T:
    """Return what `work` reads for this request. It may be called twice."""
    return replica.read(work) if may_be_late(request) else work()


def note_change(request: HttpRequest, response: HttpResponseBase) -> None:
    """Let the primary answer the user for a while if the request was a change."""
    if request.method == "POST" and replica.is_set():
        response.set_cookie(
            COOKIE,
            "1",
            max_age=KEPT_SECONDS,
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",
        )


def rendered(response: HttpResponse) -> HttpResponse:
    """Render the page now. Its template's queries go where the view's went."""
    return response.render() if isinstance(response, TemplateResponse) else response
