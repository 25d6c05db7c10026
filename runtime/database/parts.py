"""Find rows by words, or by a part of a text in any case, by GIN indexes, and stop after some rows.

An index of parts needs the extension pg_trgm, which some databases refuse. Then no part is searched.
"""

from __future__ import annotations

import re
import uuid
from typing import Any, NamedTuple

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import DatabaseError, connections, migrations, models, transaction
from django.db.models.expressions import RawSQL
from django.db.models.functions import Upper

from runtime.database import replica
from runtime.database.beginnings import LIMIT

#: A search reads so many rows that match, and then stops, whichever they are.
READ = 10_000
#: The shortest part that is searched.
SHORTEST = 4
#: The operator class of an index of parts.
TRIGRAMS = "gin_trgm_ops"
HAS_TRIGRAMS = "EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm')"

#: What stands between the words of a name, next to spaces.
_BETWEEN = ".,;-–()\"'’/&\t\u00a0"
#: Three characters that an index of parts can look for. Without them it would read every row.
_TRIGRAM = re.compile(r"[A-Za-z0-9]{3}|[A-Za-z0-9]{2}[^A-Za-z0-9]|[^A-Za-z0-9][A-Za-z0-9]")


class Hits(NamedTuple):
    """The ids of the rows, at most `LIMIT`, and whether more match."""

    ids: list[uuid.UUID]
    is_cut: bool = False


def words_of(name: str, address: str) -> RawSQL:
    """Return what an index of words has of a row: words of a name, and an address's domain after an @."""
    quoted = _BETWEEN.replace("'", "''")
    text = f"lower(translate({name}, '{quoted}', '{' ' * len(_BETWEEN)}'))"
    words = f"array_remove(string_to_array({text}, ' '), '')"
    sql = f"array_to_tsvector({words} || ('@' || lower(split_part({address}, '@', 2))))"
    return RawSQL(f"({sql})", [])  # noqa: S611 - our columns


def parts_index(column: str, **options: Any) -> GinIndex:
    """Return an index of the parts of a text that is not empty."""
    return GinIndex(OpClass(Upper(column), name=TRIGRAMS), condition=~models.Q(**{column: ""}), **options)


def is_of_parts(index: models.Index) -> bool:
    """Return whether an index needs the extension."""
    return any(isinstance(each, OpClass) and each.extra["name"] == TRIGRAMS for each in index.expressions)


def query_words(text: str) -> str:
    """Return the query of names that have a word with each of these beginnings, or "" for none.

    A beginning of one letter counts only next to a longer one. A database without a language lowers ASCII
    alone, so the query has a foreign first letter in both cases.
    """
    words = text.translate(dict.fromkeys(map(ord, _BETWEEN), " ")).split()
    if not any(len(word) > 1 for word in words):
        return ""
    return " & ".join(f"({' | '.join(f'{_quoted(way)}:*' for way in _ways(word))})" for word in words)


def query_domain(domain: str) -> str:
    """Return the query of addresses of this domain."""
    return _quoted(f"@{domain.lower()}")


def _ways(word: str) -> list[str]:
    lower = word.lower()
    return sorted({lower} if lower[0].isascii() else {lower, f"{lower[0].upper()}{lower[1:]}"})


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def find_words(query: str, *, table: str, words: RawSQL, newest_first: str) -> Hits:
    """Return the newest of the first `READ` rows that match a query."""
    return _find(f"{words.sql} @@ %s::tsquery", query, table=table, newest_first=newest_first)


def find_parts(part: str, *, table: str, column: str, newest_first: str, id: str = "id") -> Hits:
    """Return the newest of the first `READ` rows whose text has this part, in any case.

    Call it only for a text that `is_part`, and if the database `has_trigrams`.
    """
    pattern = re.sub(r"([\\%_])", r"\\\1", part)
    condition = f"{column} <> '' AND upper({column}) LIKE upper(%s)"
    return _find(condition, f"%{pattern}%", table=table, newest_first=newest_first, id=id)


def is_part(text: str) -> bool:
    """Return whether a text is long enough for `find_parts`."""
    return len(text) >= SHORTEST and _TRIGRAM.search(text) is not None


def _find(condition: str, value: str, *, table: str, newest_first: str, id: str = "id") -> Hits:
    columns = ", ".join(sorted({id, *(part.split()[0] for part in newest_first.split(", "))}))
    # PostgreSQL plans a materialized query as if all of its rows were read, and takes the index. For the
    # first rows alone it might read the table, and find none.
    sql = f"""
        WITH hits AS MATERIALIZED (SELECT {columns} FROM {table} WHERE {condition})
        SELECT {id}, count(*) OVER () FROM (SELECT * FROM hits LIMIT {READ}) AS read
        ORDER BY {newest_first} LIMIT {LIMIT}
    """  # noqa: S608 - our names
    with connections[replica.alias()].cursor() as cursor:
        cursor.execute(sql, [value])
        rows = cursor.fetchall()
    return Hits([id for id, _ in rows], bool(rows) and rows[0][1] > LIMIT)


def has_trigrams() -> bool:
    """Return whether the database has the extension."""
    with connections[replica.alias()].cursor() as cursor:
        cursor.execute(f"SELECT {HAS_TRIGRAMS}")
        return bool(cursor.fetchone()[0])


def join(*several: Hits) -> Hits:
    """Return all hits, each id once."""
    ids = dict.fromkeys(id for hits in several for id in hits.ids)
    return Hits(list(ids), any(hits.is_cut for hits in several))


class CreateTrigrams(migrations.RunPython):
    """Create the extension, if the server has it and the role may. Its indexes wait for it."""

    def __init__(self) -> None:
        super().__init__(_create_trigrams, migrations.RunPython.noop, elidable=False)

    def deconstruct(self) -> Any:
        return (type(self).__name__, [], {})


def _create_trigrams(apps: Any, schema_editor: Any) -> None:
    connection = schema_editor.connection
    try:
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except DatabaseError:
        return  # `manage.py status` says so


class AddPartsIndex(AddIndexConcurrently):
    """AddIndexConcurrently that builds nothing without the extension. `partitions ensure` does so later."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(f"SELECT {HAS_TRIGRAMS}")
            if cursor.fetchone()[0]:
                super().database_forwards(app_label, schema_editor, from_state, to_state)
