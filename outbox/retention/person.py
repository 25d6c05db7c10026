"""The person whose rows are exported, erased or searched in archives."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from outbox.addresses import as_stored
from outbox.database.partitioned import Quotes, RetentionRules
from outbox.privacy import address_hash, find_address_hashes, hide_addresses


@dataclasses.dataclass(frozen=True, slots=True)
class Person:
    """A person, or several: the ids of the orders they own, and the keyed hashes of their addresses.

    `address` is one person's address in clear. It is empty if only the hash is known, for example when an
    archive is rewritten a month after the erasure.
    """

    owner_ids: frozenset[uuid.UUID]
    address_hashes: frozenset[str]
    address: str = ""

    @classmethod
    def of(cls, address: str, owner_ids: frozenset[uuid.UUID] = frozenset()) -> Person:
        """Return the person who has this address."""
        return cls(owner_ids, frozenset([address_hash(address)]), as_stored(address))

    def spellings(self) -> list[str]:
        """Return texts, one of which is in every spelling of the address. Only its domain has several."""
        local, at, _ = self.address.rpartition("@")
        return [local + at] if at else []

    def has_address(self, address: str) -> bool:
        return bool(address) and address_hash(address) in self.address_hashes

    def is_named_in(self, text: str, *, orders: bool = True) -> bool:
        """Return whether a text has one of the complete addresses or, with `orders`, one of the order ids."""
        lower = text.lower()
        return (orders and any(str(owner) in lower for owner in self.owner_ids)) or (
            not self.address_hashes.isdisjoint(find_address_hashes(text))
        )

    def only_their_address(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row without the addresses of other people in its texts."""
        return {
            name: hide_addresses(value, but=self.has_address) if isinstance(value, str) else value
            for name, value in row.items()
        }

    def is_owner_of(self, *, rules: RetentionRules, row: Mapping[str, str]) -> bool:
        """Return whether an archived row has this person's address, or without addresses their order's id."""
        if rules.address_column:
            return self.has_address(row[rules.address_column])
        return uuid.UUID(row[rules.owner_column]) in self.owner_ids

    def is_quoted_in(self, *, quotes: Quotes, row: Mapping[str, str]) -> bool:
        return self.is_named_in(row.get(quotes.column) or "", orders=quotes.is_about_person)
