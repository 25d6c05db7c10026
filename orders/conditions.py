"""The condition of stuck orders. `orders.models.STUCK` defines the states."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.db import connection

from orders.models import STUCK, Order
from runtime import conditions
from runtime.conditions import Alert, Condition, Counted, Measurement, Query, Row
from runtime.telemetry.metrics import gauge

#: By the states of `STUCK`.
WORDS = {
    "unconfirmed": "{number:paid order is|paid orders are} neither confirmed, completed nor cancelled",
    "unshipped": "{number:paid order has|paid orders have} nothing shipped after seven times as long",
    "unpaid": "{number:order has reserved stock and is|orders have reserved stock and are} not paid",
    "unrefunded": "{number:cancelled order was|cancelled orders were} paid and not fully refunded",
    "unexpected_payment": "{number:order|orders} got a payment that could not be taken and is not returned",
}


class Stuck(NamedTuple):
    """The orders that are stuck in one state."""

    orders: int
    oldest_seconds: float  # since the oldest of them came into the state


def stuck_statement() -> str:
    """Return a SELECT of `state`, `orders` (at most `MOST`) and `oldest_seconds`: a row for each state."""
    selects = []
    for state, (since, *_) in STUCK.items():
        oldest = Order.objects.stuck(state).order_by(since).values(since)[: conditions.MOST]
        select = connection.ops.compose_sql(*oldest.query.sql_with_params())  # type: ignore[attr-defined]
        selects.append(
            f"SELECT '{state}' AS state, count(*) AS orders,"  # noqa: S608 - only names and the ORM's SQL
            f" coalesce(extract(epoch FROM statement_timestamp() - min({since})), 0)::float8"
            f" AS oldest_seconds FROM ({select}) AS found"
        )
    return " UNION ALL ".join(selects)


def _stuck(rows: Sequence[Row], _: dt.datetime) -> dict[str, Stuck]:
    return {row["state"]: Stuck(row["orders"], row["oldest_seconds"]) for row in rows}


STUCK_ORDERS: Query[Mapping[str, Stuck]] = Query(
    name="stuck orders", select=lambda _: stuck_statement(), read=_stuck
)

ORDERS_STUCK = Condition(
    code="OrdersStuck",
    place=110,
    source=STUCK_ORDERS,
    measure=lambda stuck: [
        Measurement(group.orders, state, {"words": WORDS[state].format(number=Counted(group.orders))})
        for state, group in stuck.items()
    ],
    sentence="{words}",
    do="see Orders in the admin, filter stuck",
    alert=Alert("P3", "15m", "Orders are stuck for over `STUCK_ORDER_HOURS`."),
)
conditions.show(
    gauge(
        "orderpost_stuck_orders",
        "stuck orders (see the alert OrdersStuck): `unconfirmed`, `unshipped`, `unpaid`,"
        " `unrefunded`, `unexpected_payment`",
        ["state"],
    ),
    STUCK_ORDERS,
    lambda stuck: {state: group.orders for state, group in stuck.items()},
)
conditions.register(ORDERS_STUCK)
