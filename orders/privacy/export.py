"""Export a person's data: live rows, detached tables, cold files, stored answers, dead events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import structlog

from orders.models import OrderRefund, Shipment, UnexpectedPayment
from orders.privacy.persons import DIRECT, check_address, orders_of_person
from retention.cold_files.archive import cold_partitions
from retention.models import DetachedPartition
from retention.partitioned import PartitionedModel, partitioned_models
from retention.partitions.locks import Report, no_statement_timeout
from retention.person import Person
from retention.rows_of_person import cold_rows, side_tables, table_rows
from retention.texts_of_person import export_texts
from runtime.binding import UNBOUND, Binding
from runtime.personal_data import address_hash

log = structlog.get_logger(__name__)

LeftOut = list[dict[str, str]]


def export_person(*, email: str, report: Report, shops: Binding = UNBOUND) -> dict[str, Any]:
    """Return everything that is stored of a person, or of the person's orders of `shops`, as one document.

    `orders`, `refunds` and `shipments` have rows of the orders, and each partitioned table has a list of
    rows, which name their table or cold file in `stored_in`. Cold files are read from end to end.
    `cold_files_left_out` names those that cannot be read here. If the caller is bound, `only_of_shops` names
    the shops. Raise `NoPerson`.
    """
    email = check_address(email)
    with no_statement_timeout(using="default"):
        orders = list(shops.only(orders_of_person(email)).order_by("created_at", "id").values())
    report("read", table="orders", rows=len(orders))
    person = Person.of(email, frozenset(order["id"] for order in orders))
    document: dict[str, Any] = {"email": email}
    if not shops.is_unbound:
        document["only_of_shops"] = shops.words
    document["orders"] = orders

    for name, rows in (
        ("refunds", OrderRefund.objects),
        ("unexpected_payments", UnexpectedPayment.objects),
        ("shipments", Shipment.objects),
    ):
        document[name] = list(rows.filter(order_id__in=person.owner_ids).order_by("order_id", "id").values())
    left_out: LeftOut = []
    for model in partitioned_models():
        rows_of_person = _export_rows(model, person, report, left_out)
        document[model._meta.db_table] = list(_only(shops, person, rows_of_person))
    document["cold_files_left_out"] = left_out
    document |= {
        table: list(_only(shops, person, texts)) for table, texts in export_texts(person=person).items()
    }
    names = [part["cold_file"] for part in left_out]
    log.info("person exported", address_hash=address_hash(email), left_out=names)
    return document


def _only(shops: Binding, person: Person, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the shops: those with their source or, in a table without one, of their orders."""
    owners = {str(id) for id in person.owner_ids}
    for row in rows:
        source, order_id = row.get("source"), row.get("order_id") or row.get("aggregate_id")
        if shops.is_unbound or (str(order_id) in owners if source is None else shops.has(source)):
            yield row


def _export_rows(
    model: PartitionedModel, person: Person, report: Report, left_out: LeftOut
) -> Iterator[dict[str, Any]]:
    for place, row in _rows(model, person, report, left_out):
        # An e-mail to the person is exported unchanged. Other rows may name somebody else.
        shown = row if model.retention.address_columns else person.only_their_address(row)
        yield {"stored_in": place, **shown}


def _rows(
    model: PartitionedModel, person: Person, report: Report, left_out: LeftOut
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each of the person's rows after the name of its table or cold file.

    Add the cold files to `left_out` that cannot be read.
    """
    table = model._meta.db_table
    seen: set[str] = set()
    for name in [table, *side_tables(model=model, using=DIRECT)]:
        using = "default" if name == table else DIRECT
        rows = list(table_rows(model=model, person=person, using=using, table=name))
        seen.update(str(row["id"]) for row in rows)
        report("read", table=name, rows=len(rows))
        yield from ((name, row) for row in rows)
    for record in cold_partitions(table=table, using=DIRECT):
        archived = [row for row in _archived(model, record, person, left_out) if row["id"] not in seen]
        report("read", cold_file=record.name, rows=len(archived))
        yield from ((f"cold file {record.name}", {**row}) for row in archived)


def _archived(
    model: PartitionedModel, record: DetachedPartition, person: Person, left_out: LeftOut
) -> list[dict[str, str]]:
    try:
        return list(cold_rows(model=model, record=record, hashes=[address_hash(person.address)]))
    except Exception as error:  # noqa: BLE001 - no or a damaged file, and a store has errors of its own
        if record.dropped_at is not None:  # else the detached table has all of its rows
            left_out.append({"cold_file": record.name, "reason": type(error).__name__})
        return []
