"""Export a person's data: live rows, detached tables, archives, stored answers, dead events.

orders.privacy.persons decides which rows belong to a person. Called by `manage.py privacy` and the admin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orders.privacy.persons import DIRECT, check_address, first_row, own_orders
from outbox.database.ids import EPOCH
from outbox.database.partitioned import PartitionedModel
from outbox.retention.archives.archive import archived_partitions
from outbox.retention.partitions.locks import Report
from outbox.retention.partitions.partitions import partitioned_models
from outbox.retention.people.erasure import archived_rows, side_tables, table_rows
from outbox.retention.people.stored_answers import export_answers
from outbox.retention.person import Person


def export_person(*, email: str, report: Report) -> dict[str, Any]:
    """Return everything that is stored of a person as one document.

    `orders` has rows of the orders, and each partitioned table has a list of rows, which name their table or
    archive in `stored_in`. Archives without an index are read from end to end. Raise `NoPerson`.
    """
    email = check_address(email)
    orders = list(own_orders(email).order_by("id").values())
    person = Person.of(email, frozenset(order["id"] for order in orders))
    document: dict[str, Any] = {"email": email, "orders": orders}
    for model in partitioned_models():
        document[model._meta.db_table] = list(_export_rows(model, person, report))
    return document | export_answers(person=person)


def _export_rows(model: PartitionedModel, person: Person, report: Report) -> Iterator[dict[str, Any]]:
    for place, row in _rows(model, person, report):
        # Export an e-mail unchanged, because it was sent to the person. Other rows may name somebody else.
        shown = row if model.retention.address_column else person.only_their_address(row)
        yield {"stored_in": place, **shown}


def _rows(model: PartitionedModel, person: Person, report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each of the person's rows after the name of its table or archive."""
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
        for found in archived_rows(model=model, record=record, person=person, export=True):
            if found["id"] not in seen:
                yield f"archive {record.name}", {**found}
