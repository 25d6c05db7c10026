"""POST /events: events of other services and shops, with the effects that they have over a broker."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import structlog
from django.http import HttpResponse
from django.utils.text import get_text_list
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.request import Request

from events.consuming import refusals
from events.consuming.bodies import BINARY_MODE, BODIES, SentEvent, read_events
from events.consuming.envelope import Envelope, Rejected
from events.consuming.handlers import Handler
from events.consuming.inbox import process_or_reject
from events.counters import RECEIVED
from events.pause_watch import PauseWatch
from orders.inbound import commands
from orders.inbound.external import TOPICS as ORDER_TOPICS
from orders.inbound.external import OwnedElsewhere
from orders.inbound.reading import name_unknown
from orders.subscriptions import DATA, NAME, over_http
from runtime.models import Pause
from web.api.problem_types import FORBIDDEN, UNUSABLE_EVENT
from web.api.problems import Problem, is_temporary, paused, took_too_long
from web.api.schema import operation
from web.api.views import ApiView, json_response
from web.models import ApiToken

log = structlog.get_logger(__name__)

SCOPE = "events:write"
#: A list reads its token again after so long: if its orders are locked, it may take minutes.
TOKEN_SECONDS = 1.0
#: A list whose orders are locked is given up after so long. What was processed is then a repeat.
LIST_SECONDS = 60.0
RESULTS = {"done": ("processed", "handled"), "repeat": ("repeated", "repeated")}
Answer = dict[str, Any]

_pause = PauseWatch(Pause.Part.CONSUMERS)


class EventResultSerializer(serializers.Serializer[Answer]):
    event_id = serializers.UUIDField(allow_null=True, help_text="null if the event's id cannot be read")
    result = serializers.ChoiceField(
        choices=["processed", "repeated", "refused"],
        help_text="`repeated`: it had its effect before. `refused`: only in the answer to a list",
    )
    problem = serializers.CharField(required=False, help_text="Why the event was refused")
    email = serializers.ChoiceField(
        choices=["queued", "none"],
        required=False,
        help_text="What became of the e-mail. Only of events of other systems' orders",
    )
    reason = serializers.CharField(required=False, help_text="Why there is no e-mail")
    warnings = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Values that were replaced, unknown members, and what to check. The event was processed",
    )


class EventResultsSerializer(serializers.Serializer[Answer]):
    """The answer to a list, in its order."""

    results = EventResultSerializer(many=True)


class NotForToken(Rejected):
    """The token is bound to a source and may not send this event."""


class InboundEvents(ApiView):
    """Each event has its own transaction. A refused event does not undo the others.

    The event's id does the work of an Idempotency-Key, which is ignored here.
    """

    scopes = {"POST": SCOPE}

    @operation(
        name="send_events",
        summary="Send an event, or a list of events",
        scope=SCOPE,
        body=BODIES,
        has_body=True,
        has_key=False,
        answer=PolymorphicProxySerializer(
            component_name="EventAnswer",
            serializers=[EventResultSerializer, EventResultsSerializer],
            resource_type_field_name=None,
        ),
        more=BINARY_MODE,
        unprocessable="The event cannot be used; nothing was stored",
        tags=["events"],
    )
    def post(self, request: Request) -> HttpResponse:
        token, self._token_read_at = self.first_read.token, time.monotonic()
        self._ends_at = self._token_read_at + LIST_SECONDS
        _check_pause()
        events, is_list = read_events(request)
        handlers = over_http()
        opened = [_open(event, token, taken=handlers) for event in events]
        if is_list:
            answers = [self._answer_in_list(*both, handlers) for both in zip(events, opened, strict=True)]
            return json_response({"results": answers})
        (event,), (envelope,) = events, opened
        try:
            return json_response(_process(event, envelope, handlers, token))
        except NotForToken as reason:
            raise Problem(FORBIDDEN, detail=str(reason), source=token.source) from None
        except Rejected as reason:
            raise Problem(UNUSABLE_EVENT, detail=str(reason), event_id=event.event_id) from None

    def _answer_in_list(
        self, event: SentEvent, opened: Envelope | Rejected, handlers: Mapping[str, Handler]
    ) -> Answer:
        """Process an event of a list. Raise only errors after which the sender must repeat the whole list.

        Raise `AuthenticationFailed` if the token was revoked or has expired since the list began.
        """
        _check_pause()
        if time.monotonic() > self._ends_at:
            raise took_too_long(LIST_SECONDS)
        if time.monotonic() - self._token_read_at >= TOKEN_SECONDS:
            self.read_again()
            self._token_read_at = time.monotonic()
        try:
            return _process(event, opened, handlers, self.first_read.token)
        except Rejected as reason:
            return {"event_id": event.event_id, "result": "refused", "problem": str(reason)}
        except Exception as error:
            if is_temporary(error):
                raise
            log.exception("event failed", event_id=event.event_id)
            problem = "It failed here, and the cause was logged. Send it again."
            return {"event_id": event.event_id, "result": "refused", "problem": problem}


def _check_pause() -> None:
    """Raise the 503 problem while the consumers are paused. Events of the list may have been processed."""
    if _pause.is_paused():
        raise paused()


def _open(event: SentEvent, token: ApiToken, *, taken: Collection[str]) -> Envelope | Rejected:
    """Return the envelope of an event that the token may send, or the reason why it is refused."""
    try:
        opened = event.envelope()
        _check_sender(opened, token)
    except Rejected as reason:
        return reason
    return opened if opened.type in taken else Rejected(_why_not_taken(opened.type, taken=taken))


def _process(
    event: SentEvent, opened: Envelope | Rejected, handlers: Mapping[str, Handler], token: ApiToken
) -> Answer:
    """Process an event. Raise `Rejected`, and the errors of the database and of the handler."""
    topic, counted = "unknown", "retried"
    try:
        if isinstance(opened, Rejected):
            raise opened
        topic = opened.type
        result, counted = RESULTS[process_or_reject(opened, consumer=NAME, handlers=handlers)]
    except Rejected as reason:
        counted = "rejected"
        refusals.note(sender=token.name, topic=topic, reason=str(reason))
        log.warning("event not taken", event_id=event.event_id, reason=str(reason)[:1000], token=token.name)
        if token.source and isinstance(reason, OwnedElsewhere):
            raise Rejected("data.orderId: An order of another system has this id.") from None
        raise
    finally:
        RECEIVED.labels(topic, counted).inc()
    return {"event_id": str(opened.id), "result": result} | _describe(opened)


def _describe(event: Envelope) -> Answer:
    """Return what else the sender of an event should know. A repeat does not say what its first time did."""
    why_withheld = event.effects.why_withheld
    warnings = event.effects.warnings + name_unknown(DATA[event.type], event.data)
    if event.type not in ORDER_TOPICS:
        return {"warnings": warnings} if warnings else {}
    if why_withheld is None:
        why_withheld = "the event was processed before"
    email = {"email": "none", "reason": why_withheld} if why_withheld else {"email": "queued"}
    return {**email, "warnings": warnings}


def _why_not_taken(topic: str, *, taken: Iterable[str]) -> str:
    if topic in commands.TOPICS:
        return "commands are not taken: call the API"
    return f"the topic {topic[:100]!r} is not taken: use {get_text_list(sorted(taken), 'or')}"


def _check_sender(envelope: Envelope, token: ApiToken) -> None:
    """Raise `NotForToken` unless the token is bound to no source, or to the event's own."""
    if not token.source:
        return
    if {envelope.source, envelope.producer} != {token.source}:
        raise NotForToken(f"This token speaks for {token.source} alone.")
    if envelope.type not in ORDER_TOPICS:
        topics = get_text_list(sorted(ORDER_TOPICS), "or")
        raise NotForToken(f"This token sends only events of the orders of {token.source}: use {topics}.")
