"""Record acts: a row of `audit_rows` for each, in its transaction, and a log line after the commit."""

from __future__ import annotations

import dataclasses
import getpass
from typing import Any

import structlog

from runtime.database.transactions import after_commit, require_transaction
from runtime.models import AuditRow
from runtime.personal_data import without_addresses

log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Actor:
    """A person, token or command that acts. A command has no address. Logs have the address's `network`."""

    name: str
    address: str = ""
    network: str = ""


def command_actor() -> Actor:
    """Return the account that runs the present command."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = "unnamed account"
    return Actor(f"{name} (command)")


def act_on_user(user: Any, act: str, *, changes: dict[str, list[Any]] | None = None) -> AuditRow:
    """Return the audit row of an act on a user of the admin."""
    return AuditRow(
        kind=AuditRow.Kind.SETUP,
        act=act,
        changes=changes,
        subject_type=user._meta.label_lower,
        subject_id=str(user.pk),
        subject=user.get_username(),
    )


def record(*rows: AuditRow, by: Actor) -> None:
    """Write acts of one actor, in the caller's transaction, and log each after the commit.

    The log line has no reason: a log keeps what an erasure takes out of the row.
    """
    require_transaction("an audit row")
    for row in rows:
        row.who, row.address = by.name[:200], by.address
        row.act = without_addresses(row.act)
        if row.kind != AuditRow.Kind.SETUP:  # which names users
            row.subject = without_addresses(row.subject)
        row.subject = row.subject[:200]
    AuditRow.objects.bulk_create(rows)

    def tell() -> None:
        for row in rows:
            log.info(
                "act recorded",
                audit_id=str(row.id),
                kind=str(row.kind),
                who=row.who,
                network=by.network,
                source=row.source,
                order_id=str(row.order_id) if row.order_id else None,
                subject_type=row.subject_type,
                subject_id=row.subject_id,
                subject=row.subject,
                act=row.act,
            )

    after_commit(tell)
