"""The person whose rows are exported or erased."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from runtime.addresses import as_stored
from runtime.personal_data import address_hash, find_addresses, hide_addresses

#: The newest time at which the owner of an address, given as its keyed hash, asked for an erasure, or NULL.
ERASED_AT = "(SELECT coalesce(repeated_at, requested_at) FROM erasures WHERE address_hash = %s)"


@dataclasses.dataclass(frozen=True, slots=True)
class Person:
    """A person: their address as it is stored, and the ids of the orders they own."""

    address: str
    owner_ids: frozenset[uuid.UUID]

    @classmethod
    def of(cls, address: str, owner_ids: frozenset[uuid.UUID] = frozenset()) -> Person:
        """Return the person who has this address."""
        return cls(as_stored(address), owner_ids)

    @property
    def hash(self) -> str:
        """The keyed hash of the address."""
        return address_hash(self.address)

    def has_address(self, address: str) -> bool:
        return as_stored(address).lower() == self.address.lower()

    def is_named_in(self, text: str) -> bool:
        """Return whether a text has the complete address."""
        return self.address.lower() in find_addresses(text)

    def only_their_address(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row without the addresses of other people in its texts."""
        return {
            name: hide_addresses(value, but=self.has_address) if isinstance(value, str) else value
            for name, value in row.items()
        }
