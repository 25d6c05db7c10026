"""Arguments and results of the methods of `DeliverableQuerySet`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid

from outbox.delivery.rows.deliverable import Deliverable
from outbox.delivery.rows.outcomes import Outcome


@dataclasses.dataclass(frozen=True, slots=True)
class Settlement:
    """An attempt's outcome on its way into the table.

    `token` is the claim that the attempt was made under, if any. `charge` is the number of retries that the
    row's earlier failure used up, as judged when the row was claimed.
    """

    id: uuid.UUID
    outcome: Outcome
    token: uuid.UUID | None = None
    charge: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Transition:
    """One row's committed change of state. Read only ids and payload from `row`: its state is the old one."""

    row: Deliverable
    was: str
    now: str
    outcome: Outcome | None = None
    retry_count: int = 0
    wait_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a person's request was not done for one row; `until` is set where waiting helps."""

    id: uuid.UUID
    reason: str
    until: dt.datetime | None = None
