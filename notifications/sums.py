"""What the admin's charts show of e-mails and providers.

E-mails are found by their times: through a BRIN index by minute, which costs the writers next to nothing, and
through an index of the few rows with errors. Partitions of times to come are pruned by the id.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping

from notifications.delivery.process import gate
from outbox.database.ids import id_floor
from outbox.delivery.gate.breaker import State
from outbox.traffic.spread import bucket_sql
from outbox.traffic.summed import STEP, Cell, Window, sampled, select_cells, summed

#: A row's id is at most two days ahead of the database's clock: the CHECK of its partition holds that.
AHEAD = dt.timedelta(days=3)
#: The expression of the BRIN index, and of the conditions that use it.
BY_MINUTE = "date_bin('1 minute', {}, '2000-01-01 00:00+00')"


@summed
def sent_mails(window: Window) -> Iterable[Cell]:
    """Count the e-mails that a provider took, and how long after their commit or resend that was."""
    cells = _select(
        window,
        "sent_at",
        series="'sent:' || provider",
        bucket=bucket_sql("sent_at - greatest(created_at, resent_at)"),
    )
    for cell in cells:
        yield cell._replace(bucket=None)
        yield cell._replace(series="sent")


@summed
def delivered_mails(window: Window) -> Iterable[Cell]:
    return _select(window, "delivered_at", series="'delivered'")


@summed
def bounced_mails(window: Window) -> Iterable[Cell]:
    return _select(window, "bounced_at", series="'bounced'")


@summed
def failed_attempts(window: Window) -> Iterable[Cell]:
    """Count the failed attempts by provider. The last of a row's attempts finds it."""
    return select_cells(
        f"SELECT {STEP.format('at')}, 'failed:' || (entry->>'provider'), count(*)"  # noqa: S608
        " FROM email_notifications AS row, jsonb_array_elements(errors) AS entry,"
        " CAST(entry->>'at' AS timestamptz) AS at"
        " WHERE errors <> '[]' AND (errors -> -1 ->> 'at') COLLATE \"C\" >= %(text)s AND id < %(last)s"
        " AND at >= %(since)s AND at < %(until)s GROUP BY 1, 2",
        window,
        last=id_floor(window.until + AHEAD),
        text=window.since.astimezone(dt.UTC).isoformat(),
    )


@sampled
def open_breakers() -> Mapping[str, int]:
    """Tell which providers' breakers are open now, or have closed within the last minute."""
    return {
        f"open:{view.provider}": int(
            view.state is not State.CLOSED
            or (view.breaker.reason == "accepted" and (view.changed_ago or 0.0) < 60.0)
        )
        for view in gate().read_providers()
    }


def _select(window: Window, column: str, *, series: str, bucket: str = "NULL::int") -> Iterator[Cell]:
    by_minute = BY_MINUTE.format(column)
    yield from select_cells(
        f"SELECT {STEP.format(column)}, {series}, count(*), {bucket} FROM email_notifications"  # noqa: S608
        f" WHERE {by_minute} >= %(since)s AND {by_minute} < %(until)s AND id < %(last)s GROUP BY 1, 2, 4",
        window,
        last=id_floor(window.until + AHEAD),
    )
