"""Decide what an attempt's outcome means for its row: the next state, the retries used, the wait. Pure.

A failure that may be the provider's uses up no retry here. At the next claim, screening judges it by
`outbox.gate.neighbours` and charges the row.
"""

from __future__ import annotations

import dataclasses

from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import Status
from runtime.process.backoff import RetryPolicy

#: After a row has failed more often than it has retries, its wait doubles with every so many attempts.
SLOWER_EVERY = 10

#: A row's next state, the retries that it has used up, and the seconds until it is due, counted from the
#: database's now. None keeps `next_attempt_at`.
Decision = tuple[Status, int, float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class EmailPolicy:
    """The waits of rows: `retries` after a failure, `hold_seconds` after an ambiguous attempt."""

    retries: RetryPolicy
    hold_seconds: float

    def hold(self, *, attempts: int, max_retries: int) -> float:
        """Return the hold of an ambiguous attempt after `attempts` failed ones.

        It doubles with each attempt after as many as a row has retries. A shop without webhooks or neighbours
        may never learn that such an e-mail was accepted, and each attempt may reach the customer once more.
        """
        longest = max(self.hold_seconds, self.retries.cap_seconds)
        return min(longest, self.hold_seconds * 2.0 ** min(max(0, attempts - max_retries), 62))

    def draw_wait(self, *, attempt: int, max_retries: int, chance: float) -> float:
        """Return the wait after failed attempt number `attempt` (1, 2, …). `chance` is drawn from [0, 1).

        The wait grows with each retry, and after the last one with every `SLOWER_EVERY` attempts. So a row
        with more failures than retries is tried often enough to find out whose failures they are. A list of
        delays needs no such brake, because its last delay repeats.
        """
        if not self.retries.delays_seconds:
            retries = max(1, max_retries)
            attempt = min(attempt, retries) + max(0, attempt - retries) // SLOWER_EVERY
        return self.retries.delay(attempt=attempt, chance=chance)


def decide(
    *, outcome: Outcome, retry_count: int, max_retries: int, attempts: int, policy: EmailPolicy, chance: float
) -> Decision:
    """Decide to what state an attempt leads.

    `retry_count` includes the retries that the judgement charged. `attempts` is the number of failed attempts
    before this one. A row becomes a dead letter after a permanent refusal, if it is exhausted, or if the
    outcome uses up a retry and none is left.
    """
    wait = outcome.wait_seconds
    match outcome.verdict:
        case Verdict.ACCEPTED:
            return Status.SENT, retry_count, None
        case Verdict.SUPPRESSED:
            return Status.SUPPRESSED, retry_count, None
        case Verdict.EXHAUSTED:
            return Status.DEAD_LETTERED, min(retry_count, max_retries), None
        case Verdict.PERMANENT:
            return Status.DEAD_LETTERED, retry_count, None
        case Verdict.RETURNED:
            return Status.PENDING, retry_count, wait  # without a wait the row keeps its place
        case Verdict.HELD:
            return Status.FAILED, retry_count, policy.hold_seconds if wait is None else wait
        case Verdict.THROTTLED:
            wait = policy.retries.base_seconds if wait is None else wait
        case Verdict.AMBIGUOUS:
            wait = policy.hold(attempts=attempts, max_retries=max_retries)
    if outcome.has_used_retry:
        if retry_count >= max_retries:
            return Status.DEAD_LETTERED, retry_count, None
        retry_count += 1
    if wait is None:
        wait = policy.draw_wait(attempt=attempts + 1, max_retries=max_retries, chance=chance)
    unclear = any(one.is_judged_later or one.verdict is Verdict.AMBIGUOUS for one in outcome.failures)
    status = Status.FAILED if unclear else Status.PENDING
    return status, retry_count, wait
