"""A CHECK is replaced beside writers: a short lock, and existing rows are checked without it."""

from __future__ import annotations

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, models
from django.db.migrations.loader import MigrationLoader
from django.db.models import Q

from orders.models import Order
from outbox.core.constraint_migrations import ReplaceConstraint
from tests.factories import make_order
from tests.outbox.retention.months import dsn

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "orders_currency_form"
WIDER = Q(currency__regex=r"^[A-Z]{3,4}$")


def replace(condition: Q, *, undo: bool = False) -> None:
    before = MigrationLoader(connection).project_state()
    after = before.clone()
    operation = ReplaceConstraint("order", models.CheckConstraint(condition=condition, name=NAME))
    operation.state_forwards("orders", after)
    with connection.schema_editor(atomic=False) as editor:
        if undo:
            operation.database_backwards("orders", editor, after, before)
        else:
            operation.database_forwards("orders", editor, before, after)


@pytest.fixture
def as_before():
    yield
    Order.objects.all().delete()
    replace(WIDER, undo=True)


def test_the_new_rule_holds_and_the_old_one_comes_back(as_before):
    replace(Q(currency__in=["USD", "EUR"]))
    make_order(currency="EUR")
    with pytest.raises(IntegrityError):
        make_order(currency="CHF")
    replace(WIDER, undo=True)
    make_order(currency="CHF")


def test_a_row_that_breaks_the_rule_is_found_and_a_second_run_goes_on(as_before):
    make_order(currency="CHF")
    with pytest.raises(IntegrityError):
        replace(Q(currency__in=["USD", "EUR"]))
    Order.objects.update(currency="USD")
    replace(Q(currency__in=["USD", "EUR"]))
    with connection.cursor() as cursor:
        cursor.execute("SELECT convalidated FROM pg_constraint WHERE conname = %s", [NAME])
        assert cursor.fetchall() == [(True,)]


def test_it_does_not_wait_long_for_a_writer_and_leaves_the_old_rule(as_before, monkeypatch):
    monkeypatch.setattr(ReplaceConstraint, "LOCK_TIMEOUT", "100ms")
    make_order()
    with psycopg.connect(dsn()) as writer:
        writer.execute("UPDATE orders SET name = name")
        with pytest.raises(OperationalError, match="lock timeout"):
            replace(Q(currency__in=["USD", "EUR"]))
    make_order(currency="CHF")
