"""The evidence of one event of a provider's webhook. `notifications.services.record_evidence` writes it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid

from notifications.models import Suppression


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """The provider has the e-mail `id`. Times are the provider's.

    `id` is None if the event names none of our e-mails or proves nothing. It is then only counted. `suppress`
    is the reason to suppress the address, or None.
    """

    id: uuid.UUID | None
    message_id: str = ""
    kind: str = ""
    delivered_at: dt.datetime | None = None
    bounced_at: dt.datetime | None = None
    complained_at: dt.datetime | None = None
    suppress: Suppression.Reason | None = None
