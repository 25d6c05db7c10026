"""The outcome of an attempt, and what it means for the e-mail: the next state, the retries, the wait.

A failure that may be the e-mail's own is counted here, and nowhere else. When the retries are used up,
`notifications.changes.whose_failure` finds out whose the counted failures were.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from typing import NamedTuple

from django.conf import settings

from notifications.states.transitions import EndedBy, Status
from runtime.process.backoff import FULL_JITTER, SLIGHT_JITTER, RetryPolicy
from runtime.texts import make_storable

#: The most characters that are stored of an error, and of a provider's message id.
TEXT_LIMIT, MESSAGE_ID_LIMIT = 1000, 255


class Verdict(enum.StrEnum):
    """The kinds of outcome. A table in docs/explain/outcomes.md shows to what state each leads."""

    ACCEPTED = "accepted"  # the provider has it, a fact that anyone may report
    PERMANENT = "permanent"  # the provider will never take this message
    TRANSIENT = "transient"  # the provider did not take it; a later attempt may work
    UNREACHABLE = "unreachable"  # no connection was made, so the provider certainly does not have it
    AMBIGUOUS = "ambiguous"  # the provider may have taken it, but its answer was lost
    THROTTLED = "throttled"  # the provider asks everyone to wait
    MISCONFIGURED = "misconfigured"  # the provider refuses us, not the message
    SENDER_REFUSED = "sender_refused"  # the provider refuses the sender, such as an unverified domain
    RETURNED = "returned"  # not tried now: the worker stops, no provider may be asked, or another goes first
    SUPPRESSED = "suppressed"  # not tried, because the recipient must not get e-mails
    OVERTAKEN = "overtaken"  # not tried, because a later change of the order made it old news
    TOO_OLD = "too_old"  # not tried any more, because it has waited for too long
    RESTORED = "restored"  # not tried any more: before a restore, a provider may have accepted it
    HELD = "held"  # not tried, because evidence of an earlier acceptance may still come


#: Outcomes without an attempt that keep the row's last error.
UNTRIED = frozenset({Verdict.RETURNED, Verdict.HELD})
#: Failures that get an entry in the row's list of errors.
RECORDED = frozenset(
    {
        *(Verdict.PERMANENT, Verdict.TRANSIENT, Verdict.UNREACHABLE, Verdict.AMBIGUOUS),
        *(Verdict.MISCONFIGURED, Verdict.SENDER_REFUSED, Verdict.RESTORED),
    }
)
#: Failures after which the provider certainly does not have the message, so another one may be asked.
NOT_ACCEPTED = frozenset(
    {
        *(Verdict.TRANSIENT, Verdict.UNREACHABLE, Verdict.THROTTLED),
        *(Verdict.MISCONFIGURED, Verdict.SENDER_REFUSED),
    }
)
#: The code of an attempt whose lease expired.
LEASE_EXPIRED = "lease expired"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt."""

    verdict: Verdict
    provider: str = ""
    provider_message_id: str = ""
    code: str = ""
    text: str = ""
    #: Replaces the policy's wait, but not the hold of an ambiguous attempt.
    wait_seconds: float | None = None
    #: The provider's breaker was open, so a failure is the provider's.
    is_probe: bool = False
    #: Other e-mails show that the counted failures are the e-mail's own, so it is tried no more.
    is_own: bool = False
    #: The provider no longer sends to the address.
    has_bounced_before: bool = False
    #: The earlier e-mails of the order that go first.
    waits_for: tuple[uuid.UUID, ...] = ()
    #: The answers of the providers that were asked before in this attempt.
    earlier: tuple[Outcome, ...] = ()

    @property
    def error(self) -> str:
        """Code and text, or else the verdict, as one storable line of at most `TEXT_LIMIT` characters."""
        line = f"{self.code} {self.text}".strip() or str(self.verdict)
        return make_storable(line)[:TEXT_LIMIT]

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The failures of the attempt, which are appended to the row's list of errors."""
        return tuple(answer for answer in (*self.earlier, self) if answer.verdict in RECORDED)

    @property
    def counts(self) -> bool:
        """Return whether it may be the e-mail's own: the provider answered, and its breaker was closed."""
        return self.verdict in (Verdict.TRANSIENT, Verdict.AMBIGUOUS) and not self.is_probe

    @property
    def is_counted(self) -> bool:
        """Return whether the attempt adds one to `retry_count`."""
        return any(failure.counts for failure in self.failures)

    @property
    def is_lost(self) -> bool:
        """Return whether the asked provider is unknown: the worker died, or the sender raised an error."""
        return self.verdict is Verdict.AMBIGUOUS and not self.provider

    def needs_answer(self, *, retry_count: int, max_retries: int) -> bool:
        """Return whether it has to be asked now whose the failures are: no retry is left for this one.

        `retry_count` is that before the attempt. An ambiguous attempt is held first, and the claim after its
        hold asks.
        """
        return self.is_counted and self.verdict in NOT_ACCEPTED and retry_count >= max_retries


