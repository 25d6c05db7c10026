"""Each transactional test finds the database as `migrate` left it, whatever the test before it wrote."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connection
from django.test import TransactionTestCase

from tests.kit.emptying import Emptying
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.words import OutboxEvent, make_groups

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "owner"])


class Counted(Emptying):
    """Counts how often it takes Django's way, and has taken it once."""

    def __init__(self) -> None:
        super().__init__(self.flush)
        self.flushes = 0
        self()

    def __call__(self, case: TransactionTestCase | None = None) -> None:
        super().__call__(case)  # type: ignore[arg-type]

    def flush(self, _: TransactionTestCase) -> None:
        self.flushes += 1
        call_command("flush", verbosity=0, interactive=False, reset_sequences=False)


@pytest.fixture
def emptying() -> Counted:
    return Counted()


def rows() -> dict[str, str]:
    """Return all rows of the tables that Django flushes, as text, where there are some."""
    found = {}
    with connection.cursor() as cursor:
        for name in connection.introspection.django_table_names(only_existing=True):
            cursor.execute(f"SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM {name} t")
            if (text := cursor.fetchone()[0]) is not None:
                found[name] = text
    return found


def pages() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_relation_size(oid)) FROM pg_class"
            " WHERE relkind = 'r' AND relname LIKE 'outbox_ev%%'"
        )
        return int(cursor.fetchone()[0])


def test_it_empties_what_was_written_and_whatever_refers_to_it(emptying):
    before = rows()
    assert "auth_permission" in before
    order = make_order()
    make_mail(order_id=order.id)
    OutboxEvent.objects.create(
        aggregate_type="order", aggregate_id=order.id, event_type="t.v1", payload={}, sequence=1, shard=1
    )
    User.objects.create_user("ann").groups.add(Group.objects.get(name="viewer"))
    assert len(rows()) >= len(before) + 5
    emptying()
    assert rows() == before
    assert pages() == 0
    assert emptying.flushes == 1, "the first time only"


@pytest.mark.parametrize(
    "change",
    [
        lambda: Group.objects.get(name="operator").delete(),
        lambda: Group.objects.get(name="viewer").permissions.clear(),
        lambda: Group.objects.create(name="a shop's own"),
    ],
    ids=["a group is gone", "a group may do less", "another group"],
)
def test_what_migrate_makes_is_there_again(emptying, change):
    change()
    emptying()
    assert emptying.flushes == 2
    assert set(Group.objects.values_list("name", flat=True)) == {"viewer", "support", "operator"}
    assert Group.objects.get(name="viewer").permissions.exists()
    make_groups(using="default")
    emptying()
    assert emptying.flushes == 2, "what Django's way made again is what the next test finds"


def test_a_partition_that_was_dropped_is_made_again(emptying):
    child = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass"
    with connection.cursor() as cursor:
        cursor.execute(f"{child} ORDER BY 1")
        names = [name for (name,) in cursor.fetchall()]
        cursor.execute(f"DROP TABLE {names[-1]}")
        emptying()
        cursor.execute(f"{child} ORDER BY 1")
        assert [name for (name,) in cursor.fetchall()] == names
