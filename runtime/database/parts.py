"""Find rows by words or by a part of a text, in any case, and stop after some rows.

An index of parts needs the extension pg_trgm, which some databases refuse.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import DatabaseError, connections, migrations, models, transaction
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

#: A place in a name where a word begins.
_BEGINS = "(^|[ .,;()\"'’/&–-])"
#: Three characters that an index of parts can look for. Without them it would read every row.
_TRIGRAM = re.compile(r"[A-Za-z0-9]{3}|[A-Za-z0-9]{2}[^A-Za-z0-9]|[^A-Za-z0-9][A-Za-z0-9]")


class Hits(NamedTuple):
    """The ids of the rows, at most `LIMIT`, and whether more match."""

    ids: list[uuid.UUID]
    is_cut: bool = False

    @classmethod
    def of(cls, ids: Sequence[uuid.UUID], *, is_cut: bool = False) -> Hits:
        """Return the first `LIMIT` ids. More are cut off."""
        return cls(list(ids[:LIMIT]), is_cut or len(ids) > LIMIT)


def parts_index(column: str, **options: Any) -> GinIndex:
    """Return an index of the parts of a text that is not empty."""
    return GinIndex(OpClass(Upper(column), name=TRIGRAMS), condition=~models.Q(**{column: ""}), **options)


def is_of_parts(index: models.Index) -> bool:
    """Return whether an index needs the extension."""
    return any(isinstance(each, OpClass) and each.extra["name"] == TRIGRAMS for each in index.expressions)


def beginnings_of_words(text: str) -> list[str]:
    """Return a regular expression for each word of a text, which a name must all match, in any case.

    A beginning of one letter counts only next to a longer one. A database without a language knows the case
    of ASCII alone, so a foreign first letter is searched in both cases.
    """
    words = re.split(r"[\s.,;()\"'’/&–-]+", text)
    words = [word for word in words if word]
    if not any(len(word) > 1 for word in words):
        return []
    return [f"{_BEGINS}({'|'.join(re.escape(way) for way in _ways(word))})" for word in words]


def _ways(word: str) -> list[str]:
    lower = word.lower()
    return sorted({lower} if lower[0].isascii() else {lower, f"{lower[0].upper()}{lower[1:]}"})


def containing(part: str) -> str:
    """Return the pattern of LIKE for texts with this part."""
    escaped = re.sub(r"([\\%_])", r"\\\1", part)
    return f"%{escaped}%"


def find_parts(
    part: str, *, table: str, column: str, newest_first: str, id: str, only: str, values: Sequence[Any]
) -> Hits:
    """Return the newest of the first `READ` rows whose text has this part, in any case.

    `only` is a condition in SQL of the rows that may be found, with its `values`. Call the function only for
    a text that `is_part`. A database without the extension reads no row.
    """
    # PostgreSQL plans a materialized query as if all of its rows were read, and takes the index. For the
    # first rows alone it might read the table, and find none.
    sql = f"""
        WITH hits AS MATERIALIZED (
            SELECT * FROM {table}
            WHERE {HAS_TRIGRAMS} AND {column} <> '' AND upper({column}) LIKE upper(%s)
        ), read AS MATERIALIZED (SELECT * FROM hits LIMIT {READ})
        SELECT ARRAY(SELECT {id} FROM read WHERE {only} ORDER BY {newest_first} LIMIT {LIMIT + 1}),
            (SELECT count(*) FROM read)
    """  # noqa: S608 - our names
    with connections[replica.alias()].cursor() as cursor:
        cursor.execute(sql, [containing(part), *values])
        ids, count = cursor.fetchone()
    return Hits.of(ids, is_cut=count >= READ)


def is_part(text: str) -> bool:
    """Return whether a text is long enough for `find_parts`."""
    return len(text) >= SHORTEST and _TRIGRAM.search(text) is not None


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
