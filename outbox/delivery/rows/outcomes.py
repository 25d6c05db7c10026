"""The states of a row and the kinds of end that an attempt can have. Pure values.

A sender returns an `Outcome`; `outbox.delivery.rows.decision` says what it means for the row.
"""

from __future__ import annotations

import dataclasses
import enum
import math

from django.db import models

TEXT_LIMIT = 1000


class Status(models.TextChoices):
    """docs/explain/guarantee.md draws the transitions between these.

    `failed` means: tried, and it is open whose failure it was or whether the provider accepted it. A row that
    certainly failed by the provider's fault is `pending` again.
    """

    PENDING = "pending"
    PROCESSING = "processing"
    SENT = "sent"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    SUPPRESSED = "suppressed"
    DISCARDED = "discarded"


DUE_STATES = (Status.PENDING, Status.FAILED)
#: Nothing more happens by itself.
ENDED = (Status.SENT, Status.DEAD_LETTERED, Status.SUPPRESSED, Status.DISCARDED)
UNFINISHED = (Status.PENDING, Status.PROCESSING, Status.FAILED, Status.DEAD_LETTERED)


class Verdict(enum.StrEnum):
    """docs/explain/guarantee.md has the table of what each leads to."""

    ACCEPTED = "accepted"  # the provider has it: a fact, whoever reports it
    PERMANENT = "permanent"  # the provider will never take this message
    TRANSIENT = "transient"  # the provider did not take it; a later attempt may work
    UNREACHABLE = "unreachable"  # no connection came about: the message certainly stayed here
    AMBIGUOUS = "ambiguous"  # the provider may have taken it; its answer was lost
    THROTTLED = "throttled"  # the provider asks everyone to wait
    MISCONFIGURED = "misconfigured"  # the provider refuses us, not the message
    RETURNED = "returned"  # not tried: the worker stops, or no provider may be asked
    SUPPRESSED = "suppressed"  # not tried: the recipient must not be written to
    HELD = "held"  # not tried: evidence of an earlier acceptance may still come
    EXHAUSTED = "exhausted"  # not tried: its last failure used up the last retry


#: Nothing was tried, and the row's last error stays what it was.
UNTRIED = frozenset({Verdict.RETURNED, Verdict.HELD, Verdict.EXHAUSTED})
#: Failures that get an entry of their own in the row's list of errors.
RECORDED = frozenset(
    {Verdict.PERMANENT, Verdict.TRANSIENT, Verdict.UNREACHABLE, Verdict.AMBIGUOUS, Verdict.MISCONFIGURED}
)
#: Failures after which the message certainly is not with the provider, so another one may be asked.
NOT_ACCEPTED = frozenset({Verdict.TRANSIENT, Verdict.UNREACHABLE, Verdict.THROTTLED, Verdict.MISCONFIGURED})
#: The code of an attempt whose worker was lost.
LEASE_EXPIRED = "lease expired"
#: The code of a row that `set_aside` left to a person's decision. Its last error starts with it.
SET_ASIDE = "restored"


def storable(text: str) -> str:
    """Return a text as PostgreSQL can store it: without NUL, and with `?` for each lone surrogate."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One attempt's end.

    `wait_seconds`, when given, replaces the policy's own wait; `longest_wait_seconds` bounds either.
    `has_used_retry`: the row itself may be what fails, so the failure uses up a retry at once. `is_probe`:
    the attempt tested a provider whose breaker is open, so a failure is the provider's. `earlier`: what other
    providers answered before in this attempt.
    """

    verdict: Verdict
    provider: str = ""
    provider_message_id: str = ""
    code: str = ""
    text: str = ""
    wait_seconds: float | None = None
    longest_wait_seconds: float = math.inf
    has_used_retry: bool = False
    is_probe: bool = False
    earlier: tuple[Outcome, ...] = ()

    @property
    def error(self) -> str:
        """The one line that a person reads first: code and text, fit for a text column."""
        line = f"{self.code} {self.text}".strip() or str(self.verdict)
        return storable(line)[:TEXT_LIMIT]

    @property
    def is_judged_later(self) -> bool:
        """Whether it is still open if this failure was the message's own or the provider's."""
        unclear = self.verdict in (Verdict.TRANSIENT, Verdict.AMBIGUOUS)
        return unclear and not self.is_probe and not self.has_used_retry
