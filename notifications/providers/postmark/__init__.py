"""Postmark: its Email API and its webhooks."""

from __future__ import annotations

from notifications.providers.explanations import ACCOUNT, INACTIVE, MALFORMED_ADDRESS, NO_CREDIT, SENDER
from notifications.providers.registry import (
    Declaration,
    Setting,
    check_password_setting,
    make_password_setting,
)

DECLARATION = Declaration(
    name="postmark",
    own_list="Suppressions of the message stream; after a complaint only Postmark's support can do it",
    provider="notifications.providers.postmark.backend.PostmarkProvider",
    settings=(
        Setting("POSTMARK_SERVER_TOKEN", anymail="POSTMARK_SERVER_TOKEN"),
        Setting("POSTMARK_API_URL", "https://api.postmarkapp.com/", anymail="POSTMARK_API_URL"),
        Setting("POSTMARK_MESSAGE_STREAM", None, anymail="POSTMARK_MESSAGE_STREAM"),
        Setting("POSTMARK_WEBHOOK_BASIC_AUTH"),
    ),
    api_key="POSTMARK_SERVER_TOKEN",
    webhook="notifications.providers.postmark.webhook.PostmarkWebhook",
    webhook_key="POSTMARK_WEBHOOK_BASIC_AUTH",
    check_key=check_password_setting,
    make_key=make_password_setting,
    causes=(
        (r"\b406: ", INACTIVE),
        (r"\b405: ", NO_CREDIT),
        (r"\b(10|412|413): ", ACCOUNT),
        (r"\b(400|401): |\b300: .*'from'", SENDER),
        (r"\b300: .*(address|'to')", MALFORMED_ADDRESS),
    ),
    blamed=((r"\b1235: ", "POSTMARK_MESSAGE_STREAM"),),
    account={"message_stream": "MessageStream"},
    dialect="notifications.providers.postmark.sandbox.PostmarkDialect",
    sandbox={"POSTMARK_SERVER_TOKEN": "sandbox", "POSTMARK_API_URL": "{sandbox}/"},
)
