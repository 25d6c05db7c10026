"""Read a request's API token, and authorize it by scope. `ApiView` looks the token up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from web.api.problem_types import FORBIDDEN
from web.api.problems import Problem
from web.models import ApiToken

if TYPE_CHECKING:
    from rest_framework.views import APIView  # which imports this module, through the settings


def bearer_digest(header: str) -> str:
    """Return the digest of the token in `Authorization: Bearer op_…`, or an empty text for no Bearer."""
    scheme, _, secret = header.strip().partition(" ")
    return ApiToken.digest_of(secret.strip()) if scheme.lower() == "bearer" else ""


class TokenAuthentication(BaseAuthentication):
    """Read `Authorization: Bearer op_…`. The token's digest becomes `request.auth`.

    `ApiView` replaces it by the token, which it reads with the request's first statement. `request.user`
    stays anonymous.
    """

    def authenticate(self, request: Request) -> tuple[None, str] | None:
        """Return the digest of the token, or None without one. Raise `AuthenticationFailed` for no Bearer."""
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return None
        digest = bearer_digest(header)
        if not digest:
            raise AuthenticationFailed("The header must be: Authorization: Bearer <token>.")
        return None, digest

    def authenticate_header(self, request: Request) -> str:
        """Make DRF answer 401, not 403."""
        return "Bearer"


class HasScope(BasePermission):
    """Requires the scope that the view's `scopes` names for the method."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return False if there is no token, which DRF answers with 401.

        Raise the 403 problem for a token without the scope.
        """
        token = request.auth
        if not isinstance(token, ApiToken):
            return False
        method = request.method or ""
        if not hasattr(view, method.lower()) or method.lower() not in view.http_method_names:
            return True  # DRF answers 405 next
        scope: str = view.scopes[method]  # type: ignore[attr-defined]
        if scope in token.scopes:
            return True
        raise Problem(
            FORBIDDEN,
            detail=f"This needs a token with the scope {scope}.",
            scope=scope,
        )
