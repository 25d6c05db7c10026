"""Which pages of the admin a replica may answer: none right after the user changed something."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse

from runtime.database import replica

#: The cookie of a user who has just changed something, and whom the primary must answer.
COOKIE = "orderpost_changed"
#: Longer than a replica that is read may be behind.
KEPT_SECONDS = int(2 * replica.LIMIT_SECONDS)


def walk_of(request: HttpRequest) -> replica.Walk:
    """Return the walk of a list: on the primary for a change, and for `KEPT_SECONDS` after it."""
    if request.method != "GET" or COOKIE in request.COOKIES:
        return replica.Walk.on_primary()
    return replica.Walk()


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
    """Render the page now, so that its template's queries go where the view's went."""
    return response.render() if isinstance(response, TemplateResponse) else response
