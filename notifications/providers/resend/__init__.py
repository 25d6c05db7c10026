"""Resend: its API and its webhooks."""

from __future__ import annotations

from notifications.providers.explanations import IDEMPOTENCY
from notifications.providers.registry import Declaration, Setting


def check_secret(text: str) -> None:
    """Raise ValueError unless `text` is a signing secret as Resend shows it."""
    import base64

    try:
        base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except ValueError as error:
        raise ValueError("it must be a signing secret (whsec_…), as Resend shows it") from error


DECLARATION = Declaration(
    name="resend",
    own_list="Suppressions, next to Emails",
    provider="notifications.providers.resend.backend.ResendProvider",
    settings=(
        Setting("RESEND_API_KEY", anymail="RESEND_API_KEY"),
        Setting("RESEND_API_URL", "https://api.resend.com/", anymail="RESEND_API_URL"),
        Setting("RESEND_WEBHOOK_SECRET"),
    ),
    api_key="RESEND_API_KEY",
    webhook="notifications.providers.resend.webhook.ResendWebhook",
    webhook_key="RESEND_WEBHOOK_SECRET",
    check_key=check_secret,
    key_pattern=r"\b(re_|whsec_)[\w+/=-]{8,}",
    causes=((r"invalid_idempotent_request|concurrent_idempotent", IDEMPOTENCY),),
    dialect="notifications.providers.resend.sandbox.ResendDialect",
    sandbox={"RESEND_API_KEY": "sandbox", "RESEND_API_URL": "{sandbox}/"},
)
