"""Preview, resend, withdraw, and give up e-mails."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence

import structlog
from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Now

from notifications.changes import manual_actions
from notifications.changes.manual_actions import Refusal
from notifications.changes.turns import find_overtaken
from notifications.content.profiles import find_profile
from notifications.content.render_files import RenderedEmail
from notifications.log import EmailChange, act_on_email, log_changes
from notifications.models import CONTENT, EmailNotification
from notifications.providers.sending import PROVIDERS
from notifications.states import transitions
from notifications.states.outcomes import Verdict
from notifications.states.transitions import EndedBy, Status
from notifications.suppressions import suppressed_among
from notifications.wake import Reason, wake
from retention.person import Person
from retention.rows_of_person import erase_rows
from runtime.audit import Actor, record
from runtime.database.transactions import after_commit, require_transaction
from runtime.models import AuditRow

log = structlog.get_logger(__name__)

#: The number of dead letters that one statement resends.
CHUNK = 500


def send_preview(
    *, email: RenderedEmail, order_id: uuid.UUID, event_type: str, source: str, recipient_email: str
) -> str:
    """Send a preview of an order's e-mail at once, as `send_unsaved`."""
    return send_unsaved(
        subject=f"[Preview] {email.subject}",
        html=email.body_html,
        text=email.body_text,
        order_id=order_id,
        event_type=event_type,
        source=source,
        recipient_email=recipient_email,
    )


def send_unsaved(
    *,
    subject: str,
    html: str,
    text: str,
    order_id: uuid.UUID,
    event_type: str,
    source: str,
    recipient_email: str,
) -> str:
    """Send an e-mail to a user through the first provider at once, without saving it.

    The profile of `source` sends it. Return the provider's error, or "" if it accepted.
    """
    profile = find_profile(source)
    email = EmailNotification(
        profile=profile.source,
        from_email=profile.from_email,
        reply_to=profile.reply_to,
        order_id=order_id,
        event_type=event_type,
        recipient_email=recipient_email,
        to_name="",
        subject=subject[:255],
        body=html,
        body_text=text,
    )
    provider = PROVIDERS[settings.EMAIL_PROVIDERS[0]]
    try:
        outcome = provider.send(email, account=profile.account)
    finally:
        provider.close()  # a web process keeps no connections to providers
    return "" if outcome.verdict is Verdict.ACCEPTED else outcome.error


def withdraw_emails(*, ids: Iterable[uuid.UUID]) -> None:
    """Give up the unsent e-mails of a person who is being erased, in the caller's transaction.

    Do not change an e-mail that is being sent.
    """
    require_transaction("a withdrawal")
    manual_actions.change(ids=ids, act=transitions.WITHDRAW, hide_address=True)


def readdress(
    *, order_id: uuid.UUID, recipient_email: str, to_name: str, except_id: uuid.UUID | None = None
) -> list[EmailChange]:
    """Make the e-mails due that an order without an address owed, and return the changes.

    The caller has locked the order, in its transaction. A copy of `except_id` is sent instead.
    """
    require_transaction("a new address")
    rows = EmailNotification.objects.filter(
        order_id=order_id, recipient_email="", status__in=transitions.READDRESS.before
    )
    if except_id is not None:
        rows = rows.exclude(id=except_id)
    emails = list(rows.defer(*CONTENT).order_by("id").select_for_update())
    if not emails:
        return []
    ids, status = [email.id for email in emails], transitions.READDRESS.to
    EmailNotification.objects.filter(id__in=ids).update(
        recipient_email=recipient_email,
        to_name=to_name,
        status=status,
        ended_by="",
        last_error="",
        next_attempt_at=Now(),
        readdressed_at=Now(),
        updated_at=Now(),
    )
    # An export and an erasure of the customer find the shop's copies by this.
    copies = EmailNotification.objects.filter(order_id=order_id, shop_copy_of__in=ids, customer_email="")
    copies.update(customer_email=recipient_email)
    changes = []
    for email in emails:
        was, email.status, email.recipient_email = email.status, status, recipient_email
        email.ended_by = ""
        changes.append(EmailChange.of(email, was=was))
    log_changes(changes)
    after_commit(lambda: wake(Reason.RESEND))
    return changes


def erase_unaddressed(*, order_id: uuid.UUID) -> None:
    """Erase the e-mails without an address of an order that turned out to be an erased person's.

    The caller has locked the order, in its transaction.
    """
    emails = EmailNotification.objects.filter(order_id=order_id, recipient_email="")
    withdraw_emails(ids=emails.filter(status__in=transitions.UNFINISHED).values_list("id", flat=True))
    owner = Person.of("", frozenset([order_id]))
    erase_rows(model=EmailNotification, person=owner, using="default", orders=[order_id])


