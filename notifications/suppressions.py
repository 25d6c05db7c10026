"""Suppressed addresses: they bounced, their owner complained, or a person suppressed them.

Only keyed hashes (PRIVACY_KEY) of them are stored. Delivery checks them between claim and send, and a
suppressed e-mail stays visible as a row.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from notifications.models import EmailNotification, Suppression
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


def suppress_refused(settled: Iterable[EmailNotification]) -> None:
    """Suppress the addresses of settled e-mails to which the provider no longer sends."""
    bounced = Suppression.Reason.HARD_BOUNCE
    suppress(
        SuppressionReason(mail.recipient_email, bounced, mail.outcome.provider, mail.id)
        for mail in settled
        if mail.outcome and mail.outcome.has_bounced_before
    )


def suppressed_among(mails: Sequence[EmailNotification]) -> Mapping[uuid.UUID, str]:
    """Return the reasons of those e-mails whose address is suppressed or erased, in one statement."""
    hashes = {mail.id: address_hash(mail.recipient_email) for mail in mails}
    reason_by_hash = dict(
        Suppression.objects.filter(address_hash__in=set(hashes.values())).values_list(
            "address_hash", "reason"
        )
    )
    reasons = {
        id: Suppression.Reason(reason_by_hash[hash]).label
        for id, hash in hashes.items()
        if hash in reason_by_hash
    }
    erased = {mail.id: "its data was erased" for mail in mails if mail.recipient_email == ERASED_ADDRESS}
    return reasons | erased


def suppression_of(recipient_email: str) -> Suppression | None:
    """Return the suppression of an address in any case, or None."""
    return Suppression.objects.filter(address_hash=address_hash(recipient_email)).first()
