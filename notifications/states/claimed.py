"""A claimed e-mail: what its send needs, with the token that its outcome must present."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import uuid
from collections.abc import Mapping, Sequence

from notifications.states.errors import ErrorEntry, count_lost


@dataclasses.dataclass(slots=True, eq=False)
class Claimed:
    """One claim of one e-mail. `outbox.claim` reads the fields in this order.

    Two claims of one e-mail are two values: a send of the first may still hang.
    """

    id: uuid.UUID
    order_id: uuid.UUID
    event_type: str
    order_version: int | None
    shop_copy_of: uuid.UUID | None
    recipient_email: str
    to_name: str
    subject: str
    body: str
    body_text: str
    profile: str
    from_email: str
    reply_to: str
    correlation_id: str
    traceparent: str
    max_retries: int
    #: The counted failures, which may be more than `max_retries`.
    retry_count: int
    errors: Sequence[ErrorEntry]
    created_at: dt.datetime
    readdressed_at: dt.datetime | None
    resent_at: dt.datetime | None
    claim_token: uuid.UUID
    #: By the database's clock.
    claimed_at: dt.datetime
    #: For how long the e-mail had been due.
    age_seconds: float
    #: For how long it had been stored, at its first claim only.
    stored_seconds: float | None
    #: By provider, the options of the account that the e-mail's profile has.
    account: Mapping[str, Mapping[str, str]]
    #: It is claimed in place of an untried e-mail that waits for it, to test a provider.
    is_substitute: bool = False
    #: No provider may be asked after this moment of the process's monotonic clock.
    deadline_at: float = math.inf

    @property
    def waits_since(self) -> dt.datetime:
        """Since when it could be sent."""
        return max(filter(None, (self.created_at, self.readdressed_at, self.resent_at)))

    @property
    def is_untried(self) -> bool:
        """Return whether this is its first attempt: no error is recorded, and nobody has resent it."""
        return not self.errors and self.resent_at is None

    @property
    def is_last_chance(self) -> bool:
        """Return whether it may kill its workers, and has one attempt left."""
        return bool(self.errors) and count_lost(self.errors, self.resent_at) >= max(1, self.max_retries)
