"""Inserts from a mapping of column to value, and what is done after the outermost commit."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection, transaction

from runtime.database.statement import StatementPart, execute, insert
from runtime.database.transactions import after_commit
from tests.kit.words import Context, context

TABLE = "statement_rows"


@pytest.fixture
def table(db):
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


def test_writes_each_value_into_the_column_of_its_name(table):
    turned = dict(reversed(row(n=7).items()))
    del turned["text"]
    execute(inserts=[insert(TABLE, turned, fixed=(("text", "'x'"),))])
    assert stored() == [(7, "x", "1")]


def test_has_one_text_and_one_kind_of_parameters_for_all_values_of_the_same_columns(table):
    small, large = insert(TABLE, row(n=1)), insert(TABLE, row(n=2**30))
    assert small.steps == large.steps
    assert [type(value) for value in small.values] == [type(value) for value in large.values]


def test_inserts_nothing_after_a_step_without_a_row(table):
    execute(guard=StatementPart(("SELECT 1 WHERE false",), []), inserts=[insert(TABLE, row())])
    assert stored() == []


@pytest.mark.django_db(transaction=True)
class TestAfterCommit:
    """Log lines about rows are written then, in the context of the change."""

    def test_it_is_at_once_outside_a_transaction(self):
        told: list[str] = []
        after_commit(lambda: told.append("now"))
        assert told == ["now"]

    def test_it_waits_for_the_outermost_commit(self):
        told: list[str] = []
        with transaction.atomic():
            with transaction.atomic():
                after_commit(lambda: told.append("committed"))
            assert told == []
        assert told == ["committed"]

    @pytest.mark.parametrize("savepoint", [True, False])
    def test_it_is_never_after_a_rollback_to_a_savepoint_or_of_everything(self, savepoint):
        told: list[str] = []
        with pytest.raises(ZeroDivisionError), transaction.atomic(), transaction.atomic(savepoint=savepoint):
            after_commit(lambda: told.append("rolled back"))
            1 / 0  # noqa: B018
        with transaction.atomic(), pytest.raises(ZeroDivisionError), transaction.atomic():
            after_commit(lambda: told.append("rolled back"))
            1 / 0  # noqa: B018
        assert told == []

    def test_it_has_the_correlation_id_of_the_change_and_not_of_the_commit(self):
        told: list[str] = []
        with context.working_for(Context("of-the-commit")), transaction.atomic():
            with context.working_for(Context("of-the-change")):
                after_commit(lambda: told.append(context.current().correlation_id))
            assert told == []
        assert told == ["of-the-change"]

    def test_its_error_stops_neither_the_caller_nor_other_callbacks(self):
        told: list[str] = []

        def broken() -> None:
            raise ValueError("broken")

        with transaction.atomic():
            after_commit(broken)
            after_commit(lambda: told.append("still"))
        after_commit(broken)
        assert told == ["still"]
