"""Search the archives for the rows of an address or an order, or by the values of columns."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping

from outbox.addresses import as_stored
from outbox.database.partitioned import PartitionedModel
from outbox.models import DetachedPartition
from outbox.privacy import address_hash
from outbox.retention.archives import archive, index
from outbox.retention.archives.index_build import index_archive
from outbox.retention.archives.manifest import ArchiveDiffers
from outbox.retention.partitions.locks import OWNER_DATABASE, AlreadyRunning, Report, exclusive_lock
from outbox.retention.partitions.partitions import partitioned_models
from outbox.retention.person import Person

Found = tuple[DetachedPartition, dict[str, str]]


class Search:
    """Read archives. Append those that cannot be read to `failed`, and continue with the others."""

    def __init__(self, *, since: dt.datetime, report: Report) -> None:
        self._since, self._report = since, report
        self.failed: list[str] = []

    def by_columns(self, *, model: PartitionedModel, conditions: Mapping[str, str]) -> Iterator[Found]:
        """Yield the rows in which each of these columns has the value, in any case."""
        rules = model.retention
        conditions = {
            name: as_stored(value) if name == rules.address_column else value
            for name, value in conditions.items()
        }
        indexed = [
            conditions[name] for name in (rules.owner_column, rules.address_column) if name in conditions
        ]
        hashes = {address_hash(indexed[0])} if indexed else None

        def wanted(row: dict[str, str]) -> bool:
            return all(row.get(name, "").lower() == value.lower() for name, value in conditions.items())

        return self._rows(model, wanted, hashes)

    def by_owner(self, *, owner_id: uuid.UUID) -> Iterator[Found]:
        """Yield the e-mails and events of an order, and rows that quote its id."""
        yield from self._by_person(Person(frozenset([owner_id]), frozenset()))

    def by_address(self, *, address: str) -> Iterator[Found]:
        """Yield the e-mails to an address, the events of their orders, and rows that quote the address."""
        yield from self._by_person(Person.of(address))

    def _by_person(self, person: Person) -> Iterator[Found]:
        # Search tables with addresses first, because their rows have the order ids for the other tables.
        for model in sorted(partitioned_models(), key=lambda model: not model.retention.address_column):
            rules, owners = model.retention, set(person.owner_ids)
            hashes = {*(address_hash(str(owner)) for owner in owners), *person.address_hashes}
            for record, row in self._rows(model, _matcher(model, person), hashes):
                if rules.address_column:
                    owners.add(uuid.UUID(row[rules.owner_column]))
                yield record, row
            person = dataclasses.replace(person, owner_ids=frozenset(owners))

    def _rows(
        self, model: PartitionedModel, wanted: Callable[[dict[str, str]], bool], hashes: set[str] | None
    ) -> Iterator[Found]:
        table = model._meta.db_table
        for record in archive.archived_partitions(table=table, since=self._since):
            try:
                if hashes is not None:
                    self._index(model, record, hashes)
                for row in archive.find_rows(record=record, wanted=wanted, hashes=hashes):
                    yield record, row
            except ArchiveDiffers as error:
                self.failed.append(f"{record.name}: {error}")

    def _index(self, model: PartitionedModel, record: DetachedPartition, hashes: Collection[str]) -> None:
        """Index an archive, unless another run changes archives or the store refuses the file."""
        if index.has_index(model=model, record=record, hashes=hashes):
            return
        try:
            with exclusive_lock(model=model):
                record.refresh_from_db(using=OWNER_DATABASE)
                index_archive(model=model, record=record, report=self._report, hashes=hashes)
        except (AlreadyRunning, OSError) as error:
            self._report("not indexed", partition=record.name, reason=str(error))


def _matcher(model: PartitionedModel, person: Person) -> Callable[[dict[str, str]], bool]:
    """Match every row of an order, also other people's, because an operator searches here, not a customer."""
    rules, owners = model.retention, {str(owner) for owner in person.owner_ids}
    about_person = [quotes for quotes in rules.quotes if quotes.is_about_person]

    def wanted(row: dict[str, str]) -> bool:
        return (
            row[rules.owner_column] in owners
            or person.has_address(row.get(rules.address_column, ""))
            or any(person.is_quoted_in(quotes=quotes, row=row) for quotes in about_person)
        )

    return wanted
