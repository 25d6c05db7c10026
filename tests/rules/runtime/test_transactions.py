"""Inserts from a mapping of column to value. tests/races/test_order_changes.py tests whole changes."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection

from outbox.database.statement import Part, execute, insert

pytestmark = pytest.mark.django_db
TABLE = "statement_rows"


@pytest.fixture(autouse=True)
def table():
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE {TABLE} (id uuid PRIMARY KEY, n int, text text, list jsonb)")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {TABLE}")


def row(**values):
    return {"id": uuid.uuid4(), "n": 1, "text": "é", "list": [{"a": 1}], **values}


def stored():
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT n, text, list->0->>'a' FROM {TABLE}")
        return cursor.fetchall()


def test_writes_each_value_into_the_column_of_its_name():
    turned = dict(reversed(row(n=7).items()))
    del turned["text"]
    execute(inserts=[insert(TABLE, turned, fixed=(("text", "'x'"),))])
    assert stored() == [(7, "x", "1")]


def test_has_one_text_and_one_kind_of_parameters_for_all_values_of_the_same_columns():
    small, large = insert(TABLE, row(n=1)), insert(TABLE, row(n=2**30))
    assert small.steps == large.steps
    assert [type(value) for value in small.values] == [type(value) for value in large.values]


def test_inserts_nothing_after_a_step_without_a_row():
    execute(guard=Part(("SELECT 1 WHERE false",), []), inserts=[insert(TABLE, row())])
    assert stored() == []
