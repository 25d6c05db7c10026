"""Callbacks after the outermost commit."""

from __future__ import annotations

import pytest
from django.db import transaction

from runtime.database.transactions import after_commit
from tests.kit.words import Context, context


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
