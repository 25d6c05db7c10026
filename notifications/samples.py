"""The data with which previews show e-mails. `orders.apps` sets both: e-mails know no order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

#: Orders of every kind. The first has every variable with a value.
kinds: Sequence[Mapping[str, object]] = ()
#: Returns the variables of a sample order that fits an event.
order_for: Callable[[str], Mapping[str, object]]