def resend(*, ids: Iterable[uuid.UUID]) -> tuple[list[EmailChange], list[Refusal]]:
    """Make e-mails due again and wake the workers. Return the changes and the refusals."""
    wanted = list(ids)
    rows = EmailNotification.objects.filter(id__in=wanted, status=Status.SUPPRESSED)
    still = _refuse_suppressed(list(rows.only("id", "recipient_email", "status")))
    changes, refusals = manual_actions.change(
        ids=(id for id in wanted if id not in still), act=transitions.RESEND
    )
    refusals += still.values()
    if changes:
        after_commit(lambda: wake(Reason.RESEND))
    return changes, refusals


def resend_many(*, ids: Iterable[uuid.UUID]) -> tuple[list[EmailChange], list[Refusal]]:
    """Resend e-mails that nobody looked at one by one: leave out old news, and what a copy replaced."""
    wanted = list(ids)
    left_out = _find_replaced(wanted) | find_old_news(ids=wanted)
    changes, refusals = resend(ids=(id for id in wanted if id not in left_out))
    return changes, [*refusals, *left_out.values()]


def _find_replaced(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Refusal]:
    """Return those of the e-mails that were given up and have a copy."""
    given_up = EmailNotification.objects.filter(id__in=ids, status=Status.DISCARDED)
    orders = given_up.values_list("order_id", flat=True)
    copies = EmailNotification.objects.filter(order_id__in=list(orders), resend_of__in=given_up.values("id"))
    copied = set(copies.values_list("resend_of", flat=True))
    return {id: Refusal(id, "it was given up, and a copy of it was made") for id in ids if id in copied}


def find_old_news(*, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Refusal]:
    """Return those of the e-mails that a later change has overtaken, and that nobody meant to send since.

    They wait for an attempt that would discard them, are discarded, or are dead letters that are too old.
    """
    unsent = Q(status__in=(*transitions.DUE_STATES, Status.DISCARDED), resent_at=None)
    too_old = Q(status=Status.DEAD_LETTERED, ended_by=EndedBy.AGE)
    rows = EmailNotification.objects.filter(unsent | too_old, id__in=list(ids))
    return {id: Refusal(id, reason) for id, reason in find_overtaken(rows.defer(*CONTENT)).items()}


def why_not_resent(*, emails: Sequence[EmailNotification], now: dt.datetime) -> dict[uuid.UUID, Refusal]:
    """Return why `resend` would refuse each of these at the database's time `now`, if it would."""
    refusals = {
        email.id: refusal
        for email in emails
        if (refusal := manual_actions.why_not(row=email, act=transitions.RESEND, now=now))
    }
    suppressed = [email for email in emails if email.status == Status.SUPPRESSED]
    return refusals | (_refuse_suppressed(suppressed) if suppressed else {})


def _refuse_suppressed(emails: Sequence[EmailNotification]) -> dict[uuid.UUID, Refusal]:
    """Return the refusals of `suppressed` e-mails whose addresses are still suppressed."""
    still = suppressed_among([email for email in emails if email.status == Status.SUPPRESSED])
    return {id: Refusal(id, f"its address is suppressed: {why}") for id, why in still.items()}


def act_on_resend(change: EmailChange) -> AuditRow:
    """Return the audit row of a resend."""
    return act_on_email(change, kind=AuditRow.Kind.RESEND, act=f"Resent (was {change.was}).")


def resend_dead_letters(*, by: Actor) -> tuple[int, int]:
    """Resend all dead letters in the caller's transaction. Return the numbers of changes and of refusals.

    Skip overtaken ones, as `resend_many` does, and those that `manage.py after_restore` made: a provider may
    have accepted them, so a person decides.
    Without this, a command from before the restore that is delivered again would resend them.
    """
    require_transaction("a resend")
    changed, refused, last = 0, 0, uuid.UUID(int=0)
    while True:
        rows = EmailNotification.objects.dead().exclude(ended_by=EndedBy.RESTORE)
        ids = list(rows.filter(id__gt=last).order_by("id").values_list("id", flat=True)[:CHUNK])
        if not ids:
            return changed, refused
        changes, refusals = resend_many(ids=ids)
        record(*map(act_on_resend, changes), by=by)
        changed, refused, last = changed + len(changes), refused + len(refusals), ids[-1]


def give_up(*, ids: Iterable[uuid.UUID]) -> tuple[list[EmailChange], list[Refusal]]:
    """Make e-mails `discarded`. Return the changes and the refusals."""
    return manual_actions.change(ids=ids, act=transitions.DISCARD)


def why_not_given_up(*, email: EmailNotification, now: dt.datetime) -> Refusal | None:
    """Return why `give_up` would refuse the e-mail at the database's time `now`, or None."""
    return manual_actions.why_not(row=email, act=transitions.DISCARD, now=now)
