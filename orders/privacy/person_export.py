"""Export a person's data: live rows, detached tables, archives, stored answers, dead events.

orders.privacy.persons decides which rows belong to a person. Called by `manage.py privacy` and the admin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog

from orders.privacy.persons import DIRECT, check_address, own_orders
from outbox.database.partitioned import PartitionedModel
from outbox.privacy import address_hash
from outbox.retention.archives.archive import archived_partitions
from outbox.retention.partitions.locks import Report
from outbox.retention.partitions.partitions import partitioned_models
from outbox.retention.people.erasure import archived_rows, side_tables, table_rows
from outbox.retention.people.stored_answers import export_answers
from outbox.retention.person import Person

log = structlog.get_logger(__name__)


def export_person(*, email: str, report: Report, archives: bool = True) -> dict[str, Any]:
    """Return everything that is stored of a person as one document.

    `orders` has rows of the orders, and each partitioned table has a list of rows, which name their table or
    archive in `stored_in`. Archives are read from end to end. Without `archives`, those of dropped tables are
    left out, and `archives_left_out` names them. Raise `NoPerson`.
    """
    email = check_address(email)
    orders = list(own_orders(email).order_by("created_at", "id").values())
    person = Person.of(email, frozenset(order["id"] for order in orders))
    document: dict[str, Any] = {"email": email, "orders": orders}
    for model in partitioned_models():
        document[model._meta.db_table] = list(_export_rows(model, person, report, archives))
    left_out = [] if archives else _dropped()
    if not archives:
        document["archives_left_out"] = left_out
    document |= export_answers(person=person)
    log.info("person exported", address_hash=address_hash(email), left_out=left_out)
    return document


def _dropped() -> list[str]:
    return [
        record.name
        for model in partitioned_models()
        for record in archived_partitions(table=model._meta.db_table, using=DIRECT)
        if record.dropped_at is not None
    ]


def _export_rows(
    model: PartitionedModel, person: Person, report: Report, archives: bool
) -> Iterator[dict[str, Any]]:
    for place, row in _rows(model, person, report, archives):
        # Export an e-mail unchanged, because it was sent to the person. Other rows may name somebody else.
        shown = row if model.retention.address_column else person.only_their_address(row)
        yield {"stored_in": place, **shown}


def _rows(
    model: PartitionedModel, person: Person, report: Report, archives: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each of the person's rows after the name of its table or archive."""
    table = model._meta.db_table
    seen = set()
    for name in [table, *side_tables(model=model, using=DIRECT)]:
        report("reading", table=name)
        using = "default" if name == table else DIRECT
        for row in table_rows(model=model, person=person, using=using, table=name):
            seen.add(str(row["id"]))
            yield name, row
    for record in archived_partitions(table=table, using=DIRECT) if archives else ():
        report("reading", archive=record.name)
        for found in archived_rows(model=model, record=record, hashes=[address_hash(person.address)]):
            if found["id"] not in seen:
                yield f"archive {record.name}", {**found}
