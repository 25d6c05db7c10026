"""What the shop knows of a person, and how it forgets them: live rows, detached tables, archives.

A person is an e-mail address, in any case. Called by `manage.py privacy` and the admin. Erasing may be
repeated and killed anywhere: who is being forgotten is recorded first (as a keyed hash and the orders' ids),
and every later step changes only what is not erased yet.
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

from django.conf import settings
from django.db import connections, transaction
from django.db.models.functions import Now

from notifications.models import EmailNotification
from orders.models import Order
from outbox.core.ids import id_time
from outbox.core.partitioned import PartitionedModel
from outbox.core.privacy import ERASED_ADDRESS, address_hash
from outbox.delivery.outcomes import UNFINISHED, Status
from outbox.models import Erasure
from outbox.retention import archive
from outbox.retention import detach as retire
from outbox.retention import rollover as retention
from outbox.retention.detach import Report
from outbox.retention.erasure import erase_rows, scrub_answers
from outbox.retention.partitions import partitioned_models

DIRECT = "direct"
CHUNK = 100
PASSES = 5
#: An erasure waits so long for a rollover that is at the same tables.
PATIENCE = 1800.0


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
    """E-mails to the person are at a provider right now."""


@dataclasses.dataclass(frozen=True, slots=True)
class ErasureReport:
    """What was changed: rows by table, and the archives that are still to be rewritten."""

    counts: dict[str, int]
    archives: list[str]


def export_person(*, email: str, report: Report) -> dict[str, Any]:
    """This function will collect everything that is stored of a person, as one JSON-ready document.

    Rows of live tables, detached tables and archives; each says in `stored_in` where it was. Archives are
    read from end to end: minutes for each year.
    """
    orders = list(Order.objects.filter(email__iexact=email).order_by("id").values())
    owners = {order["id"] for order in orders} | _owners_by_mail(email)
    document: dict[str, Any] = {"email": email, "orders": orders}
    for model in partitioned_models():
        document[model._meta.db_table] = list(_rows_of(model, owners, report))
    return document


def erase_person(
    *, email: str, report: Report, force: bool = False, archives_now: bool = False
) -> ErasureReport:
    """This function will forget a person: addresses, names, subjects, bodies, and what errors and stored
    answers repeat of them. Audit columns stay.

    With `force` also when something is in flight: unsent e-mails are then given up. Archives are left to
    the next month's first rollover unless `archives_now`. Raises `InFlight` having changed nothing,
    `StillSending` and `Busy` when it has to be run again.
    """
    erasure = Erasure.objects.filter(address_hash=address_hash(email)).first()
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as locks:
        for model in partitioned_models():
            locks.enter_context(retire.alone(model=model, using=DIRECT, patience=PATIENCE))
        for number in range(PASSES):
            known = _ids(erasure)
            owners = known | _owners(email)
            if not owners or (number and owners == known):
                break
            if not force:
                _check_not_in_flight(owners)
            erasure = _record(email, erasure, owners)
            report("recorded", orders=len(owners))
            counts.update(_erase_everywhere(email, owners, report))
        if erasure is None:
            return ErasureReport({}, [])
        counts.update(_erase_late(_ids(erasure), report))
        totals = Counter(erasure.counts) + counts
        Erasure.objects.filter(id=erasure.id).update(counts=dict(totals), finished_at=Now())
        if archives_now:
            _rewrite_archives(erasure, counts, report)
    erasure.refresh_from_db()
    return ErasureReport(dict(counts), erasure.archives)


def _owners(email: str) -> set[uuid.UUID]:
    return set(Order.objects.filter(email__iexact=email).values_list("id", flat=True)) | _owners_by_mail(
        email
    )


def _owners_by_mail(email: str) -> set[uuid.UUID]:
    spellings = {email, email.lower()}
    return set(
        EmailNotification.objects.filter(recipient_email__in=spellings).values_list("order_id", flat=True)
    )


def _ids(erasure: Erasure | None) -> set[uuid.UUID]:
    return {uuid.UUID(id) for id in erasure.owner_ids} if erasure else set()


def _check_not_in_flight(owners: Iterable[uuid.UUID]) -> None:
    orders = Order.objects.in_flight().filter(id__in=owners).exclude(email=ERASED_ADDRESS)
    mails = EmailNotification.objects.filter(order_id__in=owners, status__in=UNFINISHED)
    found = [list(rows.order_by("id").values_list("id", flat=True)[:20]) for rows in (orders, mails)]
    if any(found):
        raise InFlight(*found)


def _record(email: str, erasure: Erasure | None, owners: set[uuid.UUID]) -> Erasure:
    """Write down who is to be forgotten, and in which archives, before anything that would find them goes."""
    new = owners - _ids(erasure)
    waiting = set(erasure.archives) if erasure else set()
    if new:
        first = min(map(id_time, new))
        for model in partitioned_models():
            waiting |= {record.name for record in retention.records(table=model._meta.db_table, since=first)}
    values = {"owner_ids": sorted(map(str, owners)), "archives": sorted(waiting), "finished_at": None}
    recorded, _ = Erasure.objects.update_or_create(address_hash=address_hash(email), defaults=values)
    return recorded


def _erase_everywhere(email: str, owners: set[uuid.UUID], report: Report) -> Counter[str]:
    counts: Counter[str] = Counter()
    for chunk in _chunks(owners):
        counts.update(_erase_live(chunk))
        report("erased", orders=counts["orders"], emails=counts["email_notifications"])
    for model in partitioned_models():
        for name in _side_tables(model):
            counts[model._meta.db_table] += erase_rows(
                model=model, owner_ids=list(owners), using=DIRECT, table=name
            )
            report("erased", partition=name)
    counts["idempotency_keys"] += scrub_answers(owner_ids=owners, addresses=[email.strip()])
    return counts


def _erase_live(owners: list[uuid.UUID]) -> Counter[str]:
    """One transaction, which locks as a change of the order does: the order first, then its e-mails."""
    with transaction.atomic():
        orders = Order.objects.filter(id__in=owners).order_by("id").select_for_update()
        mine = [order.id for order in orders if order.email != ERASED_ADDRESS]
        mails = EmailNotification.objects.filter(order_id__in=owners, status__in=UNFINISHED)
        EmailNotification.objects.withdraw(mails.values_list("id", flat=True))
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
    """Erase the e-mails that were being sent, once they are not."""
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
    """Partitions that are not attached, and tables that archives were restored into."""
    parts = retire.tables(model=model, using=DIRECT)
    restored = [
        record.name + archive.RESTORED
        for record in retention.records(
            table=model._meta.db_table, since=dt.datetime(1970, 1, 1, tzinfo=dt.UTC), using=DIRECT
        )
        if retire.exists(name=record.name + archive.RESTORED, using=DIRECT)
    ]
    return [part.name for part in parts if part.state != "attached"] + restored


def _rewrite_archives(erasure: Erasure, counts: Counter[str], report: Report) -> None:
    for model in partitioned_models():
        table = model._meta.db_table
        for record in retention.records(
            table=table, since=dt.datetime(1970, 1, 1, tzinfo=dt.UTC), using=DIRECT
        ):
            counts[f"{table} (archived)"] += retention.rewrite_archive(
                model=model, record=record, using=DIRECT, report=report
            )


def _rows_of(model: PartitionedModel, owners: set[uuid.UUID], report: Report) -> Iterator[dict[str, Any]]:
    if not owners:
        return
    table, owner = model._meta.db_table, model.retention.owner_column
    seen = set()
    for name in [table, *_side_tables(model)]:
        report("reading", table=name)
        for row in _select(name, owner, owners, using="default" if name == table else DIRECT):
            seen.add(str(row["id"]))
            yield {"stored_in": name, **row}
    named = {str(id) for id in owners}
    for record in retention.records(table=table, since=min(map(id_time, owners)), using=DIRECT):
        report("reading", archive=record.name)
        for found in archive.find(record=record, wanted=lambda row: row[owner] in named):
            if found["id"] not in seen:
                yield {"stored_in": f"archive {record.name}", **found}


def _select(table: str, owner: str, owners: set[uuid.UUID], *, using: str) -> Iterator[dict[str, Any]]:
    quote = connections[using].ops.quote_name
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT * FROM {quote(table)} WHERE {quote(owner)} = ANY(%s) ORDER BY id",  # noqa: S608
            [list(owners)],
        )
        names = [column.name for column in cursor.description or ()]
        for row in cursor.fetchall():
            yield dict(zip(names, row, strict=True))


def _some(what: str, ids: Sequence[uuid.UUID]) -> str:
    if not ids:
        return ""
    listed = ", ".join(map(str, ids[:3])) + (" …" if len(ids) > 3 else "")
    return f"{len(ids)} {what}{'s are' if len(ids) > 1 else ' is'} ({listed})"
