"""Exports and erases a person's data: live rows, detached tables, archives, stored answers, dead events.

A person is an e-mail address, in any case. Called by `manage.py privacy` and the admin. An erasure may be
repeated, and killed at any point: the person (a keyed hash and the orders' ids) is recorded first, and every
later step changes only rows that are not erased yet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from notifications.models import EmailNotification
from notifications.services import withdraw_emails
from orders.models import Order
from outbox.core.ids import id_time
from outbox.core.partitioned import PartitionedModel
from outbox.core.privacy import ERASED_ADDRESS, address_hash
from outbox.delivery.outcomes import UNFINISHED, Status
from outbox.models import Erasure
from outbox.retention.archive import archived_partitions
from outbox.retention.catalogue import partition_tables, table_exists
from outbox.retention.erasure import (
    Person,
    archived_rows,
    erase_quotes,
    erase_rows,
    rewrite_archive,
    table_rows,
)
from outbox.retention.locks import Report, exclusive_lock
from outbox.retention.partitions import partitioned_models, require_owner
from outbox.retention.restore import RESTORED
from outbox.retention.stored_answers import erase_answers, export_answers

log = structlog.get_logger(__name__)

#: The app role reads and writes rows of every table; only archives are rewritten by the tables' owner.
DIRECT, OWNER = "direct", "owner"
CHUNK = 100
PASSES = 5
#: Seconds that an erasure waits for a rollover of the same tables.
PATIENCE = 1800.0
#: How far another system's clock may be ahead of the database's.
CLOCKS_APART = dt.timedelta(days=1)
EARLIEST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class InFlight(RuntimeError):
    """The person has orders or e-mails that are not finished."""

    def __init__(self, orders: Sequence[uuid.UUID], mails: Sequence[uuid.UUID]) -> None:
        self.orders, self.mails = orders, mails
        found = [_some("order", orders), _some("e-mail", mails)]
        super().__init__(
            f"Not erased: {' and '.join(part for part in found if part)} not finished, and their customer"
            " would get no further e-mail. Finish them first, or force it."
        )


class StillSending(RuntimeError):
    """A provider is being sent e-mails to the person right now."""


@dataclasses.dataclass(frozen=True, slots=True)
class ErasureReport:
    """What was changed: rows by table, and the archives that are still to be rewritten."""

    counts: dict[str, int]
    archives: list[str]


def export_person(*, email: str, report: Report) -> dict[str, Any]:
    """Collect everything that is stored of a person, as one JSON-ready document.

    Rows of live tables, detached tables and archives say in `stored_in` where they were. Archives without an
    index are read from end to end.
    """
    orders = list(Order.objects.filter(email__iexact=email).order_by("id").values())
    owners = {order["id"] for order in orders} | _owners_by_mail(email)
    person = _person(email, owners)
    document: dict[str, Any] = {"email": email, "orders": orders}
    for model in partitioned_models():
        document[model._meta.db_table] = list(_export_rows(model, person, report))
    return document | export_answers(owner_ids=owners, addresses=[email.strip()])


def erase_person(
    *, email: str, report: Report, force: bool = False, archives_now: bool = False
) -> ErasureReport:
    """Erase a person: addresses, names, subjects, bodies, and what errors and stored answers repeat of them.

    Audit columns stay. With `force` orders and e-mails in flight are no obstacle: unsent e-mails are then
    given up. Archives wait for the next month's first rollover unless `archives_now`. Raise `InFlight` or
    `NotOwner` having changed nothing, `StillSending` and `AlreadyRunning` when it has to be run again.
    """
    if archives_now:
        require_owner(using=OWNER)  # it restores archives into tables
    erasure = Erasure.objects.filter(address_hash=address_hash(email)).first()
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as locks:
        for model in partitioned_models():
            locks.enter_context(exclusive_lock(model=model, using=DIRECT, patience=PATIENCE))
        for number in range(PASSES):
            known = _ids(erasure)
            owners = known | _owners(email)
            if number and owners == known:
                break
            if not force:
                _check_not_in_flight(owners)
            if owners:
                erasure = _record(email, erasure, owners)
                report("recorded", orders=len(owners))
            counts.update(_erase_everywhere(email, owners, report))
        if erasure is not None:
            counts.update(_erase_late(_ids(erasure), report))
            totals = Counter(erasure.counts) + counts
            Erasure.objects.filter(id=erasure.id).update(counts=dict(totals), finished_at=Now())
            if archives_now:
                _rewrite_archives(erasure, counts, report)
            erasure.refresh_from_db()
    changed = {table: count for table, count in counts.items() if count or erasure}
    archives = erasure.archives if erasure else []
    if erasure or changed:
        log.info("person erased", address_hash=address_hash(email), changed=changed, archives=archives)
    return ErasureReport(changed, archives)


def _person(email: str, owners: Iterable[uuid.UUID]) -> Person:
    return Person(frozenset(owners), frozenset([address_hash(email)]))


def _owners(email: str) -> set[uuid.UUID]:
    orders = Order.objects.filter(email__iexact=email).values_list("id", flat=True)
    return set(orders) | _owners_by_mail(email)


def _owners_by_mail(email: str) -> set[uuid.UUID]:
    mails = EmailNotification.objects.filter(recipient_email__in={email, email.lower()})
    return set(mails.values_list("order_id", flat=True))


def _ids(erasure: Erasure | None) -> set[uuid.UUID]:
    return {uuid.UUID(id) for id in erasure.owner_ids} if erasure else set()


def _check_not_in_flight(owners: Iterable[uuid.UUID]) -> None:
    orders = Order.objects.in_flight().filter(id__in=owners).exclude(email=ERASED_ADDRESS)
    mails = EmailNotification.objects.filter(order_id__in=owners, status__in=UNFINISHED)
    found = [list(rows.order_by("id").values_list("id", flat=True)[:20]) for rows in (orders, mails)]
    if any(found):
        raise InFlight(*found)


def _first_row(owners: Iterable[uuid.UUID]) -> dt.datetime:
    """Return a time before every row of these orders. The id of another system's order tells none."""
    ids = set(owners)
    external = Order.objects.filter(id__in=ids).exclude(source="")
    placed = dict(external.values_list("id", "created_at"))
    return min(placed[id] - CLOCKS_APART if id in placed else id_time(id) for id in ids)


