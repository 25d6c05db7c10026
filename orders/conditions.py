"""The statement that counts stuck orders. runtime.facts runs it; orders.models.STUCK defines the states."""

from __future__ import annotations

from django.db import connection

from orders.models import STUCK, Order
from runtime.facts import MOST


def stuck_statement() -> str:
    """Return a SELECT of `state`, `orders` (at most `MOST`) and `oldest_seconds`: a row for each state."""
    parts = []
    for state, (since, _) in STUCK.items():
        oldest = Order.objects.stuck(state).order_by(since).values(since)[:MOST]
        found = connection.ops.compose_sql(*oldest.query.sql_with_params())  # type: ignore[attr-defined]
        parts.append(
            f"SELECT '{state}' AS state, count(*) AS orders,"  # noqa: S608 - only names and the ORM's SQL
            f" coalesce(extract(epoch FROM statement_timestamp() - min({since})), 0)::float8"
            f" AS oldest_seconds FROM ({found}) AS found"
        )
    return " UNION ALL ".join(parts)
