"""SendGrid: its v3 Mail Send API and its Event Webhook."""

from __future__ import annotations

from notifications.providers.registry import Declaration, Setting


def check_verification_key(text: str) -> None:
    """Raise ValueError unless `text` is the key that SendGrid shows for *Signed Event Webhook*."""
    import base64

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        key = load_der_public_key(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise ValueError("it must be a public key in base64, as SendGrid shows it") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("it must be an elliptic curve key, as SendGrid shows it")


def make_key() -> tuple[str, str]:
    """Return a private key as PEM, and its public key as SendGrid shows it."""
    import base64

    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem.decode(), base64.b64encode(public).decode()


DECLARATION = Declaration(
    name="sendgrid",
    own_list="Suppressions → Bounces, and → Spam Reports, or DELETE"
    " /v3/suppression/bounces/ADDRESS and /spam_reports/ADDRESS",
    provider="notifications.providers.sendgrid.backend.SendGridProvider",
    settings=(
        Setting("SENDGRID_API_KEY", anymail="SENDGRID_API_KEY"),
        Setting("SENDGRID_API_URL", "https://api.sendgrid.com/v3/", anymail="SENDGRID_API_URL"),
        Setting("SENDGRID_WEBHOOK_VERIFICATION_KEY"),
    ),
    api_key="SENDGRID_API_KEY",
    webhook="notifications.providers.sendgrid.webhook.SendGridWebhook",
    webhook_key="SENDGRID_WEBHOOK_VERIFICATION_KEY",
    check_key=check_verification_key,
    make_key=make_key,
    key_pattern=r"\b(SG\.)[\w-]+\.[\w-]+",
    dialect="notifications.providers.sendgrid.sandbox.SendGridDialect",
    sandbox={"SENDGRID_API_KEY": "sandbox", "SENDGRID_API_URL": "{sandbox}/v3/"},
)
