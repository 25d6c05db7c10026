"""Addresses that are not written to: they bounced for good, complained, or a person said so.

Kept as keyed hashes (PRIVACY_KEY), never in clear. Filled by notifications.webhooks and the admin; read by
notifications.delivery between claim and send, so that a suppressed e-mail is a row that one can see.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from notifications.models import EmailNotification, Suppression
from outbox.core.privacy import ERASED_ADDRESS, address_hash


class Cause(NamedTuple):
    """Why an address is to be suppressed, and by which e-mail."""

    address: str
    reason: Suppression.Reason
    provider: str = ""
    notification_id: uuid.UUID | None = None


def suppress(causes: Iterable[Cause]) -> int:
    """This function will suppress addresses in one statement; those that are so already stay as they are."""
    rows = {
        address_hash(cause.address): Suppression(
            address_hash=address_hash(cause.address),
            reason=cause.reason,
            provider=cause.provider,
            notification_id=cause.notification_id,
        )
        for cause in causes
        if cause.address != ERASED_ADDRESS
    }
    if not rows:
        return 0
    ordered = [rows[key] for key in sorted(rows)]  # one lock order
    return len(Suppression.objects.bulk_create(ordered, ignore_conflicts=True))


def suppressed_among(mails: Sequence[EmailNotification]) -> Mapping[uuid.UUID, str]:
    """This function will say which of these e-mails' addresses are suppressed, and why: one statement."""
    hashes = {mail.id: address_hash(mail.recipient_email) for mail in mails}
    found = dict(
        Suppression.objects.filter(address_hash__in=set(hashes.values())).values_list(
            "address_hash", "reason"
        )
    )
    reasons = {id: Suppression.Reason(found[hash]).label for id, hash in hashes.items() if hash in found}
    erased = {mail.id: "its data was erased" for mail in mails if mail.recipient_email == ERASED_ADDRESS}
    return reasons | erased


def of_address(address: str) -> Suppression | None:
    """This function will give the suppression of an address, in any case, or None."""
    return Suppression.objects.filter(address_hash=address_hash(address)).first()
