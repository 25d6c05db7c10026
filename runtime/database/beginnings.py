"""Find rows by the beginning of a text, in any case, by an index that compares bytes.

An index in the database's collation finds whole texts only, unless the collation is C.
"""

from __future__ import annotations

import uuid

from django.contrib.postgres.indexes import OpClass
from django.db import connections
from django.db.models import OrderBy
from django.db.models.functions import Collate, Upper
from django.db.models.indexes import IndexExpression

from runtime.binding import Binding
from runtime.database import replica

# django.contrib.postgres does this if it is installed, which would ask each new connection for types.
IndexExpression.register_wrappers(OrderBy, OpClass, Collate)

#: A beginning may fit a million rows, and finds so many.
LIMIT = 100
#: So many rows of all shops are read for a bound caller, who finds fewer than `LIMIT` if the shop is small.
READ_FOR_SHOPS = 2_000


def any_case(column: str) -> OpClass:
    """Return the first column of an index that finds whole texts and beginnings, in any case."""
    return OpClass(Upper(column), name="text_pattern_ops")


def beginning_with(
    text: str, *, table: str, column: str, newest_first: str, shops: Binding
) -> tuple[list[tuple[uuid.UUID, str]], bool]:
    """Return the ids and values of the first `LIMIT` rows of `shops`, and whether there may be more.

    They are in the index's order: a value that equals the text comes first. `newest_first` names the index's
    other columns in SQL.
    """
    read = LIMIT if shops.is_unbound else READ_FOR_SHOPS
    # PostgreSQL cannot estimate how many rows begin with a text, and might sort them all. So read the index
    # from the text on, and leave out the rows behind those that begin with it.
    sql = f"""
        SELECT id, {column}, source FROM (
            SELECT id, {column}, source FROM {table} WHERE {column} <> '' AND upper({column}) ~>=~ upper(%s)
            ORDER BY upper({column}) USING ~<~, {newest_first} LIMIT {read}
        ) AS next WHERE starts_with(upper({column}), upper(%s))
    """  # noqa: S608 - our names
    with connections[replica.alias()].cursor() as cursor:
        cursor.execute(sql, [text, text])
        rows = cursor.fetchall()
    theirs = [(id, value) for id, value, source in rows if shops.has(source)]
    return theirs[:LIMIT], len(rows) >= read or len(theirs) > LIMIT
