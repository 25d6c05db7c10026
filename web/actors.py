"""The sender of a request, for the audit: a user of the admin, or an API token."""

from __future__ import annotations

from django.http import HttpRequest
from rest_framework.request import Request

from runtime.audit import Actor
from web.models import ApiToken
from web.proxies import client_address, mask_address, plain_address


def user_actor(request: HttpRequest) -> Actor:
    """Return the user of a page."""
    return _actor(request.user.get_username(), request)


def token_actor(request: Request, token: ApiToken) -> Actor:
    """Return the token of an API request."""
    return _actor(f"{token.name} (API token {token.id})", request)


def unknown_actor(name: str, request: HttpRequest) -> Actor:
    """Return somebody who is not logged in, and says to be `name`."""
    return _actor(name, request)


def _actor(name: str, request: HttpRequest | Request) -> Actor:
    address = client_address(request)
    return Actor(name, plain_address(address), mask_address(address))
