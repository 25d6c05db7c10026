"""Lead requests of the API, of webhooks and of shops past the middleware that only the admin's pages need.

They have a token or a signature instead of a cookie. Their requests have no `session`, `user` or messages,
and no static file is looked for. Django puts the middleware together from the last one to the first, which is
how `remember_inner` knows first what `skip_page_middleware` calls.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

Handler = Callable[[HttpRequest], HttpResponseBase]

WITHOUT_PAGES = ("/api/", "/webhooks/", "/connect/")
_views: list[Handler] = []


def remember_inner(get_response: Handler) -> Handler:
    """Remember what comes after the middleware of pages."""
    _views.append(get_response)
    return get_response


def skip_page_middleware(get_response: Handler) -> Handler:
    past_pages = _views.pop()

    def answer(request: HttpRequest) -> HttpResponseBase:
        is_page = not request.path_info.startswith(WITHOUT_PAGES)
        return get_response(request) if is_page else past_pages(request)

    return answer
