"""SMTP: any mail server. It has no webhook."""

from __future__ import annotations

from environs import validate

from notifications.providers.registry import Declaration, Protocol, Setting

DECLARATION = Declaration(
    name="smtp",
    sending="notifications.providers.smtp.sending.Smtp",
    settings=(
        Setting("EMAIL_HOST", "localhost"),
        Setting("EMAIL_PORT", 25, validate=validate.Range(min=1, max=65535)),
        Setting("EMAIL_HOST_USER"),
        Setting("EMAIL_HOST_PASSWORD", is_secret=True),
        Setting("EMAIL_USE_TLS", False),
    ),
    protocol=Protocol.SMTP,
)
