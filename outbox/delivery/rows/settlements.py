"""Arguments and results of the methods of `DeliverableQuerySet`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid

from outbox.delivery.rows.deliverable import Deliverable
from outbox.delivery.rows.outcomes import Outcome

#: The reason of a refusal for an id without a row.
NO_ROW = "it is not stored, or its month was archived"


@dataclasses.dataclass(frozen=True, slots=True)
class Settlement:
    """An attempt's outcome that is to be written.

    `token` is the token of the attempt's claim, if any. `charge` is the number of retries that the row's
    earlier failure used up, as judged when the row was claimed.
    """

    id: uuid.UUID
    outcome: Outcome
    token: uuid.UUID | None = None
    charge: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Transition:
    """One row's committed change of state. Read only ids and payload from `row`, because its state is old."""

    row: Deliverable
    was: str
    now: str
    outcome: Outcome | None = None
    retry_count: int = 0
    wait_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a person's request was refused for one row. `until` is set if a later request may succeed."""

    id: uuid.UUID
    reason: str
    until: dt.datetime | None = None

    @property
    def text(self) -> str:
        """The reason, and until when it holds: the next full minute, so that equal texts can be counted."""
        if self.until is None:
            return self.reason
        minute = self.until.astimezone(dt.UTC) + dt.timedelta(minutes=1) - dt.timedelta.resolution
        return f"{self.reason} until {minute:%Y-%m-%d %H:%M} UTC"
