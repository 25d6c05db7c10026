"""The API of notifications: list, get, resend, give up."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from rest_framework.request import Request

from notifications import services
from notifications.api.serializers import (
    NotificationPageSerializer,
    NotificationQuery,
    NotificationSerializer,
    ResendProblemSerializer,
    with_columns,
)
from notifications.api.sources import visible
from notifications.changes.manual_actions import Refusal
from notifications.log import act_on_email
from notifications.models import EmailNotification
from runtime.audit import Actor, record
from runtime.database.periods import narrow_to_created
from runtime.models import AuditRow
from web.actors import token_actor
from web.api.idempotency import answer_once
from web.api.pages import paginate
from web.api.problem_types import ProblemType, declare_type
from web.api.problems import Problem, not_found
from web.api.schema import operation
from web.api.views import NO_SUCH_ID, ApiView, json_response, path_id, present
from web.models import ApiToken

READ, WRITE = "notifications:read", "notifications:write"
TAGS = ["notifications"]
NOT_RESENDABLE = declare_type(
    slug="not-resendable",
    status=409,
    title="The e-mail is not sent again now",
    reason="The e-mail is on its way, was sent, is held, or its address is suppressed.",
    advice="Read detail, current_status and until. An operator can lift a suppression in the admin. To send a"
    " sent e-mail again, send a copy.",
)
NOT_DISCARDABLE = declare_type(
    slug="not-discardable",
    status=409,
    title="The e-mail is not given up now",
    reason="The e-mail is being sent, was sent, is held, or does not wait any more.",
    advice="Read detail, current_status and until.",
)
#: Parameters that filter by the value of one column.
LOOKUPS = {
    "status": "status",
    "order_id": "order_id",
    "event_type": "event_type",
}


class Notifications(ApiView):
    scopes = {"GET": READ, "HEAD": READ}
    query_serializer = NotificationQuery

    @operation(
        name="list_notifications",
        summary="List e-mails, newest first",
        scope=READ,
        query=NotificationQuery,
        answer=NotificationPageSerializer,
        tags=TAGS,
    )
    def get(self, request: Request) -> HttpResponse:
        filters = {LOOKUPS[name]: value for name, value in self.query.items() if name in LOOKUPS}
        emails = visible(
            EmailNotification.objects.filter(**filters),
            self.first_read.token,
            recipient_email=self.query.get("recipient_email", ""),
        )
        rows = narrow_to_created(
            with_columns(emails),
            since=self.query.get("created_after"),
            until=self.query.get("created_before"),
        )
        return json_response(paginate(view=self, rows=rows, serializer=NotificationSerializer))


class OneNotification(ApiView):
    scopes = {"GET": READ, "HEAD": READ}

    @operation(
        name="get_notification",
        summary="Get an e-mail's state",
        scope=READ,
        ids=("id",),
        answer=NotificationSerializer,
        tags=TAGS,
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        return json_response(present(NotificationSerializer, _find(path_id(id), self.first_read.token)))


class ResendNotification(ApiView):
    scopes = {"POST": WRITE}

    @operation(
        name="resend_notification",
        summary="Send a dead, discarded or failed e-mail again",
        scope=WRITE,
        has_body=True,
        ids=("id",),
        answer=NotificationSerializer,
        status=202,
        conflict=ResendProblemSerializer,
        tags=TAGS,
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        notification_id, token = path_id(id), self.first_read.token
        self.body()
        by = token_actor(request, token)
        return answer_once(view=self, work=lambda: _resend(notification_id, token, by=by))


class DiscardNotification(ApiView):
    scopes = {"POST": WRITE}

    @operation(
        name="discard_notification",
        summary="Give up an e-mail that waits, failed or is dead",
        scope=WRITE,
        has_body=True,
        ids=("id",),
        answer=NotificationSerializer,
        conflict=ResendProblemSerializer,
        tags=TAGS,
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        notification_id, token = path_id(id), self.first_read.token
        self.body()
        by = token_actor(request, token)
        return answer_once(view=self, work=lambda: _discard(notification_id, token, by=by))


def _resend(notification_id: uuid.UUID, token: ApiToken, *, by: Actor) -> tuple[HttpResponse, uuid.UUID]:
    before = _find(notification_id, token)
    changes, refusals = services.resend(ids=[notification_id])
    for refusal in refusals:
        raise _conflict(NOT_RESENDABLE, f"It is not sent again: {refusal.text}.", before, refusal)
    record(*map(services.act_on_resend, changes), by=by)
    return json_response(
        present(NotificationSerializer, _find(notification_id, token)), status=202
    ), before.order_id


def _discard(notification_id: uuid.UUID, token: ApiToken, *, by: Actor) -> tuple[HttpResponse, uuid.UUID]:
    before = _find(notification_id, token)
    changes, refusals = services.give_up(ids=[notification_id])
    for refusal in refusals:
        raise _conflict(NOT_DISCARDABLE, f"It is not given up: {refusal.text}.", before, refusal)
    kind = AuditRow.Kind.EMAIL
    acts = [act_on_email(change, kind=kind, act=f"Given up (was {change.was}).") for change in changes]
    record(*acts, by=by)
    return json_response(present(NotificationSerializer, _find(notification_id, token))), before.order_id


def _conflict(type: ProblemType, detail: str, before: EmailNotification, refusal: Refusal) -> Problem:
    return Problem(type, detail=detail, current_status=before.status, until=refusal.until)


def _find(notification_id: uuid.UUID, token: ApiToken) -> EmailNotification:
    email = with_columns(visible(EmailNotification.objects.filter(id=notification_id), token)).first()
    if email is None:
        raise not_found(NO_SUCH_ID)
    return email
