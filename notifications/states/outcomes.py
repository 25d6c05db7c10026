"""The outcomes of an attempt. Pure values.

A provider returns an `Outcome`. `notifications.states.decision` decides what it means for the row.
"""

from __future__ import annotations

import dataclasses
import enum

from runtime.database.texts import make_storable

TEXT_LIMIT = 1000


class Verdict(enum.StrEnum):
    """The kinds of outcome. A table in docs/explain/guarantee.md shows to what state each leads."""

    ACCEPTED = "accepted"  # the provider has it, a fact that anyone may report
    PERMANENT = "permanent"  # the provider will never take this message
    TRANSIENT = "transient"  # the provider did not take it; a later attempt may work
    UNREACHABLE = "unreachable"  # no connection was made, so the provider certainly does not have it
    AMBIGUOUS = "ambiguous"  # the provider may have taken it, but its answer was lost
    THROTTLED = "throttled"  # the provider asks everyone to wait
    MISCONFIGURED = "misconfigured"  # the provider refuses us, not the message
    SENDER_REFUSED = "sender_refused"  # the provider refuses the sender, such as an unverified domain
    RETURNED = "returned"  # not tried, because the worker stops or no provider may be asked
    SUPPRESSED = "suppressed"  # not tried, because the recipient must not get e-mails
    HELD = "held"  # not tried, because evidence of an earlier acceptance may still come
    EXHAUSTED = "exhausted"  # not tried, because its last failure used up the last retry


#: Outcomes without an attempt that keep the row's last error.
UNTRIED = frozenset({Verdict.RETURNED, Verdict.HELD, Verdict.EXHAUSTED})
#: Failures that get an entry in the row's list of errors.
RECORDED = frozenset(
    {
        *(Verdict.PERMANENT, Verdict.TRANSIENT, Verdict.UNREACHABLE, Verdict.AMBIGUOUS),
        *(Verdict.MISCONFIGURED, Verdict.SENDER_REFUSED),
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
#: The code of a row that `set_aside` left to a person's decision. The row's last error starts with it.
SET_ASIDE = "restored"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt.

    `wait_seconds`, if given, replaces the policy's wait, but not the hold of an ambiguous attempt. With
    `has_used_retry`, a failure uses up a retry at once, because the row itself may be what fails. If
    `is_probe`, the attempt tested a provider whose breaker is open, so a failure is the provider's. With
    `has_bounced_before`, the provider no longer sends to the address. `earlier` has the answers of other
    providers that this attempt asked before.
    """

    verdict: Verdict
    provider: str = ""
    provider_message_id: str = ""
    code: str = ""
    text: str = ""
    wait_seconds: float | None = None
    has_used_retry: bool = False
    is_probe: bool = False
    has_bounced_before: bool = False
    earlier: tuple[Outcome, ...] = ()

    @property
    def error(self) -> str:
        """Code and text, or else the verdict, as one storable line of at most `TEXT_LIMIT` characters."""
        line = f"{self.code} {self.text}".strip() or str(self.verdict)
        return make_storable(line)[:TEXT_LIMIT]

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The failures of the attempt, which are appended to the row's list of errors."""
        return tuple(one for one in (*self.earlier, self) if one.verdict in RECORDED)

    @property
    def is_judged_later(self) -> bool:
        """Whether the next claim decides if this failure was the message's own or the provider's."""
        unclear = self.verdict in (Verdict.TRANSIENT, Verdict.AMBIGUOUS)
        return unclear and not self.is_probe and not self.has_used_retry
