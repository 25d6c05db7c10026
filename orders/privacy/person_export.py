"""Export a person's data: live rows, detached tables, archives, stored answers, dead events.

orders.privacy.persons decides which rows belong to a person. Called by `manage.py privacy` and the admin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import structlog

from orders.privacy.persons import DIRECT, check_address, first_row, own_orders
from outbox.database.ids import EPOCH
from outbox.database.partitioned import PartitionedModel
from outbox.models import DetachedPartition
from outbox.privacy import address_hash
from outbox.retention.archives.archive import archived_partitions
from outbox.retention.partitions.locks import Report
from outbox.retention.partitions.partitions import partitioned_models
from outbox.retention.people.erasure import archived_rows, side_tables, table_rows
from outbox.retention.people.stored_answers import export_answers
from outbox.retention.person import Person

log = structlog.get_logger(__name__)

LeftOut = list[dict[str, str]]


def export_person(*, email: str, report: Report, by_index_only: bool = False) -> dict[str, Any]:
    """Return everything that is stored of a person as one document.

    `orders` has rows of the orders, and each partitioned table has a list of rows, which name their table or
    archive in `stored_in`. Archives without an index are read from end to end. With `by_index_only` they and
    those that cannot be read are left out, and `archives_left_out` names them. Raise `NoPerson`.
    """
    email = check_address(email)
    orders = list(own_orders(email).order_by("created_at", "id").values())
    person = Person.of(email, frozenset(order["id"] for order in orders))
    document: dict[str, Any] = {"email": email, "orders": orders}
    left_out: LeftOut | None = [] if by_index_only else None
    for model in partitioned_models():
        document[model._meta.db_table] = list(_export_rows(model, person, report, left_out))
    if left_out is not None:
        document["archives_left_out"] = left_out
    document |= export_answers(person=person)
    names = [one["archive"] for one in left_out or ()]
    log.info("person exported", address_hash=address_hash(email), left_out=names)
    return document


def _export_rows(
    model: PartitionedModel, person: Person, report: Report, left_out: LeftOut | None
) -> Iterator[dict[str, Any]]:
    for place, row in _rows(model, person, report, left_out):
        # Export an e-mail unchanged, because it was sent to the person. Other rows may name somebody else.
        shown = row if model.retention.address_column else person.only_their_address(row)
        yield {"stored_in": place, **shown}


def _rows(
    model: PartitionedModel, person: Person, report: Report, left_out: LeftOut | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each of the person's rows after the name of its table or archive.

    With a list in `left_out`, add the archives to it that cannot be read by their index.
    """
    table = model._meta.db_table
    seen = set()
    for name in [table, *side_tables(model=model, using=DIRECT)]:
        report("reading", table=name)
        using = "default" if name == table else DIRECT
        for row in table_rows(model=model, person=person, using=using, table=name):
            seen.add(str(row["id"]))
            yield name, row
    if model.retention.address_column:
        since = EPOCH  # a corrected order does not show its earlier e-mails
    elif person.owner_ids:
        since = first_row(person.owner_ids)
    else:
        return
    for record in archived_partitions(table=table, since=since, using=DIRECT):
        report("reading", archive=record.name)
        if left_out is None:
            archived = archived_rows(model=model, record=record, person=person, export=True)
        else:
            archived = _indexed_rows(model, record, person, left_out)
        for found in archived:
            if found["id"] not in seen:
                yield f"archive {record.name}", {**found}


def _indexed_rows(
    model: PartitionedModel, record: DetachedPartition, person: Person, left_out: LeftOut
) -> Iterable[dict[str, str]]:
    try:
        return list(archived_rows(model=model, record=record, person=person, export=True, by_index_only=True))
    except Exception as error:  # noqa: BLE001 - no index, a damaged file, and a store has errors of its own
        if record.dropped_at is not None:  # else the detached table has all of its rows
            left_out.append(
                {
                    "archive": record.name,
                    "since": record.since.isoformat(),
                    "until": record.until.isoformat(),
                    "reason": type(error).__name__,
                }
            )
        return []
