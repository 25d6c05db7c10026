"""Suppressed addresses: they bounced, their owner complained, or an operator suppressed them.

They are kept as keyed hashes (PRIVACY_KEY), never in clear. Webhooks and the admin add them. Delivery looks
them up between claim and send, so that a suppressed e-mail stays visible as a row.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from notifications.models import EmailNotification, Suppression
from outbox.privacy import ERASED_ADDRESS, address_hash


class SuppressionReason(NamedTuple):
    """Why an address is to be suppressed, and which e-mail gave the reason."""

    recipient_email: str
    reason: Suppression.Reason
    provider: str = ""
    notification_id: uuid.UUID | None = None


def suppress(causes: Iterable[SuppressionReason]) -> None:
    """Suppress addresses in one statement. Those that are suppressed already keep their reason."""
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
    ordered = [rows[key] for key in sorted(rows)]  # one lock order
    Suppression.objects.bulk_create(ordered, ignore_conflicts=True)


def suppressed_among(mails: Sequence[EmailNotification]) -> Mapping[uuid.UUID, str]:
    """Return the reason for each of these e-mails whose address is suppressed, in one statement."""
    hashes = {mail.id: address_hash(mail.recipient_email) for mail in mails}
    found = dict(
        Suppression.objects.filter(address_hash__in=set(hashes.values())).values_list(
            "address_hash", "reason"
        )
    )
    reasons = {id: Suppression.Reason(found[hash]).label for id, hash in hashes.items() if hash in found}
    erased = {mail.id: "its data was erased" for mail in mails if mail.recipient_email == ERASED_ADDRESS}
    return reasons | erased


def suppression_of(recipient_email: str) -> Suppression | None:
    """Return the suppression of an address, however it is capitalised, or None."""
    return Suppression.objects.filter(address_hash=address_hash(recipient_email)).first()
