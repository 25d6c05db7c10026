"""CSV downloads for all apps: streamed a few hundred rows at a time, and safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.http import StreamingHttpResponse

from runtime.database import replica
from runtime.database.keyset import columns_of, read_page

#: A spreadsheet reads a cell that begins with one of these as a formula.
#: Source: OWASP, "CSV Injection". The last four are the full-width forms of the first four.
_SIGNS = "=+-@＝＋－＠"
_FORMULA = tuple(f"{_SIGNS}\t\r\n")
#: Where a text may begin another cell. If `;` or a tab separates cells, quotes that follow a comma do not
#: protect a text, and it ends at a line break, too.
_NEXT_CELL = re.compile(rf"""([;\t\r\n]["'\s]*)(?=[{re.escape(_SIGNS)}])""")
#: Rows in one chunk of the response, and in one statement of `rows_by_key`.
CHUNK = 500

Row = TypeVar("Row", bound=Model)


def safe_cell(value: object) -> str | int | float:
    """Return a value as a cell. Add an apostrophe before what a spreadsheet would run as a formula.

    Numbers stay numbers, even negative ones. Times become ISO 8601, lists and mappings JSON, and None and
    those without members become empty.
    """
    if value is None or value == [] or value == {}:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    text = value.isoformat() if isinstance(value, dt.datetime | dt.date) else str(value)
    text = _NEXT_CELL.sub(r"\1'", text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_lines(*, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """Yield a CSV file, `CHUNK` rows at a time, in UTF-8 with the byte order mark that Excel needs."""
    buffer = io.StringIO("\ufeff")
    buffer.seek(0, io.SEEK_END)
    writer = csv.writer(buffer)
    writer.writerow([safe_cell(name) for name in header])
    for number, row in enumerate(rows, start=1):
        writer.writerow([safe_cell(value) for value in row])
        if number % CHUNK == 0:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    if rest := buffer.getvalue():
        yield rest.encode()


def csv_response(
    *, filename: str, header: Sequence[str], rows: Iterable[Sequence[object]]
) -> StreamingHttpResponse:
    """Answer with a file to download. `filename` is a fixed word without a suffix. `rows` may be lazy."""
    return StreamingHttpResponse(
        csv_lines(header=header, rows=rows),
        content_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{filename}.csv"',
            "Cache-Control": "no-store",
        },
    )


def rows_by_key(
    *,
    queryset: QuerySet[Row],
    order: Sequence[str] = ("-pk",),
    size: int = CHUNK,
    may_be_late: bool = False,
) -> Iterator[Row]:
    """Yield the rows of a queryset in an order (as for `read_page`), with `size` rows in each statement.

    No cursor stays open between the statements: a slow reader keeps no old snapshot open, and no statement
    runs longer than DATABASE_TIMEOUT. If the rows `may_be_late`, a replica reads them. Once the primary has
    answered it reads the rest, since a replica could lack the next rows.
    """
    last: list[Any] | None = None
    while True:
        page = partial(read_page, rows=queryset, order=order, after=last, size=size)
        rows = replica.read(page) if may_be_late else page()
        yield from rows
        if len(rows) < size:
            return
        may_be_late = rows[-1]._state.db == replica.ALIAS
        last = [getattr(rows[-1], name) for name in columns_of(order)]
