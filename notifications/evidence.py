"""What a provider's webhook proves about one e-mail: a plain value.

The providers' folders make it; `notifications.services.record_evidence` writes it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid

from notifications.models import Suppression


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """The provider has the e-mail `id`. Times are the provider's own; `suppress` says why, if it must.

    An event without an id is counted and changes nothing: it names no e-mail of ours, or proves nothing.
    """

    id: uuid.UUID | None
    message_id: str = ""
    kind: str = ""
    delivered_at: dt.datetime | None = None
    bounced_at: dt.datetime | None = None
    complained_at: dt.datetime | None = None
    suppress: Suppression.Reason | None = None
