"""A row that must be delivered, and every change of state that it can go through.

`Deliverable` is the abstract model: columns, CHECK constraints, indexes. `DeliverableQuerySet` holds the
verbs; nothing else in the project writes `status`. Two rules make it safe: a claim is taken under
SKIP LOCKED and committed before any I/O, and while *accepted* is a fact that anyone may bring, every
other outcome is an opinion that counts only with the claim's own token. Whatever changes several rows
locks them first, in the order of their ids.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

from django.db import connections, models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from outbox.core.ids import new_id
from outbox.delivery.outcomes import DUE, UNTRIED, Decision, Outcome, Policy, Status, Verdict, decide


@dataclasses.dataclass(frozen=True, slots=True)
class Settlement:
    """An attempt's outcome on its way into the table; `token` is the claim it was made under, if any."""

    id: uuid.UUID
    outcome: Outcome
    token: uuid.UUID | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One row's change of state, as committed. `row` has its identity; of its state only this is current."""

    row: Deliverable
    was: str
    now: str
    outcome: Outcome | None = None
    retry_count: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a person's wish was not done for one row; `until` is set where waiting helps."""

    id: uuid.UUID
    reason: str
    until: dt.datetime | None = None


Row = TypeVar("Row", bound="Deliverable")


class DeliverableQuerySet(models.QuerySet[Row]):
    """States (`due`, `dead`) and the verbs that move rows between them.

    The verbs take whole tables, never a filtered query: call them on `Model.objects`.
    """

    def due(self) -> DeliverableQuerySet[Row]:
        """Rows that may be claimed now, by the database's clock."""
        return self.filter(status__in=DUE, next_attempt_at__lte=Now())

    def dead(self) -> DeliverableQuerySet[Row]:
        """Rows that wait for a person."""
        return self.filter(status=Status.DEAD_LETTERED)

    def claim(self, *, limit: int) -> list[Row]:
        """This function will take up to `limit` due rows for the caller alone, and commit.

        Three quarters are those due longest, one quarter the newest first attempts, so that fresh rows
        don't wait behind a backlog. One statement, whatever `limit` is. The rows carry what a sender needs
        (`claim_fields`), the state they were in, and a fresh `claim_token`, which `settle` asks for.
        """
        fresh = limit // 4
        token = uuid.uuid4()
        table = connections[self.db].ops.quote_name(self.model._meta.db_table)
        columns = ", ".join(f"row.{column}" for column in self._columns(*self.model.payload_fields))
        # The fresh quarter only where the first part is full: there is a backlog. It stands first in line,
        # or it would wait for the whole batch. MATERIALIZED: rows are locked once, in the given order.
        statement = f"""
            WITH longest AS MATERIALIZED (
                SELECT id, status FROM {table}
                WHERE status IN ('pending', 'failed') AND next_attempt_at <= statement_timestamp()
                ORDER BY next_attempt_at LIMIT %(longest)s FOR UPDATE SKIP LOCKED
            ), newest AS MATERIALIZED (
                SELECT id, status FROM {table}
                WHERE status = 'pending' AND retry_count = 0 AND next_attempt_at <= statement_timestamp()
                  AND (SELECT count(*) FROM longest) = %(longest)s AND id NOT IN (SELECT id FROM longest)
                ORDER BY next_attempt_at DESC LIMIT %(fresh)s FOR UPDATE SKIP LOCKED
            ), picked AS (
                SELECT id, status, row_number() OVER () AS place
                FROM (SELECT id, status FROM newest UNION ALL SELECT id, status FROM longest) AS both_parts
            )
            UPDATE {table} AS row SET status = 'processing', claimed_at = statement_timestamp(),
                claim_token = %(token)s, updated_at = statement_timestamp()
            FROM picked WHERE row.id = picked.id
            RETURNING {columns}, picked.status AS was, picked.place
            """  # noqa: S608 - the names are the model's
        values = {"longest": limit - fresh, "fresh": fresh, "token": token}
        return sorted(self.using(self.db).raw(statement, values), key=lambda row: row.place)

    def _columns(self, *more: str) -> list[str]:
        """The columns of claimed and settled rows."""
        names = {"id", "status", "claim_token", *self.model.claim_fields, *more}
        return [str(field.column) for field in self.model._meta.concrete_fields if field.name in names]

    def settle(self, settlements: Iterable[Settlement], *, policy: Policy | None = None) -> list[Change]:
        """This function will write what became of attempts, in four statements, and commit.

        Acceptance makes any unsent row `sent`. Other outcomes change a row only while it is `processing`
        under the settlement's own token; a stale one changes nothing and is missing from the answer.
        The rows in the answer have the columns of `claim_fields`.
        """
        policy = policy or Policy.from_settings()
        by_id = {settlement.id: settlement for settlement in settlements}
        with transaction.atomic(using=self.db):
            decided = []
            for row in self._locked_to_settle(by_id):
                settlement = by_id[row.id]
                accepted = settlement.outcome.verdict is Verdict.ACCEPTED and row.status != Status.SENT
                mine = row.status == Status.PROCESSING and row.claim_token == settlement.token
                if accepted or mine:
                    decided.append((row, settlement.outcome))
            return self._write(decided, policy)

    def recover(self, *, lease: float, limit: int = 500, policy: Policy | None = None) -> list[Change]:
        """This function will take back claims older than `lease` seconds: their worker is gone or stuck.

        Such an attempt is ambiguous (the mail may be out, or may be what killed the worker), so it uses up
        a retry and is held before the next.
        """
        outcome = Outcome(Verdict.AMBIGUOUS, code="lease expired", text=f"no outcome within {lease:g} s")
        expired = Q(status=Status.PROCESSING, claimed_at__lt=Now() - dt.timedelta(seconds=lease))
        with transaction.atomic(using=self.db):
            lockable = self.using(self.db).filter(expired).select_for_update(skip_locked=True)
            rows = lockable.defer(*self.model.payload_fields).order_by("id")[:limit]
            return self._write([(row, outcome) for row in rows], policy or Policy.from_settings())

    def requeue(self, ids: Iterable[uuid.UUID]) -> tuple[list[Change], list[Refusal]]:
        """This function will make rows due again because a person said so, with all their retries.

        Takes dead-lettered, discarded, suppressed and failed rows, the latter unless an ambiguous attempt is
        still held. The list of errors stays. Pressing twice is harmless: then the row is `pending`.
        """
        return self._by_hand(ids, Status.PENDING, self._why_not_requeue)

    def discard(self, ids: Iterable[uuid.UUID]) -> tuple[list[Change], list[Refusal]]:
        """This function will give up dead-lettered rows because a person said so."""
        return self._by_hand(
            ids,
            Status.DISCARDED,
            lambda row: "" if row.status == Status.DEAD_LETTERED else "it is not a dead letter",
        )

    def withdraw(self, ids: Iterable[uuid.UUID]) -> list[Change]:
        """This function will give up rows that nobody may get any more: their recipient was erased.

        A row that is being sent is left alone.
        """
        waiting = (*DUE, Status.DEAD_LETTERED)
        changes, _ = self._by_hand(
            ids, Status.DISCARDED, lambda row: "" if row.status in waiting else f"it is {row.status}"
        )
        return changes

    @staticmethod
    def _why_not_requeue(row: Deliverable) -> str:
        if row.status == Status.FAILED and row.is_held:
            return "its last attempt may have been accepted; it is held for the provider's evidence"
        if row.status in (Status.DEAD_LETTERED, Status.DISCARDED, Status.FAILED, Status.SUPPRESSED):
            return ""
        return f"it is {row.status}"

    def _by_hand(
        self, ids: Iterable[uuid.UUID], status: Status, why_not: Callable[[Row], str]
    ) -> tuple[list[Change], list[Refusal]]:
        wanted = set(ids)
        changes: list[Change] = []
        refusals: list[Refusal] = []
        with transaction.atomic(using=self.db):
            for row in self._locked(wanted):
                wanted.discard(row.id)
                if reason := why_not(row):
                    held = row.next_attempt_at if row.status == Status.FAILED else None
                    refusals.append(Refusal(row.id, reason, until=held))
                else:
                    changes.append(Change(row, was=row.status, now=status))
            if changes:
                again = {"retry_count": 0, "next_attempt_at": Now()} if status == Status.PENDING else {}
                self.using(self.db).filter(id__in=[change.row.id for change in changes]).update(
                    status=status, updated_at=Now(), **again
                )
        return changes, refusals + [Refusal(id, "there is no such row") for id in sorted(wanted)]

    def _locked(self, ids: Iterable[uuid.UUID]) -> Iterable[Row]:
        rows = self.using(self.db).filter(id__in=list(ids)).defer(*self.model.payload_fields)
        locked = rows.annotate(database_now=Now()).order_by("id").select_for_update()
        return cast("Iterable[Row]", locked)

    def _locked_to_settle(self, ids: Iterable[uuid.UUID]) -> Iterable[Row]:
        """Without the times, whose reading would take as long as all the rest."""
        columns = ", ".join(self._columns())
        table = connections[self.db].ops.quote_name(self.model._meta.db_table)
        statement = f"SELECT {columns} FROM {table} WHERE id = ANY(%s) ORDER BY id FOR UPDATE"  # noqa: S608
        return cast("Iterable[Row]", self.using(self.db).raw(statement, [list(ids)]))

    def _write(self, decided: Sequence[tuple[Row, Outcome]], policy: Policy) -> list[Change]:
        """Write outcomes to rows that are locked here, in one statement, and say what changed."""
        if not decided:
            return []
        decisions = [
            decide(
                outcome=outcome,
                retry_count=row.retry_count,
                max_retries=row.max_retries,
                policy=policy,
                chance=random.random(),  # noqa: S311 - spreads retries, guards nothing
            )
            for row, outcome in decided
        ]
        self._write_sql([(row, o, d) for (row, o), d in zip(decided, decisions, strict=True)])
        return [
            Change(row, row.status, decision.status, outcome, decision.retry_count)
            for (row, outcome), decision in zip(decided, decisions, strict=True)
        ]

    def _write_sql(self, rows: Sequence[tuple[Row, Outcome, Decision]]) -> None:
        connection = connections[self.db]
        table = connection.ops.quote_name(self.model._meta.db_table)
        columns = list(
            zip(
                *(
                    (
                        row.id,
                        d.status,
                        d.retry_count,
                        None if d.wait is None else float(d.wait),
                        d.failed,
                        "" if d.status == Status.SENT or o.verdict in UNTRIED else o.error,
                        o.provider,
                        o.provider_message_id,
                        str(o.verdict),
                        o.code,
                    )
                    for row, o, d in rows
                ),
                strict=True,
            )
        )
        # The ids stand twice: the join brings each row its values, the list prunes partitions and keeps
        # the plan on the primary key.
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                UPDATE {table} AS row SET
                    status = new.status,
                    retry_count = new.retry_count,
                    next_attempt_at = coalesce(
                        statement_timestamp() + new.wait * interval '1 second', row.next_attempt_at),
                    claimed_at = NULL,
                    claim_token = NULL,
                    sent_at = CASE WHEN new.status = 'sent' THEN statement_timestamp() END,
                    last_error = CASE WHEN new.verdict IN ('returned', 'held') THEN row.last_error
                                      ELSE new.error END,
                    errors = CASE WHEN new.failed THEN row.errors || jsonb_build_array(jsonb_build_object(
                        'at', statement_timestamp(), 'provider', new.provider, 'outcome', new.verdict,
                        'code', new.code, 'text', new.error)) ELSE row.errors END,
                    provider = coalesce(nullif(new.provider, ''), row.provider),
                    provider_message_id = coalesce(nullif(new.message_id, ''), row.provider_message_id),
                    updated_at = statement_timestamp()
                FROM unnest(%s::uuid[], %s::text[], %s::int[], %s::float8[], %s::bool[],
                            %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
                    AS new (id, status, retry_count, wait, failed, error, provider, message_id, verdict, code)
                WHERE row.id = new.id AND row.id = ANY(%s::uuid[])
                """,  # noqa: S608 - the table's name is the model's
                [*(list(column) for column in columns), [row.id for row, _, _ in rows]],
            )


class Deliverable(models.Model):
    """The columns of a row that must be delivered; a subclass adds what is delivered and to whom."""

    #: Columns too large to load when only the state is of interest; a subclass names its own.
    payload_fields: tuple[str, ...] = ()
    #: What claimed and settled rows come with beside id, status and token; a subclass adds its own.
    claim_fields: tuple[str, ...] = (
        "retry_count",
        "max_retries",
        "errors",
        "provider",
        "correlation_id",
    )
    Status = Status

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    status = models.CharField(max_length=20, choices=Status, default=Status.PENDING)

    retry_count = models.PositiveIntegerField(default=0)
    max_retries = models.PositiveIntegerField(default=3)
    next_attempt_at = models.DateTimeField(db_default=Now())
    claimed_at = models.DateTimeField(null=True, editable=False)
    claim_token = models.UUIDField(null=True, editable=False)
    last_error = models.TextField(default="", blank=True)
    errors = models.JSONField(
        default=list, blank=True
    )  # one for each failed attempt: at, provider, outcome, code, text

    provider = models.CharField(max_length=50, default="", blank=True)
    provider_message_id = models.CharField(max_length=255, default="", blank=True)
    correlation_id = models.CharField(max_length=128, default="", blank=True)
    traceparent = models.CharField(max_length=64, default="", blank=True)

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    sent_at = models.DateTimeField(null=True, editable=False)

    objects = DeliverableQuerySet.as_manager()

    #: The state that `claim` found the row in, and its place in the batch.
    was: str = ""
    place: int = 0

    class Meta:
        abstract = True
        indexes = [
            # claim(), the backlog's age
            models.Index(fields=["next_attempt_at"], name="%(class)s_due", condition=Q(status__in=DUE)),
            # recover()
            models.Index(
                fields=["claimed_at"], name="%(class)s_lease", condition=Q(status=Status.PROCESSING)
            ),
            # triage: the admin's dead letters, newest first
            models.Index(fields=["-id"], name="%(class)s_dead", condition=Q(status=Status.DEAD_LETTERED)),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="%(class)s_status_known"),
            models.CheckConstraint(
                condition=Q(status=Status.SENT, sent_at__isnull=False)
                | (~Q(status=Status.SENT) & Q(sent_at__isnull=True)),
                name="%(class)s_sent_has_its_time",
            ),
            models.CheckConstraint(
                condition=Q(status=Status.PROCESSING, claim_token__isnull=False, claimed_at__isnull=False)
                | (~Q(status=Status.PROCESSING) & Q(claim_token__isnull=True, claimed_at__isnull=True)),
                name="%(class)s_claim_is_whole",
            ),
        ]

    @property
    def is_held(self) -> bool:
        """Whether a failed row still waits for evidence that its ambiguous attempt was accepted.

        Needs `database_now`, which the verbs' own queries bring.
        """
        now: dt.datetime | None = getattr(self, "database_now", None)
        last = self.errors[-1] if self.errors else {}
        return bool(last.get("outcome") == Verdict.AMBIGUOUS and now and now < self.next_attempt_at)
