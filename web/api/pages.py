"""Pagination by cursor, without an offset or a count. Rows that are added meanwhile do not shift a page.

A cursor is a direction and a row's values of the columns that order the list: "n1790000000000000.01a2…".
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from django.db import models
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from runtime.database.ids import EPOCH, parse_uuid
from runtime.database.keyset import columns_of, read_page
from runtime.database.partitions import attached
from web.api.fields import Digits, Instant, StrictSerializer, Text
from web.api.problems import RequestFault, invalid
from web.api.views import ApiView, present

DEFAULT_SIZE = 50
MAX_SIZE = 200
_HOT_SINCE_SECONDS = 60
_MICROSECONDS = re.compile(r"-?[0-9]{1,18}")

#: The form of a value in a cursor, by the type of its column, for the API's document. Each such text is read.
_FORMS: dict[type[models.Field[Any, Any]], str] = {
    models.DateTimeField: "[0-9]{1,16}",
    models.PositiveIntegerField: "[0-9]{1,9}",
    models.UUIDField: "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}

Row = TypeVar("Row", bound=models.Model)


def cursor_field(*columns: type[models.Field[Any, Any]]) -> Text:
    """Return the field of a list's cursor, whose order has columns of these types."""
    form = r"\.".join(_FORMS[column] for column in columns)

    @extend_schema_field({"type": "string", "pattern": f"^[np]{form}$"})
    class Cursor(Text):
        """A cursor in the API's document. DRF copies a field by its class."""

    return Cursor(required=False, max_length=100, help_text="From `next` or `previous`. Its form may change.")


class PageQuery(StrictSerializer):
    """The query string of every list. A list in another order than that of ids has its own cursor."""

    cursor = cursor_field(models.UUIDField)
    page_size = Digits(required=False, min_value=1, max_value=MAX_SIZE, default=DEFAULT_SIZE)


class PeriodQuery(PageQuery):
    """The query string of a list that can be limited to a period. Adjoining periods share no row."""

    created_after = Instant(required=False, help_text="The earliest `created_at`. UTC without an offset")
    created_before = Instant(required=False, help_text="Only rows of an earlier `created_at`")


def paginate(
    *,
    view: ApiView,
    rows: models.QuerySet[Row],
    serializer: type[serializers.Serializer[Any]],
    order: Sequence[str] = ("-id",),
) -> dict[str, Any]:
    """Return one page of `rows`: `next` and `previous` (absolute URLs or None) and `results`.

    `order` is as for `read_page`, and has an index. The view's query is a `PageQuery`. Raise the 400 problem
    for a cursor that this API did not make.
    """
    names, size = columns_of(order), view.query["page_size"]
    fields = [rows.model._meta.get_field(name) for name in names]
    backwards, position = _read_cursor(view.query.get("cursor"), fields)
    if backwards:
        order = names if order[0].startswith("-") else [f"-{name}" for name in names]
    records = read_page(rows=rows, order=order, after=position, size=size + 1)
    more, page = len(records) > size, records[:size]
    if backwards:
        page.reverse()

    def link(direction: str, there: bool, row: Row | None) -> str | None:
        if not there:
            return None
        return _url(view.request, direction + _write_position(row, fields) if row else None)

    first, last = (page[0], page[-1]) if page else (None, None)
    return {
        "next": link("n", more or backwards, last),
        "previous": link("p", more if backwards else position is not None, first),
        "results": [present(serializer, row) for row in page],
    }


def _write_position(row: models.Model, fields: Sequence[Any]) -> str:
    values = (getattr(row, field.attname) for field in fields)
    return ".".join(
        str((value - EPOCH) // dt.timedelta(microseconds=1) if isinstance(value, dt.datetime) else value)
        for value in values
    )


def _read_cursor(cursor: str | None, fields: Sequence[Any]) -> tuple[bool, list[Any] | None]:
    """Return whether the page is before the position, and the position, which is None for the first page."""
    if cursor is None:
        return False, None
    texts = cursor[1:].split(".")
    position = [_PARSERS[type(field)](text) for field, text in zip(fields, texts, strict=False)]
    if cursor[:1] not in ("n", "p") or len(texts) != len(fields) or None in position:
        raise invalid([RequestFault(("cursor",), "Unknown cursor. Start again without it.", "query")])
    return cursor[0] == "p", position


def _parse_microseconds(text: str) -> dt.datetime | None:
    """Parse a time, as microseconds since 1970. Return None for anything else."""
    if not _MICROSECONDS.fullmatch(text):
        return None
    try:
        return EPOCH + dt.timedelta(microseconds=int(text))
    except OverflowError:
        return None


def _parse_sequence(text: str) -> int | None:
    """Parse a number of at most nine digits. Return None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


#: How to read a value in a cursor, by the type of its column.
_PARSERS: dict[type[models.Field[Any, Any]], Callable[[str], Any]] = {
    models.DateTimeField: _parse_microseconds,
    models.PositiveIntegerField: _parse_sequence,
    models.UUIDField: parse_uuid,
}


def _url(request: Request, cursor: str | None) -> str:
    """Return the list's URL with another cursor, or the first page's if there is none."""
    query = request.query_params.dict()
    query.pop("cursor", None)
    if cursor:
        query["cursor"] = cursor
    return request.build_absolute_uri(f"{request.path}?{urlencode(query)}")


def hot_since(*, model: type[models.Model]) -> dt.datetime | None:
    """Return the time since which a partitioned table has rows, or None. Older rows are archived.

    Each process caches it for a minute; partitions are detached at most once a day.
    """
    return _hot_since(model, int(time.monotonic() // _HOT_SINCE_SECONDS))


@functools.lru_cache(maxsize=8)
def _hot_since(model: type[models.Model], _minute: int) -> dt.datetime | None:
    partitions = attached(model=model)
    return partitions[0].since if partitions else None
