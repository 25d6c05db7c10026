"""The states of an e-mail, how they are shown, and the table of its transitions. Pure values.

docs/explain/outcomes.md shows the table, and docs/guides/extend.md says how to add a state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from django.db import models


class Status(models.TextChoices):
    """The states of a row.

    A row is `failed` if it is not known yet whose failure its last attempt was, or whether the provider
    accepted it. A row that certainly failed by the provider's fault is `pending` again.
    """

    PENDING = "pending"
    PROCESSING = "processing"
    SENT = "sent"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    SUPPRESSED = "suppressed"
    DISCARDED = "discarded"


class EndedBy(models.TextChoices):
    """Why an e-mail did not leave, or is no longer tried. It is empty while the e-mail is open, or sent."""

    PROVIDER = "provider"  # a provider refused it for good
    RETRIES = "retries"  # its own failures used up its retries
    LEASE = "lease"  # it lost its worker too often
    AGE = "age"  # it could not be sent for EMAIL_MAX_AGE_HOURS, or its change came that late
    NO_ADDRESS = "no_address"  # its order has no usable address
    RESTORE = "restore"  # the database was restored, and nothing proves what became of it
    OVERTAKEN = "overtaken"  # a later change of the order made it old news
    TRIAL = "trial"  # a connection's trial: it was written to be seen
    PERSON = "person"  # a person gave it up
    ERASURE = "erasure"  # the recipient's data was erased
    SUPPRESSED = "suppressed"  # the recipient must not get e-mails


S = Status
#: The reasons that each state may have. The states that are not listed have none.
REASONS = {
    S.DEAD_LETTERED: (
        *(EndedBy.PROVIDER, EndedBy.RETRIES, EndedBy.LEASE),
        *(EndedBy.AGE, EndedBy.NO_ADDRESS, EndedBy.RESTORE),
    ),
    S.SUPPRESSED: (EndedBy.SUPPRESSED, EndedBy.ERASURE),
    S.DISCARDED: (EndedBy.OVERTAKEN, EndedBy.TRIAL, EndedBy.PERSON, EndedBy.ERASURE),
}
#: The reasons for which `last_error` has the words of a provider, or of a worker that was lost.
TRIED = (EndedBy.PROVIDER, EndedBy.RETRIES, EndedBy.LEASE)


class Withheld(NamedTuple):
    """The state of an e-mail that is written and not sent, and the words for it."""

    status: Status
    ended_by: EndedBy
    last_error: str


#: The order has no usable address. `readdress` makes the e-mail due once there is one.
NO_ADDRESS = Withheld(Status.DEAD_LETTERED, EndedBy.NO_ADDRESS, "no usable address")
ERASED_PERSON = Withheld(Status.SUPPRESSED, EndedBy.ERASURE, "the recipient's data was erased")
#: States in which the customer may still get the e-mail, or a person has to decide.
UNFINISHED = (S.PENDING, S.PROCESSING, S.FAILED, S.DEAD_LETTERED)
#: States that only a person, or an acceptance that arrives late, changes.
ENDED = (S.SENT, S.DEAD_LETTERED, S.SUPPRESSED, S.DISCARDED)
#: The columns that have a value only in one state.
COLUMNS_OF = {S.PROCESSING: ("claim_token", "claimed_at"), S.SENT: ("sent_at",)}


@dataclasses.dataclass(frozen=True, slots=True)
class StatusLabel:
    """The words of `manage.py demo` for one e-mail and for several, and the admin's colour of a state.

    `color` is a state of web/static/orderpost/admin.css.
    """

    singular: str
    plural: str
    color: Status


#: Every state, the most urgent first, as the admin's filter lists them.
LABELS: dict[str, StatusLabel] = {
    S.DEAD_LETTERED: StatusLabel("is a dead letter", "are dead letters", S.DEAD_LETTERED),
    S.FAILED: StatusLabel("waits for a retry", "wait for a retry", S.FAILED),
    S.PENDING: StatusLabel("waits for its turn", "wait for their turn", S.PENDING),
    S.PROCESSING: StatusLabel("is being sent", "are being sent", S.PROCESSING),
    S.SUPPRESSED: StatusLabel("is suppressed", "are suppressed", S.SUPPRESSED),
    S.DISCARDED: StatusLabel("is discarded", "are discarded", S.DISCARDED),
    S.SENT: StatusLabel("is sent", "are sent", S.SENT),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Transition:
    """A verb that moves rows out of the states `before` into one of the states `after`.

    `by` says who calls it. `columns` are the columns that it may write, besides `status`, `ended_by` and
    `updated_at`. A verb that ends e-mails for one reason has it in `ended_by`. With `has_to_wait`, not while
    a row is held for a provider's evidence (`manual_actions.held_until`).
    """

    verb: str
    by: str
    before: tuple[Status, ...]
    after: tuple[Status, ...]
    columns: tuple[str, ...] = ()
    has_to_wait: bool = False
    ended_by: EndedBy | None = None

    @property
    def to(self) -> Status:
        """The state after a verb that has only one."""
        (status,) = self.after
        return status


CLAIM = Transition(
    "claim",
    "a drain, when the e-mail is due",
    before=(S.PENDING, S.FAILED),
    after=(S.PROCESSING,),
    columns=("claimed_at", "claim_token"),
)
#: `outcomes.decide_status` chooses the state.
SETTLE = Transition(
    "settle",
    "the drain that claimed it",
    before=(S.PROCESSING,),
    after=(S.SENT, S.FAILED, S.PENDING, S.DEAD_LETTERED, S.SUPPRESSED, S.DISCARDED),
    columns=(
        *("retry_count", "next_attempt_at", "claimed_at", "claim_token", "sent_at"),
        *("last_error", "errors", "provider", "provider_message_id"),
    ),
)
TAKE_BACK = Transition(
    "take back",
    "a drain that learns that the provider refused our account, not the e-mail",
    before=(S.DEAD_LETTERED,),
    after=(S.PENDING,),
)
RECOVER = Transition(
    "recover",
    "the poll, after the claim's lease",
    before=(S.PROCESSING,),
    after=(S.FAILED, S.DEAD_LETTERED),
    columns=("retry_count", "next_attempt_at", "claimed_at", "claim_token", "last_error", "errors"),
)
ACCEPT = Transition(
    "accept",
    "a webhook or a log that proves the acceptance",
    before=(S.PENDING, S.PROCESSING, S.FAILED, S.DEAD_LETTERED, S.SUPPRESSED, S.DISCARDED),
    after=(S.SENT,),
    columns=("claimed_at", "claim_token", "sent_at", "last_error", "provider", "provider_message_id"),
)
RESEND = Transition(
    "resend",
    "a person",
    before=(S.DEAD_LETTERED, S.FAILED, S.DISCARDED, S.SUPPRESSED),
    after=(S.PENDING,),
    columns=("retry_count", "next_attempt_at", "resent_at"),
    has_to_wait=True,
)
READDRESS = Transition(
    "readdress",
    "a usable address for an order that had none",
    before=(S.DEAD_LETTERED,),
    after=(S.PENDING,),
    columns=("recipient_email", "to_name", "next_attempt_at", "last_error", "readdressed_at"),
)
DISCARD = Transition(
    "give up",
    "a person",
    before=(S.DEAD_LETTERED, S.FAILED, S.PENDING),
    after=(S.DISCARDED,),
    has_to_wait=True,
    ended_by=EndedBy.PERSON,
)
#: The person knows that the customer has the e-mail. This is evidence, so no row waits for another.
MARK_SENT = Transition(
    "mark as sent",
    "a person",
    before=(S.PENDING, S.FAILED, S.DEAD_LETTERED),
    after=(S.SENT,),
    columns=("sent_at", "last_error"),
)
#: An erasure must not wait for a provider's evidence.
WITHDRAW = Transition(
    "withdraw",
    "an erasure",
    before=(S.PENDING, S.FAILED, S.DEAD_LETTERED),
    after=(S.DISCARDED,),
    ended_by=EndedBy.ERASURE,
)
SET_ASIDE_UNPROVEN = Transition(
    "set aside",
    "`after_restore`, if no log proves what became of it",
    before=(S.PENDING, S.FAILED, S.PROCESSING),
    after=(S.DEAD_LETTERED,),
    columns=("claimed_at", "claim_token", "last_error", "errors"),
    ended_by=EndedBy.RESTORE,
)
SET_ASIDE_REPLACED = Transition(
    "set aside",
    "`after_restore`, if a copy replaced it or it was given up",
    before=UNFINISHED,
    after=(S.DEAD_LETTERED,),
    columns=("claimed_at", "claim_token", "last_error", "errors"),
    ended_by=EndedBy.RESTORE,
)
SET_ASIDE_OLD = Transition(
    "set aside",
    "the poll, if it has waited for `EMAIL_MAX_AGE_HOURS`",
    before=(S.PENDING, S.FAILED),
    after=(S.DEAD_LETTERED,),
    columns=("last_error",),
    has_to_wait=True,
    ended_by=EndedBy.AGE,
)
TRANSITIONS = (
    *(CLAIM, SETTLE, TAKE_BACK, RECOVER, ACCEPT),
    *(RESEND, READDRESS, DISCARD, MARK_SENT),
    *(WITHDRAW, SET_ASIDE_UNPROVEN, SET_ASIDE_REPLACED, SET_ASIDE_OLD),
)

#: A row in one of these states is due at its `next_attempt_at`.
DUE_STATES = CLAIM.before
#: The name of their index. Other states need another name, so that a claim always has an index.
DUE_INDEX = "emailnotification_due"


def list_in_sql(states: Iterable[Status]) -> str:
    """Return states as SQL has them in `status IN (…)`."""
    return ", ".join(f"'{status.value}'" for status in states)
