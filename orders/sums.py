"""The minute sums of orders, for the admin's charts."""

from __future__ import annotations

from runtime.charts.sums import STEP, CellQuery, Window, register_reader


@register_reader
def placed_orders(window: Window) -> CellQuery:
    return CellQuery(
        f"SELECT {STEP.format('created_at')}, 'placed', count(*), NULL::int FROM orders"  # noqa: S608
        " WHERE created_at >= %(since)s AND created_at < %(until)s"
        " GROUP BY 1"
    )
