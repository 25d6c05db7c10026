"""Which committed transactions a statement does not see yet."""

from __future__ import annotations

import psycopg
import pytest

from outbox.database.transactions import invisible, unseen
from tests.outbox.retention.months import dsn

pytestmark = pytest.mark.django_db(transaction=True)


def _begin(session: psycopg.Connection[tuple[int]]) -> int:
    (id,) = session.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
    return id & 0xFFFF_FFFF


def test_it_names_running_transactions_also_the_newest_and_none_that_has_ended():
    with psycopg.connect(dsn()) as first, psycopg.connect(dsn()) as second, psycopg.connect(dsn()) as third:
        old, between, newest = _begin(first), _begin(second), _begin(third)
        second.commit()
        assert invisible({old, between, newest}) == {old, newest}
        first.rollback()
        third.commit()
        assert invisible({old, between, newest}) == set()


@pytest.mark.parametrize("ceiling", [2**32 - 3, 2**32, 2**33 + 8])
def test_ids_wrap_around_after_four_billion(ceiling):
    """The snapshot has the whole id, the log its lower 32 bits."""
    ended, runs, newer = ((ceiling + offset) % 2**32 for offset in (-3, -2, 5))
    assert unseen({ended, runs, newer}, f"{ceiling - 3}:{ceiling}:{ceiling - 2}") == {runs, newer}
