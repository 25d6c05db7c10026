"""The minute sums of orders, for the admin's charts."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.charts.sums import STEP, Cell, Window, register_reader, select_cells


@register_reader
def placed_orders(window: Window) -> Iterable[Cell]:
    return select_cells(
        f"SELECT {STEP.format('created_at')}, 'placed', count(*) FROM orders"  # noqa: S608
        " WHERE created_at >= %(since)s AND created_at < %(until)s"
        " GROUP BY 1",
        window,
    )
