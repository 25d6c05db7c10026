"""Count stuck orders, for metrics, `manage.py status` and the admin. orders.models.STUCK defines them."""

from __future__ import annotations

from django.db import connection

from orders.models import STUCK, Order
from outbox.conditions import Stuck
from outbox.facts import MOST


def read_stuck() -> dict[str, Stuck]:
    """Return by state the number of stuck orders, at most `MOST`, and the age of the oldest."""
    parts, values = [], []
    for state, (since, _) in STUCK.items():
        oldest = Order.objects.stuck(state).order_by(since).values(since)[:MOST]
        sql, parameters = oldest.query.sql_with_params()
        parts.append(
            f"SELECT '{state}', count(*),"  # noqa: S608 - only names and the ORM's SQL are inserted
            f" coalesce(extract(epoch FROM statement_timestamp() - min({since})), 0)::float8"
            f" FROM ({sql}) AS found"
        )
        values += parameters
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), values)
        return {state: Stuck(*numbers) for state, *numbers in cursor.fetchall()}
