"""Amazon SES: its v2 API through boto3, and its events through SNS."""

from __future__ import annotations

from notifications.providers.explanations import ACCOUNT, PROVIDER_DOWN
from notifications.providers.registry import Declaration, Setting, check_password_setting

# boto3 finds the credentials (AWS_ACCESS_KEY_ID, …, a profile, or the machine's role) and another address
# (AWS_ENDPOINT_URL_SESV2).
DECLARATION = Declaration(
    name="ses",
    own_list="Suppression list of the account, or aws sesv2 delete-suppressed-destination"
    " --email-address ADDRESS",
    provider="notifications.providers.ses.backend.SesProvider",
    settings=(
        Setting("AWS_REGION", None, fallback="AWS_DEFAULT_REGION"),
        Setting("SES_CONFIGURATION_SET", None, anymail="AMAZON_SES_CONFIGURATION_SET_NAME"),
        Setting("WEBHOOK_BASIC_AUTH"),
    ),
    webhook="notifications.providers.ses.webhook.SesWebhook",
    webhook_key="WEBHOOK_BASIC_AUTH",
    check_key=check_password_setting,
    causes=(
        (r"sendingpaused|accountsuspended", ACCOUNT),
        (r"internalfailure|serviceunavailable", PROVIDER_DOWN),
    ),
    blamed=(
        (r"noregion|endpointconnection|could not connect", "AWS_REGION"),
        (r"configuration.?set|^notfoundexception", "SES_CONFIGURATION_SET"),
        (
            r"credential|unrecognizedclient|signature|accessdenied|token|notauthorized",
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or this machine's role, with ses:SendEmail",
        ),
        (r"requestexpired", "the clock of this machine"),
    ),
    account={"configuration_set": "ConfigurationSetName"},
    dialect="notifications.providers.ses.sandbox.SesDialect",
    sandbox={
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "sandbox",
        "AWS_SECRET_ACCESS_KEY": "sandbox",
        "AWS_ENDPOINT_URL_SESV2": "{sandbox}",
    },
)
