"""Pagination by cursor, without an offset or a count. Rows that are added meanwhile do not shift a page.

A cursor is a direction and the last value of the column that orders the list.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from django.db import models
from rest_framework import serializers
from rest_framework.request import Request

from outbox.api.fields import Digits, Instant, StrictSerializer, Text, kept, parse_uuid
from outbox.api.problems import Fault, invalid
from outbox.database.partitioned import PartitionedModel
from outbox.retention.partitions import partitions

DEFAULT_SIZE = 50
MAX_SIZE = 200
_HOT_SINCE_SECONDS = 60

Row = TypeVar("Row", bound=models.Model)


class PageQuery(StrictSerializer):
    """The query string of every list."""

    cursor = Text(required=False, max_length=100, help_text="From `next` or `previous`. Its form may change.")
    page_size = Digits(required=False, min_value=1, max_value=MAX_SIZE, default=DEFAULT_SIZE)


class PeriodQuery(PageQuery):
    """The query string of a list that can be limited to a period. Adjoining periods share no row."""

    created_after = Instant(required=False, help_text="The earliest `created_at`. UTC without an offset")
    created_before = Instant(required=False, help_text="Only rows of an earlier `created_at`")


def parse_sequence(text: str) -> int | None:
    """Parse a position of at most nine digits. Return None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def paginate(
    *,
    request: Request,
    query: dict[str, Any],
    rows: models.QuerySet[Row],
    serializer: type[serializers.Serializer[Any]],
    order: str = "-id",
    parse: Callable[[str], Any] = parse_uuid,
) -> dict[str, Any]:
    """Return one page of `rows`: `next` and `previous` (absolute URLs or None) and `results`.

    `order` names one unique column with an index. `parse` parses a value of it, or returns None. `query` is a
    validated `PageQuery`. Raise the 400 problem for a cursor that this API did not make.
    """
    column, size = order.lstrip("-"), query["page_size"]
    backwards, position = _read_cursor(query.get("cursor"), parse)
    downwards = order.startswith("-") is not backwards
    if position is not None:
        rows = rows.filter(**{f"{column}__{'lt' if downwards else 'gt'}": position})
    found = list(rows.order_by(f"-{column}" if downwards else column)[: size + 1])
    more, page = len(found) > size, found[:size]
    if backwards:
        page.reverse()

    def link(direction: str, there: bool, row: Row | None) -> str | None:
        if not there:
            return None
        return _url(request, f"{direction}{getattr(row, column)}" if row else None)

    first, last = (page[0], page[-1]) if page else (None, None)
    return {
        "next": link("n", more or backwards, last),
        "previous": link("p", more if backwards else position is not None, first),
        "results": [kept(serializer).to_representation(row) for row in page],
    }


def _read_cursor(cursor: str | None, parse: Callable[[str], Any]) -> tuple[bool, Any]:
    if cursor is None:
        return False, None
    position = parse(cursor[1:])
    if cursor[0] not in "np" or position is None:
        raise invalid([Fault(("cursor",), "This cursor is none of ours.", "query")])
    return cursor[0] == "p", position


def _url(request: Request, cursor: str | None) -> str:
    """Return the list's URL with another cursor, or without one for the first page."""
    query = request.query_params.dict()
    query.pop("cursor", None)
    if cursor:
        query["cursor"] = cursor
    return request.build_absolute_uri(f"{request.path}?{urlencode(query)}")


def hot_since(*, model: PartitionedModel) -> dt.datetime | None:
    """Return the time since which a partitioned table has rows, or None. Older rows are archived.

    Each process caches it for a minute, because partitions are detached at most once a day.
    """
    return _hot_since(model, int(time.monotonic() // _HOT_SINCE_SECONDS))


@functools.lru_cache(maxsize=8)
def _hot_since(model: PartitionedModel, _minute: int) -> dt.datetime | None:
    attached = partitions.attached(model=model)
    return attached[0].since if attached else None
