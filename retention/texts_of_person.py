"""Export and erase a person in texts that are stored as they came: answers, dead events, and posts of shops.

A model of such texts has the columns `order_id` and `address_hashes` (a list), which are written with the
texts: the order that they are about, and the keyed hash of each address in them. So nobody searches the
texts. A row is the person's if its order is theirs, or if it has their hash. The model's `erased_texts` says
in SQL what a column has after an erasure. Keys and ids stay, so that a repeat still does nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.db import models

from retention.partitions.locks import no_statement_timeout
from retention.person import Person

#: The condition of a person's rows, with the parameters of `values_of`.
THEIRS = "(order_id = ANY(%s) OR address_hashes ?| %s)"


def values_of(person: Person) -> list[Any]:
    return [list(person.owner_ids), [person.hash]]


def erase_texts(*, person: Person) -> Counter[str]:
    """Erase the texts of a person's rows. Return the number of changed rows by table."""
    counts: Counter[str] = Counter()
    for model in _models():
        erased: dict[str, str] = getattr(model, "erased_texts")  # noqa: B009 - not of every model
        sets = ", ".join(f"{column} = {value}" for column, value in erased.items())
        table, columns, values = model._meta.db_table, ", ".join(erased), ", ".join(erased.values())
        key = ", ".join(field.attname for field in model._meta.pk_fields)
        with no_statement_timeout(using="default") as cursor:
            # Others lock several rows in this order, too.
            cursor.execute(
                f"UPDATE {table} SET {sets} WHERE ({key}) IN ("  # noqa: S608 - the models' own SQL
                f"SELECT {key} FROM {table} WHERE {THEIRS} AND ({columns}) IS DISTINCT FROM ({values})"
                f" ORDER BY {key} FOR UPDATE)",
                values_of(person),
            )
            counts[table] = cursor.rowcount
    return +counts


def export_texts(*, person: Person) -> dict[str, list[dict[str, Any]]]:
    """Return a person's rows by table, with placeholders for other people's addresses."""
    return {model._meta.db_table: list(_rows(model, person)) for model in _models()}


def _rows(model: type[models.Model], person: Person) -> Iterator[dict[str, Any]]:
    names = [field.attname for field in model._meta.concrete_fields if field.attname != "address_hashes"]
    with no_statement_timeout(using="default") as cursor:
        cursor.execute(
            f"SELECT {', '.join(names)} FROM {model._meta.db_table} WHERE {THEIRS} ORDER BY 1, 2",  # noqa: S608
            values_of(person),
        )
        for row in cursor.fetchall():
            yield person.only_their_address(dict(zip(names, row, strict=True)))


def _models() -> list[type[models.Model]]:
    return [model for model in apps.get_models() if hasattr(model, "erased_texts")]
