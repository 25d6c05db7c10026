"""`POST /connect/<source>`: store the posts of connected shops. config.urls includes `urlpatterns`.

A platform may have further addresses below it, or take posts at one of them alone. A post with a valid
signature is stored and answered before it is understood. Most platforms turn a webhook off after a few
refusals, and repeat nothing. Headers only carry the signature: it covers the body alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import uuid
from collections.abc import Mapping
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.db import connection as database
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from events.consuming.envelope import Rejected
from notifications.webhooks import UNSIGNED, refusal
from runtime.database.ids import new_id
from runtime.personal_data import hashes_in
from runtime.process.cached_rows import CachedRows
from runtime.texts import make_storable
from shop_connections import metrics, process, refresh
from shop_connections.calls import note_call
from shop_connections.encryption import Unreadable
from shop_connections.models import ShopConnection
from shop_connections.platforms import PLATFORMS, is_known, platform_of
from shop_connections.services import is_name
from web.api.problem_types import (
    METHOD_NOT_ALLOWED,
    OVERLOADED,
    TOO_LARGE,
    UNAVAILABLE,
    Repeat,
    declare_type,
)
from web.api.problems import problem_response, unknown_path
from web.front.posts import SignedPosts, register_signed_posts

log = structlog.get_logger(__name__)

#: How many posts of a connection may wait for a worker, and the bytes of their bodies.
MOST_WAITING, MOST_WAITING_BYTES = 10_000, 200_000_000
#: When this process last noted a refused post, by connection (monotonic).
_noted_at: dict[uuid.UUID, float] = {}
UNREADABLE = declare_type(
    slug="connection-unreadable",
    status=503,
    title="The connection's secret cannot be read",
    reason="CONNECTION_KEY has changed, and none of its keys decrypts the secret of a connection.",
    advice="Add the former key to CONNECTION_KEY after the new one, or enter the secret again in the admin.",
    repeat=Repeat.YES,
)
#: Also note the time of the post, though not of each in a busy second, and begin the trial with the first.
_STORE = """
    WITH stored AS (
        INSERT INTO connection_posts (id, source, body, order_id, modified_at, address, address_hashes)
        SELECT %(id)s, %(source)s::varchar, %(body)s, %(order_id)s::uuid, %(modified_at)s::timestamptz,
            %(address)s, %(hashes)s::jsonb
        WHERE (
            SELECT count(*) < %(most)s::int AND coalesce(sum(octet_length(body)), 0) < %(most_bytes)s::bigint
            FROM (
                SELECT body FROM connection_posts
                WHERE source = %(source)s::varchar AND state = 'waiting'
                LIMIT %(most)s::int
            ) AS waiting
        )
        RETURNING id
    ), noted AS (
        UPDATE shop_connections SET last_post_at = statement_timestamp(),
            state = CASE state WHEN 'waiting' THEN 'trial' ELSE state END
        WHERE id = %(connection)s AND EXISTS (SELECT FROM stored)
          AND (state = 'waiting' OR last_post_at IS NULL OR last_post_at < statement_timestamp() - %(every)s)
    )
    SELECT count(*) FROM stored
    """


@csrf_exempt
def receive(request: HttpRequest, source: str, rest: str = "") -> HttpResponse:
    """Answer a shop's request. No content of a post may cause a 500."""
    if not is_name(source):  # PostgreSQL would refuse a NUL
        return unknown_path(request)
    connection = None
    try:
        connection = ShopConnection.objects.active().filter(source=source).first()
        if connection is None:
            return unknown_path(request)
        if not is_known(connection):
            detail = "This release does not know the shop's platform."
            raise refusal(UNAVAILABLE, detail, **{"Retry-After": "60"})
        try:
            view = platform_of(connection).route(connection, rest)
        except Unreadable as error:
            raise _unreadable(error) from error
        if view is None:
            return unknown_path(request)
        if view != "posts":
            return view(request, connection)
        if request.method not in ("POST", "HEAD"):
            raise refusal(METHOD_NOT_ALLOWED, "Shops post their webhooks here.", Allow="POST, HEAD")
        if request.method == "POST":
            return _take(request, connection, rest)
        return HttpResponse()
    except Exception as error:  # noqa: BLE001 - problem_response logs what is not expected
        if connection is not None and request.method == "POST":
            metrics.POSTS.labels(source, "refused").inc()
        return problem_response(error, {"request": request})


