"""The bulk actions of e-mails. The admin's list offers each `EmailAction`, and asks for a confirmation."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Sequence

from notifications import filters, services
from notifications.changes.manual_actions import Refusal
from notifications.changes.restored import mark_sent
from notifications.log import EmailChange, act_on_email
from notifications.models import EmailNotification
from notifications.states import transitions
from notifications.states.transitions import Status
from runtime.jobs.actions import ACTIONS, BatchResult, BulkAction, group_refusals, register
from runtime.models import AuditRow

Service = Callable[..., tuple[list[EmailChange], list[Refusal]]]
_PREFIX = "notifications."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmailAction(BulkAction):
    """An action on e-mails, with the words of its confirmation."""

    before: tuple[Status, ...]  # the states that it changes; it leaves other e-mails alone
    will_be: str  # the end of the sentence "3 failed: will be …"
    advice: str  # what a person must know before
    #: Changes an e-mail that a person chose alone, and so may do more than `change`.
    change_one: Callable[[Sequence[uuid.UUID]], BatchResult]


def add_action(
    *,
    name: str,
    title: str,
    permission: str,
    change: Callable[[Sequence[uuid.UUID]], BatchResult],
    change_one: Callable[[Sequence[uuid.UUID]], BatchResult] | None = None,
    before: Iterable[Status],
    will_be: str,
    advice: str,
) -> EmailAction:
    """Register an action. `name` is stored after "notifications." and must keep its meaning."""
    action = EmailAction(
        name=_PREFIX + name,
        title=title,
        model=EmailNotification,
        permission=permission,
        rows=filters.rows_at,
        change=change,
        change_one=change_one or change,
        describe=filters.describe,
        before=tuple(before),
        will_be=will_be,
        advice=advice,
    )
    register(action)
    return action


def email_actions() -> dict[str, EmailAction]:
    """Return the actions of all apps by the names that `add_action` got."""
    return {
        name.removeprefix(_PREFIX): action
        for name, action in ACTIONS.items()
        if isinstance(action, EmailAction)
    }


def _by(
    service: Service, done: str, kind: AuditRow.Kind = AuditRow.Kind.EMAIL
) -> Callable[[Sequence[uuid.UUID]], BatchResult]:
    """Return a change by a service. `done` is the text of the audit."""

    def change(ids: Sequence[uuid.UUID]) -> BatchResult:
        changes, refusals = service(ids=ids)
        acts = [act_on_email(change, kind=kind, act=f"{done} (was {change.was}).") for change in changes]
        return BatchResult(acts, group_refusals((refusal.id, refusal.text) for refusal in refusals))

    return change


_DISCARD = "notifications.discard_emailnotification"
RESEND = add_action(
    name="resend",
    title="Resend",
    permission="notifications.resend_emailnotification",
    change=_by(services.resend_many, "Resent", AuditRow.Kind.RESEND),
    change_one=_by(services.resend, "Resent", AuditRow.Kind.RESEND),
    before=transitions.RESEND.before,
    will_be="sent again",
    advice="Each e-mail gets all its retries again and is sent as soon as the rate limit and the provider"
    " allow. It keeps its list of errors. If the provider's answer was lost, the customer may get the e-mail"
    " twice. An e-mail that is still held for the provider's webhook is left alone. So is one that"
    " a later change of its order has overtaken, if it waits, is discarded or was too old, and one that was"
    " given up and of which a copy was made, unless you resend it alone.",
)
GIVE_UP = add_action(
    name="give_up",
    title="Give up",
    permission=_DISCARD,
    change=_by(services.give_up, "Given up"),
    before=transitions.DISCARD.before,
    will_be="given up",
    advice="They will not be sent. They stay in the list as discarded, and you can still resend them. An"
    " e-mail that is being sent, or still held for the provider's webhook, is left alone.",
)
MARK_SENT = add_action(
    name="mark_sent",
    title="Mark as sent",
    permission=_DISCARD,
    change=_by(mark_sent, "Marked as sent"),
    before=transitions.MARK_SENT.before,
    will_be="marked as sent",
    advice="They will not be sent. Do this only if you know that the customers have them, for example from"
    " the provider's own list. You cannot undo this, but you can still send a copy from an e-mail's page.",
)
