"""Middleware only for pages: sessions, logins and messages.

A request to the API or a webhook has a token or a signature instead, so it skips this middleware. No cookie
is read, and `request` has neither `session` nor a lazy `user`.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest

WITHOUT_SESSION = ("/api/v1/", "/webhooks/")


class _PagesOnly:
    """Hand a request to the API or a webhook directly to the next middleware."""

    get_response: Any

    def __call__(self, request: HttpRequest) -> Any:
        if request.path_info.startswith(WITHOUT_SESSION):
            return self.get_response(request)
        return super().__call__(request)  # type: ignore[misc] # the middleware has it


class PageSessions(_PagesOnly, SessionMiddleware):
    pass


class PageLogins(_PagesOnly, AuthenticationMiddleware):
    pass


class PageMessages(_PagesOnly, MessageMiddleware):
    pass
