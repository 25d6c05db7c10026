"""A stand-in for the providers: the real sending code runs locally, in tests and in chaos runs.

`python -m local.sandbox` starts it as a process, and `with Sandbox() as sandbox:` in a test's own process.
Production code must not import it.
"""

from local.sandbox.faults import Fault
from local.sandbox.mails import Mail
from local.sandbox.sandbox import Sandbox
from local.sandbox.webhooks import WebhookSettings

__all__ = ["Fault", "Mail", "Sandbox", "WebhookSettings"]
