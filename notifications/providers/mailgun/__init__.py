"""Mailgun: its Messages API and its webhooks."""

from __future__ import annotations

from notifications.providers.explanations import SENDER
from notifications.providers.registry import Declaration, Setting


def check_signing_key(text: str) -> None:
    """Raise ValueError unless `text` can be a signing key."""
    if not text.isascii():
        raise ValueError("it must be the webhook signing key, as Mailgun shows it")


def make_key() -> tuple[str, str]:
    """Return a random key twice: the same key signs and verifies."""
    import secrets

    key = secrets.token_hex(16)
    return key, key


DECLARATION = Declaration(
    name="mailgun",
    own_list="Sending → Suppressions, or DELETE /v3/DOMAIN/bounces/ADDRESS and /complaints/ADDRESS",
    provider="notifications.providers.mailgun.backend.MailgunProvider",
    settings=(
        Setting("MAILGUN_API_KEY", anymail="MAILGUN_API_KEY"),
        Setting("MAILGUN_API_URL", "https://api.mailgun.net/v3/", anymail="MAILGUN_API_URL"),
        Setting("MAILGUN_SENDER_DOMAIN", None, anymail="MAILGUN_SENDER_DOMAIN"),
        Setting("MAILGUN_WEBHOOK_SIGNING_KEY"),
    ),
    api_key="MAILGUN_API_KEY",
    webhook="notifications.providers.mailgun.webhook.MailgunWebhook",
    webhook_key="MAILGUN_WEBHOOK_SIGNING_KEY",
    check_key=check_signing_key,
    make_key=make_key,
    key_pattern=r"\b(key-)[0-9a-f]{32}\b",
    causes=((r"'?from'? parameter", SENDER),),
    blamed=(
        (r"magnificent", "MAILGUN_API_URL"),
        (r"^404\b", "MAILGUN_SENDER_DOMAIN, and MAILGUN_API_URL for a domain in the EU"),
    ),
    account={"domain": "sender_domain"},
    dialect="notifications.providers.mailgun.sandbox.MailgunDialect",
    sandbox={"MAILGUN_API_KEY": "sandbox", "MAILGUN_API_URL": "{sandbox}/v3/"},
)
