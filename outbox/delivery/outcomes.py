"""What became of one attempt to deliver a row, and what follows from it. Pure: no database, no clock.

A sender returns an `Outcome`; `outbox.delivery.deliverable` asks `decide` what it means for the row.
"""

from __future__ import annotations

import dataclasses
import enum

from django.conf import settings
from django.db import models

from outbox.core import backoff

TEXT_LIMIT = 1000


class Status(models.TextChoices):
    """docs/guarantee.md draws the arrows between these."""

    PENDING = "pending"
    PROCESSING = "processing"
    SENT = "sent"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    SUPPRESSED = "suppressed"
    DISCARDED = "discarded"


class Verdict(enum.StrEnum):
    """The kinds of end that an attempt can have; docs/guarantee.md has the table of what each leads to."""

    ACCEPTED = "accepted"  # the provider has it: a fact, whoever brings it
    PERMANENT = "permanent"  # it will never take this message
    TRANSIENT = "transient"  # it did not take it; a later try may work
    UNREACHABLE = "unreachable"  # no connection came about: the provider's failure, the mail stayed here
    AMBIGUOUS = "ambiguous"  # it may have taken it; the answer was lost
    THROTTLED = "throttled"  # it asks everyone to wait
    MISCONFIGURED = "misconfigured"  # it refuses us, not the message
    RETURNED = "returned"  # nothing was tried: the worker stops, or nobody may be asked
    SUPPRESSED = "suppressed"  # nothing was tried: the recipient must not be written to
    HELD = "held"  # nothing was tried: evidence of an earlier attempt may still come


UNTRIED = (Verdict.RETURNED, Verdict.HELD)
DUE = (Status.PENDING, Status.FAILED)
UNFINISHED = (Status.PENDING, Status.PROCESSING, Status.FAILED, Status.DEAD_LETTERED)
#: What is nobody's fault but the provider's and ours.
_NOT_THE_ROWS = frozenset({Verdict.THROTTLED, Verdict.MISCONFIGURED, Verdict.UNREACHABLE})


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One attempt's end. `wait` (seconds), when given, replaces the policy's own wait.

    A failure that is not `charged` was the provider's, not the row's: it uses up no retry.
    """

    verdict: Verdict
    provider: str = ""
    provider_message_id: str = ""
    code: str = ""
    text: str = ""
    wait: float | None = None
    charged: bool = True

    @property
    def error(self) -> str:
        """The one line that a person reads first: code and text, fit for a text column."""
        line = f"{self.code} {self.text}".strip() or str(self.verdict)
        return line.encode("utf-8", "replace").decode().replace("\x00", "")[:TEXT_LIMIT]


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """How patient a kind of row is; all in seconds."""

    base: float
    cap: float
    hold: float

    @classmethod
    def from_settings(cls) -> Policy:
        """This function will read the policy from the settings, at the edge of a call."""
        return cls(
            base=settings.RETRY_BACKOFF_BASE,
            cap=settings.RETRY_BACKOFF_CAP,
            hold=settings.AMBIGUOUS_HOLD_SECONDS,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A row's next state; `wait` is seconds from the database's now, None where no attempt follows."""

    status: str
    retry_count: int
    wait: float | None
    failed: bool  # whether the attempt goes into the row's list of errors


def decide(
    *, outcome: Outcome, retry_count: int, max_retries: int, policy: Policy, chance: float
) -> Decision:
    """This function will say what state an attempt leads to, given how many retries were used before it.

    `chance` is drawn from [0, 1) and spreads the retries. Only failures that are the message's own, or
    may be, use up a retry: throttling, a refused account and a stopping worker never dead-letter anything.
    """
    verdict = outcome.verdict
    if verdict is Verdict.ACCEPTED:
        return Decision("sent", retry_count, None, failed=False)
    if verdict is Verdict.RETURNED:
        return Decision("pending", retry_count, outcome.wait, failed=False)  # keeps its place in the line
    if verdict is Verdict.SUPPRESSED:
        return Decision("suppressed", retry_count, None, failed=False)
    if verdict is Verdict.HELD:
        return Decision("failed", retry_count, policy.hold if outcome.wait is None else outcome.wait, False)
    if verdict in _NOT_THE_ROWS or (verdict is Verdict.TRANSIENT and not outcome.charged):
        wait = policy.base if outcome.wait is None else outcome.wait
        failed = verdict in (Verdict.TRANSIENT, Verdict.UNREACHABLE)
        return Decision("pending", retry_count, wait, failed=failed)
    if verdict is Verdict.PERMANENT:
        return Decision("dead_lettered", retry_count, None, failed=True)
    if retry_count >= max_retries and outcome.charged:
        return Decision("dead_lettered", retry_count, None, failed=True)
    retry = retry_count + outcome.charged
    if outcome.wait is not None:
        wait = outcome.wait
    elif verdict is Verdict.AMBIGUOUS:
        wait = policy.hold
    else:
        longest = backoff.ceiling(retry=retry, base=policy.base, cap=policy.cap)
        wait = backoff.jitter(seconds=longest, low=0.0, high=1.0, chance=chance)
    return Decision("failed", retry, wait, failed=True)
