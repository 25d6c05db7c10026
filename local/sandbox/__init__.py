"""A stand-in for the providers, so that the real sending code runs locally, in tests and in chaos runs.

Started as a process by `python -m local.sandbox`, or in a test's own process by
`with Sandbox() as sandbox:`. Nothing of the program itself may import it.
"""

from local.sandbox.faults import Fault
from local.sandbox.mails import Mail
from local.sandbox.sandbox import Sandbox
from local.sandbox.webhooks import WebhookSettings

__all__ = ["Fault", "Mail", "Sandbox", "WebhookSettings"]
