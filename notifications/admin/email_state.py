"""Why an e-mail is in its state, in words, and the one button that helps. Two pages show it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Sequence

from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.text import get_text_list

from notifications import services
from notifications.bulk_actions import RESEND
from notifications.changes.manual_actions import Refusal, why_not
from notifications.changes.turns import seconds_to_wait
from notifications.content.copies import why_not_copied
from notifications.models import EmailNotification, Suppression
from notifications.providers.causes import explain_email
from notifications.providers.explanations import MALFORMED_ADDRESS, NO_ADDRESS, NO_SUCH_ADDRESS, Explanation
from notifications.states import transitions
from notifications.states.errors import entries_since
from notifications.states.transitions import DUE_STATES, LABELS, EndedBy, Status
from notifications.suppressions import suppressions_of
from runtime.models import AuditRow, Pause
from web.admin.base import format_time, pill
from web.admin.rights import shops_of

#: The state of an e-mail that a worker may still change.
WAITING = (*DUE_STATES, Status.PROCESSING)
#: The causes of dead letters that a resend to the same address does not remove.
WRONG_ADDRESS = (NO_SUCH_ADDRESS, MALFORMED_ADDRESS, NO_ADDRESS)


@dataclasses.dataclass(frozen=True, slots=True)
class EmailState:
    """One e-mail as a person sees it. `resend` is the label of the button, or "" if it would be refused."""

    email: EmailNotification
    pill: SafeString
    reason: str
    advice: str
    resend: str
    may_copy: bool
    resend_refusal: Refusal | None
    copy: str  # what kind of copy it is, and who sent it, or ""
    suppression: str  # who suppressed its address, when and why, or ""
    may_lift: bool  # whether the user may lift that and resend it

    @property
    def is_copy_better(self) -> bool:
        """Return whether a copy to another address helps, and a resend does not."""
        return self.may_copy and (not self.resend or _means(self.email) in WRONG_ADDRESS)


def read_states(
    request: HttpRequest,
    emails: Sequence[EmailNotification],
    *,
    now: dt.datetime,
    siblings: Collection[EmailNotification],
) -> list[EmailState]:
    """Return the states of e-mails of one order. `siblings` are all e-mails of the order."""
    refusals = services.why_not_resent(emails=emails, now=now)
    waits = any(email.status in DUE_STATES for email in emails)
    pause = Pause.objects.filter(part=Pause.Part.DELIVERY).first() if waits else None
    may_resend = request.user.has_perm(RESEND.permission)
    may_copy = request.user.has_perm("notifications.copy_emailnotification")
    suppressions = suppressions_of(
        email for email in emails if email.status == Status.SUPPRESSED and email.id in refusals
    )
    # Most e-mails of an order have one address.
    said = {row.id: describe_suppression(request, row) for row in {*suppressions.values()}}
    descriptions = {id: said[row.id] for id, row in suppressions.items()}
    return [
        EmailState(
            email=email,
            pill=state_pill(email),
            reason=_reason(email, now=now, pause=pause, siblings=siblings),
            advice=_advice(email),
            resend=_label(email) if may_resend and email.id not in refusals else "",
            may_copy=may_copy and not why_not_copied(email=email),
            resend_refusal=refusals.get(email.id),
            copy=describe_copy(email),
            suppression=descriptions.get(email.id, ""),
            may_lift=may_resend and may_lift(request, suppressions.get(email.id)),
        )
        for email in emails
    ]


def describe_copy(email: EmailNotification) -> str:
    """Say that an e-mail is a copy, and who sent it, or that it is the shop's. Return "" for others."""
    words = ["shop copy"] if email.shop_copy_of else []
    if email.resend_of:
        who = getattr(email, "sent_by", None)
        words.append(f"copy, sent by {who}" if who else "copy")
    return ", ".join(words)


def may_lift(request: HttpRequest, suppression: Suppression | None) -> bool:
    """Return whether the user may lift a suppression."""
    if suppression is None or not request.user.has_perm("notifications.lift_suppression"):
        return False
    is_complaint = suppression.reason == Suppression.Reason.COMPLAINT
    return not is_complaint or request.user.has_perm("notifications.lift_complaint")


def describe_suppression(request: HttpRequest, suppression: Suppression) -> str:
    """Say who suppressed an address, when and why, unless an e-mail of a shop that is not the user's did."""
    if not shops_of(request).has(suppression.source):
        return "The address is suppressed."
    when, why = format_time(suppression.created_at), suppression.get_reason_display()
    if suppression.reason == Suppression.Reason.MANUAL:
        act = AuditRow.objects.filter(subject_id=str(suppression.id)).order_by("id").first()
        said = f": “{act.reason}”" if act and act.reason else ""
        return f"{act.who if act else 'Somebody'} suppressed the address at {when}{said}."
    id = suppression.notification_id
    email = EmailNotification.objects.only("bounce_text").filter(id=id).first() if id else None
    said = f" Its server said: “{email.bounce_text}”" if email and email.bounce_text else ""
    by = f", as {suppression.provider} reported" if suppression.provider else ""
    return f"The address is suppressed since {when}, because {why}{by}.{said}"