def _take(request: HttpRequest, connection: ShopConnection, rest: str) -> HttpResponse:
    if int(request.headers.get("Content-Length") or 0) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        raise refusal(TOO_LARGE, f"A post has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes.")
    platform = platform_of(connection)
    # Those that cannot be signed come without their body (web.front).
    body = request.body if platform.may_be_signed(rest=rest, headers=request.headers) else b""
    try:
        verdict = platform.is_authentic(connection, body=body, headers=request.headers)
    except Unreadable as error:
        raise _unreadable(error) from error
    if verdict == "later":
        refresh.ask_soon(connection)
        detail = "The key of this signature is not known here yet. Nothing was stored."
        raise refusal(UNAVAILABLE, detail, **{"Retry-After": "60"})
    if verdict == "other":
        return HttpResponse(status=202)
    if verdict == "no":
        if platform.is_ping(body=body, content_type=request.content_type or ""):
            note_call(connection.id, is_refused=False)
            return HttpResponse()
        _note_refusal(connection)
        if body:  # it has a signature
            note_call(connection.id, is_refused=True)
        raise refusal(UNSIGNED, "The signature is missing or wrong. The webhook's secret must be this one's.")
    if not store_post(connection, body):
        most = f"{MOST_WAITING:,} posts or {MOST_WAITING_BYTES:,} bytes"
        detail = f"At most {most} of this shop wait for a worker. Nothing was stored."
        raise refusal(OVERLOADED, detail, **{"Retry-After": "60"})
    metrics.POSTS.labels(connection.source, "stored").inc()
    process.wake()
    return HttpResponse(status=202)


def _unreadable(error: Unreadable) -> Exception:
    return refusal(UNREADABLE, str(error), **{"Retry-After": "60"})


def _note_refusal(connection: ShopConnection) -> None:
    """Note when a post was refused as unsigned. A stranger's many posts write it seldom."""
    now = time.monotonic()
    if now - _noted_at.get(connection.id, -math.inf) < ShopConnection.EVERY.total_seconds():
        return
    _noted_at[connection.id] = now
    with contextlib.suppress(DatabaseError, InterfaceError):  # the answer must not depend on it
        ShopConnection.objects.filter(id=connection.id).update(refused_at=Now())


def store_post(connection: ShopConnection, body: bytes) -> bool:
    """Store a post in a commit of its own. Return False if too many are waiting."""
    # JSON is UTF-8. Any other body that was signed stays readable for a person.
    text = make_storable(body.decode("utf-8", "replace"))
    try:
        head = platform_of(connection).read_head(body)
    except Exception as error:
        if not isinstance(error, Rejected):
            log.warning("the head of a shop's post cannot be read", source=connection.source, exc_info=True)
        head = None
    values: dict[str, Any] = {
        "id": new_id(),
        "source": connection.source,
        "body": text,
        "order_id": head and process.find_order_id(connection, head),
        "modified_at": head and head.modified_at,
        "address": head.address if head else "",
        "hashes": json.dumps(hashes_in(text)),
        "most": MOST_WAITING,
        "most_bytes": MOST_WAITING_BYTES,
        "connection": connection.id,
        "every": ShopConnection.EVERY,
    }
    with database.cursor() as cursor:
        cursor.execute(_STORE, values)
        return bool(cursor.fetchone()[0])


def _load_platforms() -> dict[str, str]:
    return dict(ShopConnection.objects.active().values_list("source", "platform"))


#: The platform of each active connection.
_PLATFORM_OF: CachedRows[str] = CachedRows(
    version="(SELECT md5(string_agg(source || ' ' || platform, ',' ORDER BY source)) FROM shop_connections"
    " WHERE state <> 'off')",
    load=_load_platforms,
)


def _may_be_signed(place: str, headers: Mapping[str, str]) -> bool:
    """Return whether `receive` could take a post with these headers. Read nothing.

    A connection may be too new to be known here. All names that are not known share one name's places.
    """
    source, _, rest = place.partition("/")
    name = (_PLATFORM_OF.value or {}).get(source)
    platforms = PLATFORMS.values() if name is None else filter(None, [PLATFORMS.get(name)])
    return is_name(source) and any(
        platform.may_be_signed(rest=rest, headers=headers) for platform in platforms
    )


def _name_of(place: str) -> str:
    source = place.partition("/")[0]
    return source if source in (_PLATFORM_OF.value or ()) else ""


register_signed_posts(SignedPosts(prefix="/connect/", name_of=_name_of, may_be_signed=_may_be_signed))
urlpatterns = [
    path("<str:source>", receive, name="connect"),
    path("<str:source>/<path:rest>", receive),
]
