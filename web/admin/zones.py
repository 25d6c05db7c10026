"""The time zone of a person's browser. Pages show times in it, and forms and filters read them in it.

admin.js writes its name into a cookie, from the login on. Without one, times are UTC, as they always are in
CSV and in what the database and the logs have.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from runtime.time_zones import find_zone

COOKIE = "zone"


def in_zone_of_browser(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Make the middleware of the admin's pages."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        # The browser writes "Europe/Berlin". An unknown name may be of a newer database than ours.
        with timezone.override(find_zone(request.COOKIES.get(COOKIE, "")) or "UTC"):
            return get_response(request)

    return answer
