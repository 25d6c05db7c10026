"""Suppressed addresses: they bounced, their owner complained, or a person suppressed them.

Only keyed hashes (PRIVACY_KEY) of them are stored. Delivery checks them between claim and send, so that a
suppressed e-mail stays visible as a row.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from notifications.log import EmailChange
from notifications.models import EmailNotification, Suppression
from notifications.states.claimed import Claimed
from runtime.personal_data import ERASED_ADDRESS, address_hash

#: The reason that a shop reads of a suppression that another shop's e-mail caused.
ELSEWHERE = "another shop must not write to it"


class SuppressionReason(NamedTuple):
    """Why to suppress an address, and the e-mail that gave the reason."""

    recipient_email: str
    reason: Suppression.Reason
    provider: str = ""
    notification_id: uuid.UUID | None = None
    source: str | None = None  # of that e-mail


def suppress(causes: Iterable[SuppressionReason]) -> None:
    """Suppress addresses in one statement. Addresses that are suppressed already keep their reason."""
    rows = {
        address_hash(cause.recipient_email): Suppression(
            address_hash=address_hash(cause.recipient_email),
            reason=cause.reason,
            provider=cause.provider,
            notification_id=cause.notification_id,
            source=cause.source,
        )
        for cause in causes
        if cause.recipient_email != ERASED_ADDRESS
    }
    ordered = [rows[key] for key in sorted(rows)]  # concurrent inserts in one order cannot deadlock
    Suppression.objects.bulk_create(ordered, ignore_conflicts=True)


def suppress_refused(changes: Iterable[EmailChange]) -> None:
    """Suppress the addresses of settled e-mails to which the provider no longer sends."""
    suppress(
        SuppressionReason(
            change.recipient_email,
            Suppression.Reason.HARD_BOUNCE,
            change.outcome.provider,
            change.id,
            change.source,
        )
        for change in changes
        if change.outcome and change.outcome.has_bounced_before
    )


def suppressed_among(emails: Sequence[EmailNotification | Claimed]) -> Mapping[uuid.UUID, str]:
    """Return the reasons of those e-mails whose address is suppressed or erased.

    A shop's users read the reason. If an e-mail of another shop caused the suppression, it says no more. It
    takes one statement, and another one if an e-mail caused a suppression of these addresses.
    """
    hits = suppressions_of(emails)
    caused = [id for id, row in hits.items() if row.notification_id]
    sources = dict(EmailNotification.objects.filter(id__in=caused).values_list("id", "source"))

    def reason(id: uuid.UUID, row: Suppression) -> str:
        is_elsewhere = row.notification_id and row.source != sources.get(id)
        return ELSEWHERE if is_elsewhere else row.get_reason_display()

    suppressed = {id: reason(id, row) for id, row in hits.items()}
    erased = {email.id: "its data was erased" for email in emails if email.recipient_email == ERASED_ADDRESS}
    return suppressed | erased


def suppressions_of(emails: Iterable[EmailNotification | Claimed]) -> dict[uuid.UUID, Suppression]:
    """Return the suppressions of the e-mails' addresses by the e-mails' ids, in one statement."""
    hashes = {email.id: address_hash(email.recipient_email) for email in emails}
    rows = Suppression.objects.filter(address_hash__in=set(hashes.values()))
    by_hash = {row.address_hash: row for row in rows}
    return {id: by_hash[hash] for id, hash in hashes.items() if hash in by_hash}


def suppression_of(recipient_email: str) -> Suppression | None:
    """Return the suppression of an address in any case, or None."""
    return Suppression.objects.filter(address_hash=address_hash(recipient_email)).first()
