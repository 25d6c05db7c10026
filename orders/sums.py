"""The minute sums of orders, for the admin's charts. The engine finds this module by its name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from outbox.database.ids import id_floor
from outbox.traffic.summed import STEP, Cell, Window, select_cells, summed

#: How far the clock that made an id may be from the database's. The chart leaves out orders beyond that.
DRIFT = dt.timedelta(minutes=5)


@summed
def placed_orders(window: Window) -> Iterable[Cell]:
    """Count the orders of each step. The primary key limits the scan, because it contains the time."""
    return select_cells(
        f"SELECT {STEP.format('created_at')}, 'placed', count(*) FROM orders"  # noqa: S608
        " WHERE id >= %(first)s AND id < %(last)s AND created_at >= %(since)s AND created_at < %(until)s"
        " GROUP BY 1",
        window,
        first=id_floor(window.since - DRIFT),
        last=id_floor(window.until + DRIFT),
    )
