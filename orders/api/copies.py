"""The API that sends a copy of an e-mail, to a corrected address if wanted.

Its path is below /notifications. The view is in orders, since it can also correct the order's address.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import reverse
from rest_framework import serializers
from rest_framework.request import Request

from notifications.api.serializers import NotificationSerializer, ResendProblemSerializer, with_columns
from notifications.api.sources import visible
from notifications.content.copies import NotCopied
from notifications.log import act_on_email
from notifications.models import EmailNotification
from orders.corrections import send_copy
from orders.models import Order
from runtime.audit import Actor, record
from runtime.models import AuditRow
from web.actors import token_actor
from web.api.fields import EmailAddress, Flag, StrictSerializer
from web.api.idempotency import answer_once
from web.api.problem_types import declare_type
from web.api.problems import Problem, not_found
from web.api.schema import ClosedBody, operation
from web.api.views import NO_SUCH_ID, ApiView, json_response, path_id, present
from web.models import ApiToken

WRITE = "notifications:write"
NOT_COPYABLE = declare_type(
    slug="not-copyable",
    status=409,
    title="No copy of the e-mail is sent",
    reason="The e-mail has not ended, was erased, or has no address to which a copy may go.",
    advice="Read detail and current_status.",
)


class CopyBody(StrictSerializer):
    """The copy's address. By default, the copy goes to the address of the first e-mail."""

    recipient_email = EmailAddress(required=False)
    update_order = Flag(required=False, help_text="Correct the order's address, too")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("update_order") and "recipient_email" not in attrs:
            raise serializers.ValidationError(
                {"recipient_email": ["Give the address that update_order writes to the order."]}
            )
        return attrs


class _CopyBodyInDocument(ClosedBody):  # type: ignore[no-untyped-call]
    """The schema of `CopyBody`, with what `validate` asks. drf-spectacular registers the class."""

    target_class = CopyBody
    match_subclasses = False
    priority = 0

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = super().map_serializer(auto_schema, direction)
        corrects = {"properties": {"update_order": {"const": True}}, "required": ["update_order"]}
        return {**schema, "if": corrects, "then": {"required": ["recipient_email"]}}


class Copies(ApiView):
    scopes = {"POST": WRITE}
    body_serializer = CopyBody

    @operation(
        name="copy_notification",
        summary="Send a copy of an ended e-mail, to another address if given",
        scope=WRITE,
        body={"application/json": CopyBody},
        has_body=True,
        ids=("id",),
        answer=NotificationSerializer,
        status=201,
        conflict=ResendProblemSerializer,
        tags=["notifications"],
        example={"recipient_email": "alice@example.com", "update_order": True},
    )
    def post(self, request: Request, id: str) -> HttpResponse:
        notification_id, values = path_id(id), self.body()
        token, emails = self.first_read.token, EmailNotification.objects.filter(id=notification_id)
        if token.source and not visible(emails, token).exists():
            raise not_found(NO_SUCH_ID)
        by = token_actor(request, token)
        return answer_once(view=self, work=lambda: _copy(notification_id, token, values, by=by))


def _copy(
    notification_id: uuid.UUID, token: ApiToken, values: dict[str, Any], *, by: Actor
) -> tuple[HttpResponse, uuid.UUID]:
    try:
        copy_id = send_copy(notification_id=notification_id, **values)
    except (EmailNotification.DoesNotExist, Order.DoesNotExist):
        raise not_found(NO_SUCH_ID) from None
    except NotCopied as refusal:
        raise Problem(
            NOT_COPYABLE,
            detail=f"No copy is sent: {refusal}.",
            current_status=refusal.status,
        ) from None
    copy = with_columns(visible(EmailNotification.objects.filter(id=copy_id), token)).get()
    said = f"Copied as {copy_id}." + (" Corrected the order's address." if values.get("update_order") else "")
    act = act_on_email(copy, kind=AuditRow.Kind.COPY, act=said)
    act.subject_id, act.subject = str(notification_id), f"e-mail {notification_id}"
    record(act, by=by)
    location = reverse("notification", kwargs={"id": copy_id})
    return json_response(present(NotificationSerializer, copy), status=201, location=location), copy.order_id
