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


class SuppressionReason(NamedTuple):
    """Why to suppress an address, and the e-mail that gave the reason."""

    recipient_email: str
    reason: Suppression.Reason
    provider: str = ""
    notification_id: uuid.UUID | None = None


def suppress(causes: Iterable[SuppressionReason]) -> None:
    """Suppress addresses in one statement. Addresses that are suppressed already keep their reason."""
    rows = {
        address_hash(cause.recipient_email): Suppression(
            address_hash=address_hash(cause.recipient_email),
            reason=cause.reason,
            provider=cause.provider,
            notification_id=cause.notification_id,
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
            change.recipient_email, Suppression.Reason.HARD_BOUNCE, change.outcome.provider, change.id
        )
        for change in changes
        if change.outcome and change.outcome.has_bounced_before
    )


def suppressed_among(emails: Sequence[EmailNotification | Claimed]) -> Mapping[uuid.UUID, str]:
    """Return the reasons of those e-mails whose address is suppressed or erased, in one statement."""
    hashes = {email.id: address_hash(email.recipient_email) for email in emails}
    rows = Suppression.objects.filter(address_hash__in=set(hashes.values()))
    reasons = dict(rows.values_list("address_hash", "reason"))
    suppressed = {
        id: Suppression.Reason(reasons[hash]).label for id, hash in hashes.items() if hash in reasons
    }
    erased = {email.id: "its data was erased" for email in emails if email.recipient_email == ERASED_ADDRESS}
    return suppressed | erased


def suppression_of(recipient_email: str) -> Suppression | None:
    """Return the suppression of an address in any case, or None."""
    return Suppression.objects.filter(address_hash=address_hash(recipient_email)).first()
