"""Install the app: one address of the connection has its manifest, to which Saleor posts the app's token.

Everything is below the installation's secret. Without it, nothing is there.
"""

from __future__ import annotations

import datetime as dt
import hmac
from typing import Any

import structlog
from django.db import transaction
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from events.consuming.envelope import DEEPEST
from runtime.telemetry.release import version
from shop_connections.encryption import SECRET_LENGTH, KeyMissing, decrypt, encrypt
from shop_connections.http import ShopUnreachable
from shop_connections.models import ShopConnection
from shop_connections.saleor.client import api_of, make_api
from shop_connections.saleor.query import APP, EVENTS, SUBSCRIPTION
from shop_connections.saleor.signature import clean_keys, may_be_signed
from shop_connections.saleor.values import Json, member, members, text
from web.api.bodies import NotStrict, parse_json

log = structlog.get_logger(__name__)

PERMISSION = "MANAGE_ORDERS"
#: `where` of its orders came with 3.22. A later major release may take away what is asked for.
REQUIRED_VERSION = ">=3.22 <4"
#: Saleor waits 18 s for the answer to its token. Two questions take at most so long.
SECONDS = 12.0
_LONGEST_TOKEN = 1000
_INSTALLED = ("api_key", "api_secret", "check_problem", "installation", "refresh_at")
#: When a worker first asks for the keys again.
KEYS_FOR = dt.timedelta(hours=1)


def route(connection: ShopConnection, rest: str) -> Any:
    """Return what is at a path below the connection's. Raise `Unreadable`."""
    secret, _, place = rest.partition("/")
    views: dict[str, Any] = {"manifest": _answer_manifest, "register": _register, "posts": "posts"}
    if place not in views or len(secret) != SECRET_LENGTH:  # also while CONNECTION_KEY reads none
        return None
    is_ours = hmac.compare_digest(secret.encode(), decrypt(connection.secret).encode())
    return views[place] if is_ours else None


def identifier(connection: ShopConnection) -> str:
    """Return the app's name in a Saleor, where no two may have the same."""
    return f"orderpost.{connection.source}"


def _answer_manifest(request: HttpRequest, connection: ShopConnection) -> HttpResponse:
    if request.method not in ("GET", "HEAD"):
        return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
    base = request.build_absolute_uri(request.path).removesuffix("/manifest")
    manifest = {
        "id": identifier(connection),
        "name": f"orderpost: {connection.source}",
        "version": version(),
        "about": "Sends customers e-mails about their orders.",
        "author": "orderpost",
        "permissions": [PERMISSION],
        "tokenTargetUrl": f"{base}/register",
        "requiredSaleorVersion": REQUIRED_VERSION,
        "webhooks": [
            {
                "name": "Orders",
                "asyncEvents": list(EVENTS.values()),
                "query": SUBSCRIPTION,
                "targetUrl": f"{base}/posts",
                "isActive": True,
            }
        ],
    }
    return JsonResponse(manifest, headers={"Cache-Control": "no-store"})


def _register(request: HttpRequest, connection: ShopConnection) -> HttpResponse:
    """Take the app's token, if the connection's Saleor knows it as this app's."""
    if request.method != "POST":
        return HttpResponse(status=405, headers={"Allow": "POST"})
    try:
        _install(connection, _read_token(request))
    except _Refusal as refusal:
        log.warning("app of a shop not installed", source=connection.source, problem=str(refusal))
        return JsonResponse({"error": {"message": str(refusal)}}, status=400)
    log.info("app of a shop installed", source=connection.source)
    return JsonResponse({})


class _Refusal(Exception):
    """The app is not installed. The text is for Saleor's dashboard."""


def _read_token(request: HttpRequest) -> str:
    if not may_be_signed(rest="-/register", headers=request.headers):
        raise _Refusal("The post with the token is too large.")
    try:
        document = parse_json(request.body, deepest=DEEPEST)
    except NotStrict:
        document = None
    token = document.get("auth_token") if isinstance(document, dict) else None
    if not isinstance(token, str) or not token.isascii() or not 0 < len(token) <= _LONGEST_TOKEN:
        raise _Refusal("The post has no auth_token.")
    if not token.isprintable() or " " in token:
        raise _Refusal("The auth_token is not a token.")
    return token


def _install(connection: ShopConnection, token: str) -> None:
    api = make_api(connection, token=token, seconds=SECONDS)
    try:
        app = member(api.ask(APP), "app")
        wanted, granted = (
            identifier(connection),
            [text(each.get("code")) for each in members(app, "permissions")],
        )
        if app.get("identifier") != wanted or not isinstance(app.get("id"), str):
            raise _Refusal(
                f"{connection.address} does not know this token as that of the active app {wanted}."
            )
        if PERMISSION not in granted:
            raise _Refusal(f"The app needs the permission {PERMISSION}.")
        keys = clean_keys(api.keys())
    except ShopUnreachable as problem:
        # Saleor's dashboard shows the first 255 characters.
        raise _Refusal(f"orderpost asked {connection.address}. {problem}") from problem
    if not keys:
        raise _Refusal(f"{connection.address} has no key that verifies its signatures.")
    try:
        id, secret = encrypt(app["id"]), encrypt(token)
    except KeyMissing as error:
        raise _Refusal(str(error)) from error
    with transaction.atomic():
        row = ShopConnection.objects.select_for_update().get(id=connection.id)
        if (row.address, row.secret) != (connection.address, connection.secret):
            raise _Refusal("The connection has changed meanwhile. Install the app again.")
        row.api_key, row.api_secret, row.check_problem = id, secret, ""
        kept = {"app": app["id"], "keys": keys, "place": row.secret_mark}
        row.installation = {**row.installation, **kept}
        row.refresh_at, row.updated_at = timezone.now() + KEYS_FOR, Now()
        row.save(update_fields=[*_INSTALLED, "updated_at"])


def refresh(connection: ShopConnection, *, seconds: float) -> Json:
    """Return the installation with the keys that Saleor has now. Raise `ShopUnreachable`."""
    keys = clean_keys(api_of(connection, seconds=seconds).keys())
    if not keys:
        raise ShopUnreachable("The shop has no key that verifies its signatures.")
    return {**connection.installation, "keys": keys}