class Decision(NamedTuple):
    """An outcome's result. `wait_seconds` counts from the database's now; None keeps the due time."""

    status: Status
    retry_count: int
    wait_seconds: float | None
    ended_by: EndedBy | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class EmailPolicy:
    """The waits of e-mails: `retries` after a failure, `hold_seconds` after an ambiguous attempt."""

    retries: RetryPolicy
    hold_seconds: float

    def hold(self, *, attempts: int, max_retries: int) -> float:
        """Return the hold of an ambiguous attempt after `attempts` failed ones.

        It doubles with each attempt beyond the e-mail's retries. A shop without webhooks may never learn that
        such an e-mail was accepted, and each attempt may reach the customer once more.
        """
        longest = max(self.hold_seconds, self.retries.cap_seconds)
        return min(longest, self.hold_seconds * 2.0 ** min(max(0, attempts - max_retries), 62))


def current_policy() -> EmailPolicy:
    """Read the policy from the settings.

    Full jitter spreads the thousands of e-mails that one outage of a provider delays. A list of delays is an
    operator's plan, so its waits stay near it.
    """
    retries = RetryPolicy(
        base_seconds=settings.RETRY_BACKOFF_BASE,
        cap_seconds=settings.RETRY_BACKOFF_CAP,
        delays_seconds=tuple(settings.RETRY_DELAYS),
        jitter=SLIGHT_JITTER if settings.RETRY_DELAYS else FULL_JITTER,
    )
    return EmailPolicy(retries, hold_seconds=settings.AMBIGUOUS_HOLD_SECONDS)


def decide_status(
    *,
    outcome: Outcome,
    retry_count: int,
    max_retries: int,
    attempts: int,
    lost: int,
    policy: EmailPolicy,
    chance: float,
) -> Decision:
    """Decide to what state an attempt leads.

    `attempts` is the number of failed attempts before this one, and `lost` that of workers that the e-mail
    lost before. It becomes a dead letter after a permanent refusal, if its failures are its own, or if it
    loses more workers than it has retries.
    """
    wait = outcome.wait_seconds
    retry_count += outcome.is_counted
    if outcome.is_own:
        return Decision(Status.DEAD_LETTERED, retry_count, None, EndedBy.RETRIES)
    match outcome.verdict:
        case Verdict.ACCEPTED:
            return Decision(Status.SENT, retry_count, None)
        case Verdict.SUPPRESSED:
            return Decision(Status.SUPPRESSED, retry_count, None, EndedBy.SUPPRESSED)
        case Verdict.OVERTAKEN:
            return Decision(Status.DISCARDED, retry_count, None, EndedBy.OVERTAKEN)
        case Verdict.PERMANENT:
            return Decision(Status.DEAD_LETTERED, retry_count, None, EndedBy.PROVIDER)
        case Verdict.TOO_OLD:
            return Decision(Status.DEAD_LETTERED, retry_count, None, EndedBy.AGE)
        case Verdict.RESTORED:
            return Decision(Status.DEAD_LETTERED, retry_count, None, EndedBy.RESTORE)
        case Verdict.RETURNED:
            return Decision(Status.PENDING, retry_count, wait)  # without a wait it keeps its place
        case Verdict.HELD:
            return Decision(Status.FAILED, retry_count, policy.hold_seconds if wait is None else wait)
        case Verdict.THROTTLED:
            wait = policy.retries.base_seconds if wait is None else wait
        case Verdict.AMBIGUOUS:
            if outcome.is_lost and lost >= max_retries:
                reason = EndedBy.LEASE if outcome.code == LEASE_EXPIRED else EndedBy.RETRIES
                return Decision(Status.DEAD_LETTERED, retry_count, None, reason)
            wait = policy.hold(attempts=attempts, max_retries=max_retries)
    if wait is None:
        wait = policy.retries.delay(attempt=attempts + 1, chance=chance)
    unclear = outcome.is_counted or outcome.verdict is Verdict.AMBIGUOUS
    return Decision(Status.FAILED if unclear else Status.PENDING, retry_count, wait)
