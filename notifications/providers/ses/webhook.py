"""`POST /webhooks/ses`. Brings boto3, so it is loaded by its first request."""

from __future__ import annotations

import datetime as dt
from typing import cast

from anymail.webhooks.amazon_ses import AmazonSESTrackingWebhookView
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from notifications.providers.webhook import View, Webhook, check_time, refused


class Ses(Webhook, AmazonSESTrackingWebhookView):
    """SES' event publishing through SNS, which a basic-auth secret in the endpoint's address protects."""

    provider = "ses"

    def _take(self, request: HttpRequest) -> HttpResponse:
        if self.basic_auth and "Authorization" not in request.headers:  # SNS asks without first
            challenge = {"WWW-Authenticate": 'Basic realm="webhooks"'}
            raise refused(401, "unsigned", "Basic authentication is needed.", **challenge)
        return super()._take(request)

    def check_fresh(self, request: HttpRequest) -> None:
        """SNS repeats a notification with its first time, for up to an hour by its own retry policy."""
        if self.basic_auth:
            sent = dt.datetime.fromisoformat(self._parse_sns_message(request)["Timestamp"])
            check_time(sent.timestamp(), tolerance=3600 + settings.WEBHOOK_TOLERANCE_SECONDS)


def view() -> View:
    """This function will make the view with the secret that the settings have now."""
    logins = [settings.WEBHOOK_BASIC_AUTH] if settings.WEBHOOK_BASIC_AUTH else []
    return cast(View, Ses.as_view(basic_auth=logins))
