"""The data with which previews show e-mails."""

from __future__ import annotations

from collections.abc import Mapping

#: The variables of an e-mail of a sample order. `orders.apps` sets it, because e-mails know no order.
order: Mapping[str, object] = {}
