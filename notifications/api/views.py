"""The API of notifications: list, get, resend."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from rest_framework.request import Request

from notifications import services
from notifications.api.serializers import (
    COLUMNS,
    NotificationPageSerializer,
    NotificationQuery,
    NotificationSerializer,
    ResendProblemSerializer,
)
from notifications.models import EmailNotification
from outbox.api.idempotency import answer_once
from outbox.api.pages import paginate
from outbox.api.problems import Problem, not_found
from outbox.api.schema import operation
from outbox.api.views import NO_SUCH_ID, ApiView, json_response, path_id, present

READ, WRITE = "notifications:read", "notifications:write"
TAGS = ["notifications"]


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
        lookups = {"status": "status", "recipient_email": "recipient_email__iexact", "order_id": "order_id"}
        filters = {lookups[name]: value for name, value in self.query.items() if name in lookups}
        rows = EmailNotification.objects.filter(**filters).only(*COLUMNS)
        return json_response(
            paginate(request=request, query=self.query, rows=rows, serializer=NotificationSerializer)
        )


class OneNotification(ApiView):
    scopes = {"GET": READ, "HEAD": READ}

    @operation(
        name="get_notification",
        summary="Get an e-mail's state",
        scope=READ,
        has_id=True,
        answer=NotificationSerializer,
        tags=TAGS,
    )
    def get(self, request: Request, id: str) -> HttpResponse:
        return json_response(present(NotificationSerializer, _find(path_id(id))))


class Resend(ApiView):
    scopes = {"POST": WRITE}

    @operation(
        name="resend_notification",
        summary="Send a dead, discarded or failed e-mail again",
        scope=WRITE,
        has_body=True,
        has_id=True,
        answer=NotificationSerializer,
        status=202,
        conflict=ResendProblemSerializer,
        tags=TAGS,
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        notification_id = path_id(id)
        self.body()
        return answer_once(view=self, work=lambda: _resend(notification_id))


def _resend(notification_id: uuid.UUID) -> HttpResponse:
    before = _find(notification_id)
    _, refusals = services.resend(ids=[notification_id])
    for refusal in refusals:
        raise Problem(
            status=409,
            slug="not-resendable",
            title="The e-mail is not sent again now",
            detail=f"It is not sent again: {refusal.reason}.",
            current_status=before.status,
            until=refusal.until,
        )
    return json_response(present(NotificationSerializer, _find(notification_id)), status=202)


def _find(notification_id: uuid.UUID) -> EmailNotification:
    rows = EmailNotification.objects.filter(id=notification_id).only(*COLUMNS)
    mail = rows.first()
    if mail is None:
        raise not_found(NO_SUCH_ID)
    return mail
