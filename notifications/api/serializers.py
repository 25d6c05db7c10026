"""The queries and answers of the API of notifications, which never show an e-mail's body."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from notifications.content.template_files import event_types
from notifications.models import LAST_ERROR_AT, EmailNotification
from notifications.states.transitions import DUE_STATES, EndedBy, Status
from runtime.personal_data import without_addresses
from web.api.fields import Choice, EmailAddress, Identifier
from web.api.pages import PeriodQuery
from web.api.schema import HotPageSerializer, PageSerializer, ProblemSerializer


class NotificationQuery(PeriodQuery):
    status = Choice(choices=Status.choices, required=False)
    recipient_email = EmailAddress(required=False, help_text="The whole address, in any case")
    order_id = Identifier(required=False)
    event_type = Choice(choices=sorted(event_types()), required=False, help_text="The change that caused it")


class NotificationSerializer(serializers.Serializer[EmailNotification]):
    id = serializers.UUIDField()
    order_id = serializers.UUIDField()
    event_type = serializers.CharField()
    recipient_email = serializers.SerializerMethodField(
        help_text="Empty in a copy to an address that is not the order's, if the token is bound to a source"
    )
    subject = serializers.CharField()
    status = serializers.ChoiceField(choices=Status.choices)
    retry_count = serializers.IntegerField(
        help_text="Since the last resend, the attempts with a failure that may be the e-mail's own. It may"
        " exceed `max_retries`"
    )
    max_retries = serializers.IntegerField()
    last_error = serializers.SerializerMethodField()
    next_attempt_at = serializers.SerializerMethodField(help_text="null if no attempt is planned")
    provider = serializers.CharField()
    provider_message_id = serializers.CharField()
    created_at = serializers.DateTimeField()
    sent_at = serializers.DateTimeField(allow_null=True)
    delivered_at = serializers.DateTimeField(allow_null=True)
    bounced_at = serializers.DateTimeField(allow_null=True)
    resend_of = serializers.UUIDField(allow_null=True, help_text="The e-mail that this is a copy of")
    shop_copy_of = serializers.UUIDField(
        allow_null=True, help_text="The customer's e-mail of which this is the shop's copy"
    )
    profile = serializers.CharField(help_text="The source whose profile sends it; empty for own orders")
    failed_at = serializers.SerializerMethodField(help_text="When it became a dead letter, or null")
    ended_by = serializers.ChoiceField(
        choices=EndedBy.choices,
        allow_blank=True,
        help_text="Why it did not leave, or is no longer tried. Empty while it is open, or sent",
    )

    @extend_schema_field(serializers.CharField())
    def get_recipient_email(self, email: EmailNotification) -> str:
        return "" if _is_elsewhere(email) else email.recipient_email

    @extend_schema_field(serializers.CharField())
    def get_last_error(self, email: EmailNotification) -> str:
        """Return the error without the addresses that a provider may quote in it, if they are hidden."""
        return without_addresses(email.last_error) if _is_elsewhere(email) else email.last_error

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_next_attempt_at(self, email: EmailNotification) -> Any:
        """Return the time of the next attempt, or None if none is planned."""
        time: dt.datetime = email.next_attempt_at
        return serializers.DateTimeField().to_representation(time) if email.status in DUE_STATES else None

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_failed_at(self, email: EmailNotification) -> Any:
        """Return `EmailNotification.failed_at` as the API writes times."""
        return email.failed_at and serializers.DateTimeField().to_representation(email.failed_at)


def _is_elsewhere(email: EmailNotification) -> bool:
    """Return what `notifications.api.sources.visible` annotates for a bound token."""
    return getattr(email, "is_elsewhere", False)


#: The columns with the names of the fields. The errors themselves can be long.
_COLUMNS = [name for name in map(str, NotificationSerializer().fields) if name != "failed_at"]


def with_columns(rows: QuerySet[EmailNotification]) -> QuerySet[EmailNotification]:
    """Load what the serializer shows."""
    return rows.only(*_COLUMNS).annotate(last_error_at=LAST_ERROR_AT)


class NotificationPageSerializer(PageSerializer):
    results = NotificationSerializer(many=True)


class NotificationHotPageSerializer(HotPageSerializer):
    results = NotificationSerializer(many=True)


class ResendProblemSerializer(ProblemSerializer):
    current_status = serializers.ChoiceField(choices=Status.choices, required=False)
    until = serializers.DateTimeField(
        allow_null=True, required=False, help_text="When a resend may be possible, if waiting helps"
    )