def _record(email: str, erasure: Erasure | None, owners: set[uuid.UUID]) -> Erasure:
    """Record the person and the archives, before the rows that would find them are erased."""
    new = owners - _ids(erasure)
    waiting = set(erasure.archives) if erasure else set()
    if new:
        first = _first_row(new)
        for model in partitioned_models():
            found = archived_partitions(table=model._meta.db_table, since=first, using=DIRECT)
            waiting |= {record.name for record in found}
    values = {"owner_ids": sorted(map(str, owners)), "archives": sorted(waiting), "finished_at": None}
    recorded, _ = Erasure.objects.update_or_create(address_hash=address_hash(email), defaults=values)
    return recorded


def _erase_everywhere(email: str, owners: set[uuid.UUID], report: Report) -> Counter[str]:
    counts: Counter[str] = Counter()
    for chunk in _chunks(owners):
        counts.update(_erase_live(chunk))
        report("erased", orders=counts["orders"], emails=counts["email_notifications"])
    person = _person(email, owners)
    for model in partitioned_models():
        counts[model._meta.db_table] += erase_quotes(model=model, person=person, using="default")
        for name in _side_tables(model):
            counts[model._meta.db_table] += erase_rows(
                model=model, owner_ids=list(owners), using=DIRECT, table=name
            ) + erase_quotes(model=model, person=person, using=DIRECT, table=name)
            report("erased", partition=name)
    counts.update(erase_answers(owner_ids=owners, addresses=[email.strip()]))
    return counts


def _erase_live(owners: list[uuid.UUID]) -> Counter[str]:
    """Erase in one transaction, which locks as a change of the order does: the order, then its e-mails."""
    with transaction.atomic():
        orders = Order.objects.filter(id__in=owners).order_by("id").select_for_update()
        mine = [order.id for order in orders if order.email != ERASED_ADDRESS]
        withdraw_emails(order_ids=owners)
        counts = Counter(
            {
                model._meta.db_table: erase_rows(model=model, owner_ids=owners, using="default")
                for model in partitioned_models()
            }
        )
        counts["orders"] = Order.objects.filter(id__in=mine).update(
            email=ERASED_ADDRESS, name="", updated_at=Now()
        )
    return counts


def _erase_late(owners: set[uuid.UUID], report: Report) -> Counter[str]:
    """Wait until the e-mails that were being sent are settled, and erase them."""
    deadline = time.monotonic() + settings.EMAIL_CONNECT_TIMEOUT + settings.EMAIL_READ_TIMEOUT + 5
    sending = EmailNotification.objects.filter(order_id__in=owners, status=Status.PROCESSING)
    counts: Counter[str] = Counter()
    while left := sending.exclude(recipient_email=ERASED_ADDRESS).count():
        report("waiting", emails=left)
        if time.monotonic() > deadline:
            raise StillSending(f"{left} e-mails are being sent right now. Run it again in a few minutes.")
        time.sleep(0.5)
    for chunk in _chunks(owners):
        counts.update(_erase_live(chunk))
    return counts


def _chunks(owners: set[uuid.UUID]) -> Iterator[list[uuid.UUID]]:
    ordered = sorted(owners)
    return (ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK))


def _side_tables(model: PartitionedModel) -> list[str]:
    """List partitions that are not attached, and tables that archives were restored into."""
    tables = partition_tables(model=model, using=DIRECT)
    archived = archived_partitions(table=model._meta.db_table, since=EARLIEST, using=DIRECT)
    restored = [record.name + RESTORED for record in archived]
    return [table.name for table in tables if table.state != "attached"] + [
        name for name in restored if table_exists(name=name, using=DIRECT)
    ]


def _rewrite_archives(erasure: Erasure, counts: Counter[str], report: Report) -> None:
    for model in partitioned_models():
        table = model._meta.db_table
        for record in archived_partitions(table=table, since=EARLIEST, using=OWNER):
            counts[f"{table} (archived)"] += rewrite_archive(
                model=model, record=record, using=OWNER, report=report
            )


def _export_rows(model: PartitionedModel, person: Person, report: Report) -> Iterator[dict[str, Any]]:
    table = model._meta.db_table
    seen = set()
    for name in [table, *_side_tables(model)]:
        report("reading", table=name)
        using = "default" if name == table else DIRECT
        for row in table_rows(model=model, person=person, using=using, table=name):
            seen.add(str(row["id"]))
            yield {"stored_in": name, **row}
    if not person.owner_ids:
        return
    since = _first_row(person.owner_ids)
    for record in archived_partitions(table=table, since=since, using=DIRECT):
        report("reading", archive=record.name)
        for found in archived_rows(model=model, record=record, person=person, indexed=True):
            if found["id"] not in seen:
                yield {"stored_in": f"archive {record.name}", **found}


def _some(what: str, ids: Sequence[uuid.UUID]) -> str:
    if not ids:
        return ""
    listed = ", ".join(map(str, ids[:3])) + (" …" if len(ids) > 3 else "")
    return f"{len(ids)} {what}{'s are' if len(ids) > 1 else ' is'} ({listed})"
