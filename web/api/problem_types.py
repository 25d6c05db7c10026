"""The registry of problem types. Each app declares its own next to the code that raises them.

`Problem` takes its status and title from here, and `/api/problems/<slug>` shows the texts.
"""

from __future__ import annotations

import dataclasses
import enum


class Repeat(enum.Enum):
    """A sentence for the caller on repeating the request."""

    NO = "Do not repeat the request unchanged. It would be refused again."
    YES = (
        "Repeat the request, with the same Idempotency-Key if it had one. Wait for Retry-After, or 1 second"
        " and then twice as long each time."
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProblemType:
    """A kind of problem. `reason` says when it happens, `advice` what the caller does about it."""

    slug: str
    status: int
    title: str
    reason: str
    advice: str
    repeat: Repeat = Repeat.NO


_types: dict[str, ProblemType] = {}


def declare_type(
    *, slug: str, status: int, title: str, reason: str, advice: str, repeat: Repeat = Repeat.NO
) -> ProblemType:
    """Register a type and return it. Raise `ValueError` if another type has the slug."""
    if slug in _types:
        raise ValueError(f"the problem type {slug!r} is declared twice")
    problem_type = _types[slug] = ProblemType(
        slug=slug, status=status, title=title, reason=reason, advice=advice, repeat=repeat
    )
    return problem_type


def find_types() -> dict[str, ProblemType]:
    """Return the types by slug, sorted by status and slug. All are declared once the URLs are loaded."""
    return dict(sorted(_types.items(), key=lambda item: (item[1].status, item[0])))


VALIDATION = declare_type(
    slug="validation",
    status=400,
    title="The request is not valid",
    reason="A value in the body, the query string or a header is missing, unknown or not allowed.",
    advice="Correct the values that errors lists. Each entry has a pointer to the value and the reason.",
)
MALFORMED = declare_type(
    slug="malformed",
    status=400,
    title="The request cannot be read",
    reason="The body is not UTF-8 or not JSON, or the request is broken in another way.",
    advice="Correct what detail names.",
)
UNAUTHENTICATED = declare_type(
    slug="unauthenticated",
    status=401,
    title="A valid token is needed",
    reason="The request has no token, or one that is unknown, expired or revoked.",
    advice="Send a valid token as Authorization: Bearer <token>.",
)
FORBIDDEN = declare_type(
    slug="forbidden",
    status=403,
    title="The token does not allow this",
    reason="The token is valid, but it may not do this.",
    advice="Read detail. If the answer names a scope or a source, use a token that has it.",
)
NOT_FOUND = declare_type(
    slug="not-found",
    status=404,
    title="Not found",
    reason="The id or the address is unknown. The API does not find old e-mails, because they are archived.",
    advice="Check the id, and compare the path with /api/docs.",
)
METHOD_NOT_ALLOWED = declare_type(
    slug="method-not-allowed",
    status=405,
    title="Method not allowed",
    reason="The address does not answer this method.",
    advice="Use one of the methods in the header Allow.",
)
TOO_SLOW = declare_type(
    slug="too-slow",
    status=408,
    title="The body came too slowly",
    reason="Five seconds after the headers the body was not complete.",
    advice="Send the body at once. If a proxy is in front, let it buffer bodies.",
    repeat=Repeat.YES,
)
IDEMPOTENCY_IN_PROGRESS = declare_type(
    slug="idempotency-in-progress",
    status=409,
    title="The first request with this key is not done yet",
    reason="Another request with the same Idempotency-Key is being worked on.",
    advice="Wait, and send the request again to get the first request's answer.",
    repeat=Repeat.YES,
)
LENGTH_REQUIRED = declare_type(
    slug="length-required",
    status=411,
    title="A length is needed",
    reason="The body was sent in chunks.",
    advice="Send the body with Content-Length.",
)
TOO_LARGE = declare_type(
    slug="too-large",
    status=413,
    title="The body is too large",
    reason="The body has more than 1 MB.",
    advice="Send less in one request.",
)
UNSUPPORTED_MEDIA_TYPE = declare_type(
    slug="unsupported-media-type",
    status=415,
    title="The body is of another type",
    reason="The Content-Type of the body is missing, or not one that this address takes, or the body is"
    " compressed.",
    advice="Send JSON with one of the types in the header Accept-Post, such as application/json, and without"
    " Content-Encoding.",
)
IDEMPOTENCY_KEY_REUSED = declare_type(
    slug="idempotency-key-reused",
    status=422,
    title="The key belongs to another request",
    reason="The Idempotency-Key was used with another method, path or body.",
    advice="Use a new key for each new request, and the old key only to repeat the same request.",
)
UNUSABLE_EVENT = declare_type(
    slug="unusable-event",
    status=422,
    title="The event cannot be used",
    reason="The event is refused for the reason in detail. It was not stored.",
    advice="Correct the event and send it again.",
)
TOO_MANY_REQUESTS = declare_type(
    slug="too-many-requests",
    status=429,
    title="Too many requests",
    reason="The token sent more requests in a second than it may. Nothing was changed.",
    advice="Send fewer requests a second.",
    repeat=Repeat.YES,
)
INTERNAL = declare_type(
    slug="internal",
    status=500,
    title="Something went wrong here",
    reason="The request met an error that nobody expected. The log has its cause.",
    advice="Report the X-Correlation-ID of the answer if the error persists.",
    repeat=Repeat.YES,
)
UNAVAILABLE = declare_type(
    slug="unavailable",
    status=503,
    title="Not available for a moment",
    reason="The database did not answer, or other requests hold the order. detail says which.",
    advice="Without an Idempotency-Key, read the order before you repeat: the change may have been made.",
    repeat=Repeat.YES,
)
OVERLOADED = declare_type(
    slug="overloaded",
    status=503,
    title="Too many requests for this machine",
    reason="More new work arrived than the machine can do in time. Nothing was changed.",
    advice="Send fewer requests at a time, or tell the operator if it persists.",
    repeat=Repeat.YES,
)
CLOCK = declare_type(
    slug="clock",
    status=503,
    title="Not available until an operator acts",
    reason="A host's clock or the table's partitions are wrong. Nothing was changed.",
    advice="Tell the operator, and repeat the request until it succeeds.",
    repeat=Repeat.YES,
)
PAUSED = declare_type(
    slug="paused",
    status=503,
    title="Events are not taken now",
    reason="An operator paused the consumers of events.",
    advice="Send the events again later.",
    repeat=Repeat.YES,
)
NOT_READY = declare_type(
    slug="not-ready",
    status=503,
    title="Not ready",
    reason="The process does not have all that a request needs. Only /readyz answers this.",
    advice="Read failing. Send no requests to this process until it is ready.",
    repeat=Repeat.YES,
)
