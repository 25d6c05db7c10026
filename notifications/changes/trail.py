"""The history of one e-mail: when it was written, tried and delivered, and what persons did with it.

An e-mail's page shows it, and the timeline of its order has it among the order's other entries.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from notifications.states.transitions import DUE_STATES, Status
from runtime.models import AuditRow
from runtime.personal_data import without_addresses

Kind = Literal["change", "event", "email", "attempt", "delivery", "person", "plan"]
Row = Mapping[str, Any]

#: A logged act and an e-mail's `resent_at` less than this apart are one act: one transaction writes both.
SAME_ACT = dt.timedelta(seconds=5)
VERDICTS = {
    "permanent": "refused for good",
    "transient": "not taken",
    "unreachable": "no connection",
    "ambiguous": "the answer was lost, so the provider may have accepted it",
    "throttled": "too fast for the provider",
    "misconfigured": "the provider refuses our account",
    "sender_refused": "the provider refuses the sender",
    "restored": "held after a restore of the database",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One thing that happened, or will happen (`plan`). `by` is the person, token or account that did it."""

    at: dt.datetime
    kind: Kind
    what: str  # a word for programs: paid, created, failed, sent, …
    text: str
    notification_id: uuid.UUID | None = None
    event_id: uuid.UUID | None = None
    provider: str = ""
    by: str = ""


def email_entries(
    email: Row, acts: Collection[AuditRow], *, is_secret: bool = False, is_alone: bool = False
) -> Iterator[TimelineEntry]:
    """Yield the entries of an e-mail. `acts` are the logged ones.

    If it `is_secret`, leave out its address. If it `is_alone`, the entries need not name it.
    """
    id, name = uuid.UUID(str(email["id"])), str(email["event_type"])
    if email.get("shop_copy_of"):
        name += " (shop copy)"
    of_email = "" if is_alone else f"{name}: "

    def entry(at: Any, kind: Kind, what: str, text: str, provider: str = "") -> Iterator[TimelineEntry]:
        if (time := read_time(at)) is not None:
            said = without_addresses(text) if is_secret else text
            yield TimelineEntry(
                at=time, kind=kind, what=what, text=said, notification_id=id, provider=provider
            )

    of = f", a copy of {email['resend_of']}" if email.get("resend_of") else ""
    to = "another address" if is_secret else email["recipient_email"]
    yield from entry(email["created_at"], "email", "created", f"E-mail {name} for {to} saved{of}")
    for error in email["errors"]:
        verdict = str(error.get("outcome", ""))
        provider, words = str(error.get("provider", "")), VERDICTS.get(verdict, verdict)
        text = f"{of_email}{provider or 'no provider'}: {words}: {error.get('text', '')}"
        at = read_time(error.get("at")) or email["created_at"]  # a person may have written the entry
        yield from entry(at, "attempt", verdict, text, provider)
    resent = read_time(email.get("resent_at"))
    act_times = {act.at for act in acts if act.subject_id == str(id)}
    if resent and not any(abs(resent - time) < SAME_ACT for time in act_times):
        yield from entry(resent, "person", "resent", f"{of_email}resend requested")
    by = str(email["provider"] or "")
    accepted = f"{of_email}accepted by {by or 'the provider'}"
    yield from entry(email["sent_at"], "delivery", "sent", accepted, by)
    # Providers report whole seconds. Their time may be before the e-mail was sent or even saved.
    earliest = read_time(email["sent_at"]) or read_time(email["created_at"])
    for what, words in (("delivered", "delivered"), ("bounced", "bounced"), ("complained", "marked as spam")):
        if told := read_time(email.get(f"{what}_at")):
            at = max(told, earliest) if earliest else told
            yield from entry(at, "delivery", what, f"{of_email}{words}", by)
    status, last = str(email["status"]), email["last_error"] or "no reason kept"
    if status in DUE_STATES:
        yield from entry(email["next_attempt_at"], "plan", "next_attempt", f"{of_email}next attempt")
    elif status in (Status.DEAD_LETTERED, Status.SUPPRESSED, Status.DISCARDED):
        words = status.replace("_", " ")
        yield from entry(email["updated_at"], "email", status, f"{of_email}{words}: {last}")


def act_entry(
    act: AuditRow, *, notification_id: uuid.UUID | None, is_for_shop: bool = False
) -> TimelineEntry:
    """Return the entry of a person's logged act. For a shop, leave out what was typed, and by whom."""
    return TimelineEntry(
        at=act.at,
        kind="person",
        what="act",
        text=act.act if is_for_shop else f"{act.act} {act.reason}".rstrip(),
        notification_id=notification_id,
        by="" if is_for_shop else act.who,
    )


def read_time(value: Any) -> dt.datetime | None:
    """Read a time: a datetime, or ISO 8601. Return None for anything else."""
    if isinstance(value, dt.datetime):
        return value
    try:
        return dt.datetime.fromisoformat(str(value))
    except ValueError:
        return None