def explain_several(emails: Sequence[EmailNotification]) -> str:
    """Say in one sentence why an order has several e-mails, or "" if it does not."""
    if len(emails) < 2:
        return ""
    copies = [email for email in emails if email.resend_of]
    to_shop = [email for email in emails if email.shop_copy_of and not email.resend_of]
    own = [email for email in emails if not (email.resend_of or email.shop_copy_of)]
    resent = [email for email in emails if email.resent_at]
    lost = [email for email in emails if any(entry.get("outcome") == "ambiguous" for entry in email.errors)]
    parts = []
    if own:
        changes = "different changes" if len(own) > 1 else "a change"
        parts.append(f"{len(own)} {_are(own)} about {changes} of the order")
    if copies:
        senders = sorted({who for email in copies if (who := getattr(email, "sent_by", None))})
        what = "a copy" if len(copies) == 1 else "copies"
        parts.append(
            f"{len(copies)} {_are(copies)} {what} that {get_text_list(senders, 'and') or 'somebody'} sent"
        )
    if to_shop:
        parts.append(f"{len(to_shop)} went to the shop itself")
    if resent:
        parts.append(f"{len(resent)} {'was' if len(resent) == 1 else 'were'} resent")
    if lost:
        parts.append(f"{len(lost)} may have arrived twice, because the provider's answer was lost")
    return f"Why {len(emails)} e-mails? {get_text_list(parts, 'and')}."


def _are(emails: Sequence[EmailNotification]) -> str:
    return "is" if len(emails) == 1 else "are"


def state_pill(email: EmailNotification) -> SafeString:
    """Return the state, with what the provider reported of a sent e-mail."""
    if email.status == Status.SENT:
        if email.complained_at or email.bounced_at:
            return pill(Status.DEAD_LETTERED, "marked as spam" if email.complained_at else "bounced")
        if email.delivered_at:
            return pill(Status.SENT, "delivered")
    shown = LABELS.get(email.status)  # a newer release may have written a state that this one does not know
    return pill(shown.color if shown else email.status, email.status.replace("_", " "))


def _label(email: EmailNotification) -> str:
    return "Send now" if email.status == Status.FAILED else "Resend"


def _reason(
    email: EmailNotification,
    *,
    now: dt.datetime,
    pause: Pause | None,
    siblings: Collection[EmailNotification],
) -> str:
    held = why_not(row=email, act=transitions.DISCARD, now=now)
    match email.status:
        case Status.PENDING | Status.FAILED if held is not None and held.until is not None:
            return f"{held.text[0].upper()}{held.text[1:]}."
        case Status.PENDING | Status.FAILED if pause is not None:
            because = f": {pause.reason}" if pause.reason else ""
            return f"Delivery is paused since {format_time(pause.paused_at)}{because}."
        case Status.PENDING if first := _goes_first(email, siblings, now=now):
            return f"The earlier e-mail {first.event_type} of its order goes first."
        case Status.PENDING | Status.FAILED:
            when = f"tried again at {format_time(email.next_attempt_at)}"
            if email.next_attempt_at <= now:
                when = "due, and the next free worker takes it"
            # A resent e-mail keeps the reason for which it was not sent before.
            was_tried = email.resent_at is None or entries_since(email.errors, email.resent_at)
            error = email.last_error if was_tried else ""
            return f"It is {when}." + (f" The last attempt failed: {error}" if error else "")
        case Status.PROCESSING:
            return "A worker is sending it at this moment."
        case Status.SENT:
            return _delivery(email)
        case Status.DEAD_LETTERED:
            means = _means(email)
            said = f" {email.provider or 'The error'}: “{email.last_error}”" if email.last_error else ""
            return f"{means.title}. {means.meaning}{said}"
        case Status.DISCARDED if email.ended_by in (EndedBy.PERSON, EndedBy.ERASURE):
            return "It was given up and is not sent."
        case _:
            text = email.last_error or "no reason is stored"
            return f"{text[0].upper()}{text[1:]}."


def _goes_first(
    email: EmailNotification, siblings: Collection[EmailNotification], *, now: dt.datetime
) -> EmailNotification | None:
    """Return the earliest e-mail of the order that this one waits for."""
    if email.order_version is None or email.resent_at is not None:
        return None
    earlier = [
        other
        for other in siblings
        if other.order_version is not None
        and other.order_version < email.order_version
        and (other.shop_copy_of is None) == (email.shop_copy_of is None)
        and seconds_to_wait(other, at=now)
    ]
    return min(earlier, key=lambda other: other.order_version or 0, default=None)


def _delivery(email: EmailNotification) -> str:
    provider = email.provider or "the provider"
    for at, words in (
        (email.complained_at, "The recipient marked it as spam"),
        (email.bounced_at, "The recipient's server returned it"),
        (email.delivered_at, "The recipient's server took it"),
        (email.sent_at, f"{provider[0].upper()}{provider[1:]} accepted it"),
    ):
        if at is not None:
            said = f" It said: “{email.bounce_text}”" if at == email.bounced_at and email.bounce_text else ""
            return f"{words} at {format_time(at)}.{said}"
    return ""


def _advice(email: EmailNotification) -> str:
    match email.status:
        case Status.DEAD_LETTERED:
            return _means(email).advice
        case Status.SENT if email.complained_at:
            return "Do not send it again. The recipient does not want such e-mails."
        case Status.SENT if email.bounced_at:
            return "Correct the address with the customer and send a copy to it."
        case Status.SENT:
            return (
                "If the customer does not have it, ask them to look in the spam folder, or send a copy to"
                " another address."
            )
        case _:
            return ""


def _means(email: EmailNotification) -> Explanation:
    return explain_email(provider=email.provider, ended_by=email.ended_by, error=email.last_error)
