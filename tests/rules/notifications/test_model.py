"""E-mails under random commands of several actors, compared with a model after each step.

The model is written from docs/explain/outcomes.md and not from the code.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from notifications.states.outcomes import RECORDED
from tests.kit.mails import as_claimed, make_mail
from tests.kit.stateful import many
from tests.kit.words import (
    EmailNotification,
    Outcome,
    Verdict,
    accept,
    claim,
    manual_actions,
    recover,
    settle,
    transitions,
)

pytestmark = pytest.mark.django_db
rows = EmailNotification.objects
MAX_RETRIES = 2


@dataclasses.dataclass
class Mail:
    """What the model knows of one e-mail."""

    status: str = "pending"
    due: bool = True
    held: bool = False
    retries: int = 0
    lost: int = 0  # workers, since the last resend
    attempts: int = 0  # that failed
    token: uuid.UUID | None = None
    accepted: bool = False  # somebody brought the fact


class Life(RuleBasedStateMachine):
    """Workers claim and settle, some too late; the provider tells; a person resends; time goes by."""

    claims: Bundle[tuple[uuid.UUID, uuid.UUID]] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        rows.all().delete()
        self.mails: dict[uuid.UUID, Mail] = {}

    def pick(self, number: int) -> uuid.UUID | None:
        return list(self.mails)[number % len(self.mails)] if self.mails else None

    # --- what happens ---
    @rule()
    def an_order_owes_a_mail(self) -> None:
        mail = make_mail(max_retries=MAX_RETRIES, next_attempt_at=Now() - dt.timedelta(seconds=1))
        self.mails[mail.id] = Mail()

    @rule(target=claims, limit=st.integers(1, 5))
    def a_worker_claims(self, limit: int) -> Any:
        due = {id for id, mail in self.mails.items() if mail.status in ("pending", "failed") and mail.due}
        claimed = claim(limit=limit)
        assert len(claimed) == min(limit, len(due)) or len(claimed) >= min(limit - limit // 4, len(due))
        assert {row.id for row in claimed} <= due
        for row in claimed:
            mail = self.mails[row.id]
            mail.status, mail.token = "processing", row.claim_token
        return (claimed[0].id, claimed[0].claim_token) if claimed else (uuid.uuid4(), uuid.uuid4())

    @rule(claim=claims)
    def a_worker_brings_acceptance(self, claim: tuple[uuid.UUID, uuid.UUID]) -> None:
        """However late, and whoever has the row by now: a fact."""
        self.settle(claim, Outcome(Verdict.ACCEPTED, "sendgrid", "m"))
        if mail := self.mails.get(claim[0]):
            self.accept(mail)

    @rule(
        claim=claims,
        verdict=st.sampled_from([verdict for verdict in Verdict if verdict is not Verdict.ACCEPTED]),
        is_own=st.booleans(),
    )
    def a_worker_brings_an_opinion(
        self, claim: tuple[uuid.UUID, uuid.UUID], verdict: Verdict, is_own: bool
    ) -> None:
        """Only with the claim's own token."""
        outcome = Outcome(verdict, "sendgrid", code="x", text="words", is_own=is_own)
        changes = self.settle(claim, outcome)
        mail = self.mails.get(claim[0])
        mine = mail is not None and mail.status == "processing" and mail.token == claim[1]
        assert len(changes) == (1 if mine else 0)
        if mail is None or not mine:
            return
        mail.token, mail.due = None, verdict is Verdict.RETURNED
        mail.retries += verdict in (Verdict.TRANSIENT, Verdict.AMBIGUOUS)
        mail.held = mail.held or verdict is Verdict.AMBIGUOUS
        mail.attempts += verdict in RECORDED
        if is_own:
            mail.status = "dead_lettered"
            return
        match verdict:
            case Verdict.SUPPRESSED:
                mail.status = "suppressed"
            case Verdict.OVERTAKEN:
                mail.status = "discarded"
            case Verdict.PERMANENT | Verdict.TOO_OLD:
                mail.status = "dead_lettered"
            case Verdict.TRANSIENT | Verdict.HELD | Verdict.AMBIGUOUS:
                mail.status = "failed"
            case _:
                mail.status = "pending"

    @rule(number=st.integers(0, 20))
    def the_provider_tells_of_a_mail(self, number: int) -> None:
        """Evidence needs no claim."""
        if id := self.pick(number):
            accept({id: Outcome(Verdict.ACCEPTED, "sendgrid", "m")})
            self.accept(self.mails[id])

    @rule()
    def leases_run_out(self) -> None:
        rows.filter(status="processing").update(claimed_at=F("claimed_at") - dt.timedelta(hours=1))
        changes = recover(lease_seconds=300)
        taken = {id for id, mail in self.mails.items() if mail.status == "processing"}
        assert {change.id for change in changes} == taken
        for id in taken:
            mail = self.mails[id]
            mail.token, mail.due, mail.held = None, False, True
            mail.attempts += 1
            mail.retries += 1
            mail.lost += 1
            mail.status = "dead_lettered" if mail.lost > MAX_RETRIES else "failed"

    @rule()
    def leases_are_looked_at_too_early(self) -> None:
        assert recover(lease_seconds=300) == []

    @rule()
    def time_goes_by(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                UPDATE email_notifications SET
                    next_attempt_at = least(next_attempt_at, statement_timestamp() - interval '1 second'),
                    resent_at = resent_at - interval '1 hour',
                    errors = coalesce((
                        SELECT jsonb_agg(entry || jsonb_build_object(
                            'at', (entry->>'at')::timestamptz - interval '1 hour') ORDER BY place)
                        FROM jsonb_array_elements(errors) WITH ORDINALITY AS each (entry, place)), '[]')
                """
            )
        for mail in self.mails.values():
            mail.held = False
            if mail.status in ("pending", "failed"):
                mail.due = True

    @rule(number=st.integers(0, 20))
    def a_person_resends(self, number: int) -> None:
        if (id := self.pick(number)) is None:
            return
        mail = self.mails[id]
        changes, refusals = manual_actions.change(ids=[id], act=transitions.RESEND)
        held = mail.held and mail.status in ("dead_lettered", "failed")
        may = mail.status in ("dead_lettered", "discarded", "suppressed", "failed") and not held
        assert (len(changes), len(refusals)) == ((1, 0) if may else (0, 1))
        if may:
            mail.status, mail.due, mail.retries, mail.held, mail.lost = "pending", True, 0, False, 0

    @rule(number=st.integers(0, 20))
    def a_person_gives_up(self, number: int) -> None:
        if (id := self.pick(number)) is None:
            return
        mail = self.mails[id]
        changes, _ = manual_actions.change(ids=[id], act=transitions.DISCARD)
        assert len(changes) == (mail.status in ("dead_lettered", "failed", "pending") and not mail.held)
        if changes:
            mail.status = "discarded"

    # --- what the model makes of it ---
    def settle(self, claim: tuple[uuid.UUID, uuid.UUID], outcome: Outcome) -> list[Any]:
        claimed = EmailNotification(id=claim[0], claim_token=claim[1])
        return settle([(as_claimed(claimed), outcome)])

    def accept(self, mail: Mail) -> None:
        mail.accepted, mail.status, mail.token = True, "sent", None

    # --- what must always hold ---
    @invariant()
    def the_table_is_as_the_model_says(self) -> None:
        stored = {
            id: (status, retries, token, len(errors))
            for id, status, retries, token, errors in rows.values_list(
                "id", "status", "retry_count", "claim_token", "errors"
            )
        }
        assert stored == {
            id: (mail.status, mail.retries, mail.token, mail.attempts) for id, mail in self.mails.items()
        }

    @invariant()
    def what_was_accepted_stays_sent(self) -> None:
        accepted = {id for id, mail in self.mails.items() if mail.accepted}
        assert set(rows.filter(status="sent", sent_at__isnull=False).values_list("id", flat=True)) == accepted


def test_the_life_of_emails_is_the_models():
    run_state_machine_as_test(Life, settings=many)
