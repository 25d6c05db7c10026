"""The sums of e-mails and providers for the admin's charts.

Queries find e-mails by time, through a BRIN index by minute (which is cheap to write) and through an index of
the few rows with errors. A condition on the id prunes the partitions of later times.
"""

from __future__ import annotations

import datetime as dt

from notifications.models import FIRST_DUE
from runtime.charts.duration_histogram import bucket_sql
from runtime.charts.sums import STEP, CellQuery, Window, register_reader
from runtime.database.ids import id_floor

#: A partition's CHECK keeps a row's id at most two days ahead of the database's clock.
AHEAD = dt.timedelta(days=3)
#: The expression of the BRIN index, and of the conditions that use it.
BY_MINUTE = "date_bin('1 minute', {}, '2000-01-01 00:00+00')"


@register_reader
def sent_emails(window: Window) -> CellQuery:
    """Count sent e-mails by provider, and in total with the delay since they were first due."""
    query = _select(
        window,
        "sent_at",
        series="'sent:' || provider",
        bucket=bucket_sql(f"sent_at - {FIRST_DUE}"),
    )
    return query._replace(split=lambda cell: (cell._replace(bucket=None), cell._replace(series="sent")))


@register_reader
def delivered_emails(window: Window) -> CellQuery:
    return _select(window, "delivered_at", series="'delivered'")


@register_reader
def bounced_emails(window: Window) -> CellQuery:
    return _select(window, "bounced_at", series="'bounced'")


@register_reader
def failed_attempts(window: Window) -> CellQuery:
    """Count the failed attempts by provider. The index finds a row by the time of its last attempt."""
    return CellQuery(
        f"SELECT {STEP.format('at')}, 'failed:' || (entry->>'provider'), count(*), NULL::int"  # noqa: S608
        " FROM email_notifications AS row, jsonb_array_elements(errors) AS entry,"
        " CAST(entry->>'at' AS timestamptz) AS at"
        " WHERE errors <> '[]' AND (errors -> -1 ->> 'at') COLLATE \"C\" >= %(text)s AND id < %(last)s"
        " AND at >= %(since)s AND at < %(until)s GROUP BY 1, 2",
        {"last": id_floor(window.until + AHEAD), "text": window.since.astimezone(dt.UTC).isoformat()},
    )


def _select(window: Window, column: str, *, series: str, bucket: str = "NULL::int") -> CellQuery:
    by_minute = BY_MINUTE.format(column)
    return CellQuery(
        f"SELECT {STEP.format(column)}, {series}, count(*), {bucket} FROM email_notifications"  # noqa: S608
        f" WHERE {by_minute} >= %(since)s AND {by_minute} < %(until)s AND id < %(last)s GROUP BY 1, 2, 4",
        {"last": id_floor(window.until + AHEAD)},
    )
