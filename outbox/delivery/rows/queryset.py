"""Every change of a deliverable row's state.

Three rules make these methods safe:
- A claim uses SKIP LOCKED, and is committed before any I/O.
- *Accepted* is a fact that anyone may report. Every other outcome counts only under the claim's own token.
- A statement that changes several rows locks them first, in the order of their ids.
"""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, cast

from django.conf import settings
from django.db import connections, models, transaction
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from outbox.delivery.rows import attempts, by_hand, claim_statement, settle_statement
from outbox.delivery.rows.decision import Decision, RetryPolicy, decide
from outbox.delivery.rows.deliverable import Deliverable
from outbox.delivery.rows.outcomes import (
    DUE_STATES,
    LEASE_EXPIRED,
    SET_ASIDE,
    UNFINISHED,
    Outcome,
    Status,
    Verdict,
)
from outbox.delivery.rows.settlements import NO_ROW, Refusal, Settlement, Transition

Row = TypeVar("Row", bound=Deliverable)
ByHand = tuple[list[Transition], list[Refusal]]


class DeliverableQuerySet(models.QuerySet[Row]):
    """Filters by state (`due`, `dead`), and the methods that move rows between states.

    Call these methods on `Model.objects`, not on a filtered query, because some of them ignore the filter.
    """

    def due(self) -> DeliverableQuerySet[Row]:
        """Return the rows that may be claimed now, by the database's clock."""
        return self.filter(status__in=DUE_STATES, next_attempt_at__lte=Now())

    def dead(self) -> DeliverableQuerySet[Row]:
        return self.filter(status=Status.DEAD_LETTERED)

    def next_due_in(self, *, lookback_seconds: float | None = None) -> float | None:
        """Return the seconds until the earliest waiting row is due, or None if no row waits.

        Leave out rows that have been due for more than `lookback_seconds`. While the delivery is paused, no
        row waits.
        """
        waiting = self.filter(_not_paused(), status__in=DUE_STATES).order_by("next_attempt_at")
        if lookback_seconds is not None:
            waiting = waiting.filter(next_attempt_at__gte=Now() - dt.timedelta(seconds=lookback_seconds))
        left = (
            waiting.annotate(left=models.F("next_attempt_at") - Now()).values_list("left", flat=True).first()
        )
        return None if left is None else float(left.total_seconds())

    def claim(self, *, limit: int, fresh: int = 0, lookback_seconds: float | None = None) -> list[Row]:
        """Claim up to `limit` due rows for the caller alone in one statement, and commit.

        Claim the rows that have been due longest, and during a backlog also `fresh` of the newest `pending`
        rows that have used no retry. Each row has the columns that a sender needs (`claim_fields`), its
        previous state (`was`), for how many seconds it had been due (`age_seconds`), and a new `claim_token`,
        which `settle` compares.

        With `lookback_seconds`, leave out rows that have been due for longer, and take as the newest rows
        those of the last `FRESH_SECONDS` (see `outbox.delivery.lookback`). Then the longest due rows fill the
        batch.
        """
        return self._claim(*claim_statement.longest_and_newest(self._table, limit, fresh, lookback_seconds))

    def claim_untried(self) -> list[Row]:
        """Claim the newest due row that was never tried, if one exists, to test a provider."""
        return self._claim(claim_statement.untried(self._table), {})

    def _claim(self, picked: str, values: Mapping[str, object]) -> list[Row]:
        """Move the rows of the CTE `picked` to `processing` under a new token."""
        columns = self._columns(*self.model.payload_fields)
        statement = claim_statement.build_claim(self._table, picked, columns)
        rows = self.using(self.db).raw(statement, {**values, "token": uuid.uuid4()})
        return sorted(rows, key=lambda row: row.place)

    @property
    def _table(self) -> str:
        name: str = connections[self.db].ops.quote_name(self.model._meta.db_table)
        return name

    def _columns(self, *more: str) -> list[str]:
        """Return the columns of claimed and settled rows."""
        names = {"id", "status", "claim_token", *self.model.claim_fields, *more}
        return [str(field.column) for field in self.model._meta.concrete_fields if field.name in names]

    def settle(self, settlements: Iterable[Settlement]) -> list[Transition]:
        """Write the outcomes of attempts, in one transaction of four statements, and return the changes.

        An acceptance makes any unsent row `sent`. Other outcomes change a row only while it is `processing`
        under the settlement's own token. A stale outcome changes nothing and is not in the result. The rows
        in the result have the columns of `claim_fields`.
        """
        # A row may have two settlements, of a send that hung and of a later claim. An acceptance wins.
        ordered = sorted(settlements, key=lambda one: one.outcome.verdict is Verdict.ACCEPTED)
        by_id = {one.id: one for one in ordered}
        with transaction.atomic(using=self.db):
            decided = []
            for row in self._locked_to_settle(by_id):
                one = by_id[row.id]
                accepted = one.outcome.verdict is Verdict.ACCEPTED and row.status != Status.SENT
                mine = row.status == Status.PROCESSING and row.claim_token == one.token
                if accepted or mine:
                    row.charge = one.charge if mine else 0
                    decided.append((row, one.outcome))
            return self._write(decided)

    def recover(self, *, lease_seconds: float, limit: int = 500) -> list[Transition]:
        """Take back up to `limit` claims older than `lease_seconds`, because their worker is dead or stuck.

        Such an attempt is ambiguous, because the message may have been sent or may have killed the worker.
        The row uses up a retry and is held, or becomes a dead letter if no retry is left. Take none back
        while the delivery is paused. `notifications.delivery.drain.poll` calls this.
        """
        text = f"no outcome within {lease_seconds:g} s"
        outcome = Outcome(Verdict.AMBIGUOUS, code=LEASE_EXPIRED, text=text, has_used_retry=True)
        expired = Q(status=Status.PROCESSING, claimed_at__lt=Now() - dt.timedelta(seconds=lease_seconds))
        with transaction.atomic(using=self.db):
            lockable = self.using(self.db).filter(expired, _not_paused()).select_for_update(skip_locked=True)
            rows = lockable.defer(*self.model.payload_fields).order_by("id")[:limit]
            return self._write([(row, outcome) for row in rows])

    def requeue(self, ids: Iterable[uuid.UUID]) -> ByHand:
        """Make rows due again with all their retries, because a person decided so.

        Refuse the rows that `by_hand` refuses. So a second call refuses a row, because it is `pending`. Keep
        the list of errors.
        """
        return self._change_by_hand(ids, by_hand.RESEND)

    def discard(self, ids: Iterable[uuid.UUID]) -> ByHand:
        """Discard rows, because a person decided so. Refuse the rows that `by_hand` refuses."""
        return self._change_by_hand(ids, by_hand.DISCARD)

    def withdraw(self, ids: Iterable[uuid.UUID]) -> list[Transition]:
        """Discard rows whose recipient was erased. Do not change a row that is being sent."""
        return self._change_by_hand(ids, by_hand.WITHDRAW)[0]

    def set_aside(self, *, until: dt.datetime, reason: str, limit: int) -> list[Transition]:
        """Make dead letters of up to `limit` rows that may have been sent between a backup and `until`.

        These are the rows that were due or claimed by `until`. `reason` becomes their last error.
        """
        outcome = Outcome(Verdict.PERMANENT, code=SET_ASIDE, text=reason)
        due = Q(status__in=DUE_STATES, next_attempt_at__lte=until)
        claimed = Q(status=Status.PROCESSING, claimed_at__lte=until)
        with transaction.atomic(using=self.db):
            lockable = self.using(self.db).filter(due | claimed).select_for_update(skip_locked=True)
            rows = lockable.defer(*self.model.payload_fields).order_by("id")[:limit]
            return self._write([(row, outcome) for row in rows])

    def set_aside_replaced(self, *, ids: Iterable[uuid.UUID], reason: str) -> list[Transition]:
        """Make dead letters of rows in whose place a copy was sent after a backup, which lacks the copy."""
        outcome = Outcome(Verdict.PERMANENT, code=SET_ASIDE, text=reason)
        unfinished = self.using(self.db).filter(id__in=list(ids), status__in=UNFINISHED)
        with transaction.atomic(using=self.db):
            rows = unfinished.exclude(last_error__startswith=f"{SET_ASIDE} ").select_for_update()
            return self._write(
                [(row, outcome) for row in rows.defer(*self.model.payload_fields).order_by("id")]
            )

    def _change_by_hand(self, ids: Iterable[uuid.UUID], act: by_hand.Act) -> ByHand:
        """Change the rows for which `by_hand` allows the act."""
        wanted = set(ids)
        changes: list[Transition] = []
        refusals: list[Refusal] = []
        with transaction.atomic(using=self.db):
            rows = self.using(self.db).filter(id__in=list(wanted)).defer(*self.model.payload_fields)
            for row in rows.annotate(read_database_time=Now()).order_by("id").select_for_update():
                wanted.discard(row.id)
                refusal = by_hand.why_not(row=row, act=act, now=row.read_database_time)
                if refusal is not None:
                    refusals.append(refusal)
                else:
                    changes.append(Transition(row, was=row.status, now=act.to))
            if changes:
                fresh = {"retry_count": 0, "next_attempt_at": Now(), "resent_at": Now()}
                self.using(self.db).filter(id__in=[change.row.id for change in changes]).update(
                    status=act.to, updated_at=Now(), **(fresh if act is by_hand.RESEND else {})
                )
        return changes, refusals + [Refusal(id, NO_ROW) for id in sorted(wanted)]

    def _locked_to_settle(self, ids: Iterable[uuid.UUID]) -> Iterable[Row]:
        """Lock rows and read no times, because parsing these would take as long as the rest."""
        columns = ", ".join(self._columns())
        statement = f"SELECT {columns} FROM {self._table} WHERE id = ANY(%s) ORDER BY id FOR UPDATE"  # noqa: S608
        return cast("Iterable[Row]", self.using(self.db).raw(statement, [list(ids)]))

    def _write(self, decided: Sequence[tuple[Row, Outcome]]) -> list[Transition]:
        """Write outcomes to rows that the caller has locked, in one statement, and return the changes."""
        if not decided:
            return []
        policy = current_policy()
        decisions = [_decision(row, outcome, policy) for row, outcome in decided]
        written = [(row.id, outcome, made) for (row, outcome), made in zip(decided, decisions, strict=True)]
        settle_statement.write_outcomes(connections[self.db], self._table, written)
        return [
            Transition(row, row.status, made.status, outcome, made.retry_count, made.wait_seconds)
            for (row, outcome), made in zip(decided, decisions, strict=True)
        ]


def _not_paused() -> RawSQL:
    return RawSQL(claim_statement.NOT_PAUSED, [], output_field=models.BooleanField())  # noqa: S611 - ours


def _decision(row: Deliverable, outcome: Outcome, policy: RetryPolicy) -> Decision:
    return decide(
        outcome=outcome,
        retry_count=row.retry_count + row.charge,
        max_retries=row.max_retries,
        attempts=attempts.count_attempts(row.errors, row.resent_at) if row.errors else 0,
        policy=policy,
        chance=random.random(),  # noqa: S311 - spreads retries, guards nothing
    )


def current_policy() -> RetryPolicy:
    """Read the policy from the settings."""
    return RetryPolicy(
        base_seconds=settings.RETRY_BACKOFF_BASE,
        cap_seconds=settings.RETRY_BACKOFF_CAP,
        hold_seconds=settings.AMBIGUOUS_HOLD_SECONDS,
        delays_seconds=tuple(settings.RETRY_DELAYS),
    )
