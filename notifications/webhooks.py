"""`POST /webhooks/<provider>`: take the configured providers' events about e-mails.

The first request to a provider's address loads its webhook module. config.urls includes `urlpatterns`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Mapping

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.module_loading import import_string
from django.views.decorators.csrf import csrf_exempt

from notifications import metrics
from notifications.changes.evidence import record_evidence
from notifications.provider_tests import refused_beat
from notifications.providers.registry import Declaration, declarations
from notifications.providers.webhook import Malformed, Unsigned, Unverifiable, Webhook
from runtime.models import Heartbeat
from web.api.problem_types import MALFORMED, METHOD_NOT_ALLOWED, TOO_LARGE, ProblemType, Repeat, declare_type
from web.api.problems import Problem, problem_response, unknown_path
from web.front.posts import SignedPosts, register_signed_posts
from web.models import IdempotencyKey

UNSIGNED = declare_type(
    slug="unsigned",
    status=401,
    title="The signature is missing or wrong",
    reason="A post to /webhooks or /connect has no valid signature, or the provider's key is not set here.",
    advice="Read detail. Set the same key here and at the sender.",
)
UNVERIFIABLE = declare_type(
    slug="unverifiable",
    status=503,
    title="The signature cannot be checked now",
    reason="The certificate that signed a provider's post cannot be fetched.",
    advice="Providers send their events again. Check this host's way to the certificate if it persists.",
    repeat=Repeat.YES,
)
#: The problems that a provider's post can cause. The metrics count all others as `error`.
REFUSALS = frozenset({UNSIGNED, MALFORMED, TOO_LARGE, UNVERIFIABLE})


def may_be_signed(provider: str, headers: Mapping[str, str]) -> bool:
    """Return whether `receive` could take a post with these headers. Read nothing."""
    declared = _configured(provider)
    if declared is None:
        return False
    key = getattr(settings, declared.webhook_key)
    if not key:
        return bool(settings.DEBUG or settings.WEBHOOKS_UNSIGNED)
    return webhook_of(declared.webhook, key).may_be_signed(headers)


def _configured(provider: str) -> Declaration | None:
    declared = declarations().get(provider)
    is_configured = declared is not None and declared.webhook and provider in settings.EMAIL_PROVIDERS
    return declared if is_configured else None


@csrf_exempt
def receive(request: HttpRequest, provider: str) -> HttpResponse:
    """Answer a provider's post. No content of a post may cause a 500."""
    declared = _configured(provider)
    if declared is None:
        return unknown_path(request)
    try:
        if request.method not in ("POST", "HEAD"):
            raise refusal(METHOD_NOT_ALLOWED, "Send events by POST.", Allow="POST, HEAD")
        if int(request.headers.get("Content-Length") or 0) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise refusal(TOO_LARGE, f"A batch has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes.")
        if request.method == "POST":
            _record(request, declared)
            metrics.WEBHOOKS.labels(provider, "accepted").inc()
        return HttpResponse()
    except Exception as error:  # noqa: BLE001 - problem_response logs what is not expected
        if request.method == "POST":
            slug = error.type.slug if isinstance(error, Problem) and error.type in REFUSALS else "error"
            metrics.WEBHOOKS.labels(provider, slug.replace("-", "_")).inc()
            if slug != "error":
                with contextlib.suppress(
                    DatabaseError, InterfaceError
                ):  # the answer must not depend on the database
                    Heartbeat.beat(name=refused_beat(provider=provider, problem=slug), every=1.0)
        return problem_response(error, {"request": request})


def _record(request: HttpRequest, declared: Declaration) -> None:
    key = getattr(settings, declared.webhook_key)
    if not key and not (settings.DEBUG or settings.WEBHOOKS_UNSIGNED):
        raise refusal(UNSIGNED, f"Events are refused because {declared.webhook_key} is not set.")
    webhook = webhook_of(declared.webhook, key)
    try:
        evidence = webhook.read(request)
    except Unsigned as error:
        raise refusal(
            UNSIGNED,
            f"The signature or password is missing or wrong. It must fit {declared.webhook_key}.",
            **({"WWW-Authenticate": 'Basic realm="webhooks"'} if webhook.has_password else {}),
        ) from error
    except Malformed as error:
        raise refusal(
            MALFORMED, f"The body must be a batch of events as {declared.name} sends it."
        ) from error
    except Unverifiable as error:
        detail = "The signature cannot be checked now."
        raise refusal(UNVERIFIABLE, detail, **{"Retry-After": "60"}) from error
    if key and (signature := webhook.signature_of(request)):
        body_hash = hashlib.sha256(request.body).hexdigest()
        scope = f"webhook:{declared.name}"
        if not IdempotencyKey.objects.is_first(scope=scope, key=signature, request_hash=body_hash):
            raise refusal(UNSIGNED, "Another event had this signature. Sign each event with its own token.")
    record_evidence(provider=declared.name, evidence=evidence)
    Heartbeat.beat(name=f"webhook:{declared.name}", every=5.0)  # holds depend on it


@functools.lru_cache
def webhook_of(dotted_path: str, key: str) -> Webhook:
    """Return a provider's webhook object. Cached."""
    made: Webhook = import_string(dotted_path)(key=key)
    return made


def refusal(type: ProblemType, detail: str, **headers: str) -> Problem:
    """Return the problem of a post that is not taken."""
    return Problem(type, detail=detail, headers=headers)


register_signed_posts(
    SignedPosts(prefix="/webhooks/", name_of=lambda provider: provider, may_be_signed=may_be_signed)
)
urlpatterns = [path("<str:provider>", receive)]
