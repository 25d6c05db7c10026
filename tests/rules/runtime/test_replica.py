"""A replica is read while it is fresh, and skipped for a while after it was not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, ProgrammingError, transaction

from runtime.database import replica
from runtime.database.replica import ALIAS, SKIP_SECONDS
from tests.kit.fake_replica import FakeReplica
from tests.kit.words import Heartbeat


@pytest.fixture
def real_check() -> Callable[[], None]:
    return replica._check_age


@pytest.fixture
def fake(real_check: object, fake_replica: FakeReplica) -> FakeReplica:
    return fake_replica


def who() -> str:
    return replica.read(replica.alias)


def test_nothing_is_read_from_a_replica_that_is_not_set():
    assert not replica.is_set() and who() == "default"


def test_a_fresh_replica_is_read(fake):
    assert who() == ALIAS and replica.alias() == "default"


@pytest.mark.parametrize(("behind", "reader"), [(0, ALIAS), (4.9, ALIAS), (5.1, "default"), (60, "default")])
def test_it_is_read_up_to_five_seconds_behind(fake, behind, reader):
    fake.age = behind
    assert who() == reader


def test_it_is_skipped_for_a_while_after_it_was_behind(fake):
    fake.fail()
    assert who() == "default"
    fake.age = 0
    fake.clock += SKIP_SECONDS - 1
    assert who() == "default"
    fake.clock += 1
    assert who() == ALIAS


def test_a_primary_is_no_replica(fake, monkeypatch, real_check):
    monkeypatch.setattr(replica, "_check_age", real_check)
    assert who() == "default"
    with pytest.raises(OperationalError, match="it does not follow a primary"):
        real_check()


def fail_on_replica(error: Exception) -> str:
    def work() -> str:
        if replica.alias() == ALIAS:
            raise error
        return replica.alias()

    return replica.read(work)


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("canceling statement due to conflict with recovery"),
        ProgrammingError('column "new" does not exist'),  # a schema before a migration
    ],
)
def test_the_primary_answers_if_it_fails_and_it_is_skipped(fake, error, caplog):
    assert fail_on_replica(error) == "default"
    assert who() == "default"
    fake.clock += SKIP_SECONDS
    assert fail_on_replica(error) == "default"
    assert [record.msg["event"] for record in caplog.records] == ["replica skipped"], "once"
    fake.clock += SKIP_SECONDS
    assert who() == ALIAS


def test_an_error_of_the_reader_is_its_own(fake):
    calls = []

    def work() -> None:
        calls.append(replica.alias())
        raise KeyError

    with pytest.raises(KeyError):
        replica.read(work)
    assert calls == [ALIAS] and who() == ALIAS


def test_a_transaction_reads_from_the_primary(fake):
    with transaction.atomic():
        assert who() == "default"
    assert who() == ALIAS


def test_the_router_sends_rows_to_the_replica_and_rights_to_the_primary(fake):
    Heartbeat.beat(name="poll")

    def read() -> tuple[Any, ...]:
        return Heartbeat.objects.get(name="poll"), Heartbeat.objects.all().db, User.objects.all().db

    row, of_rows, of_rights = replica.read(read)
    assert row._state.db == ALIAS and (of_rows, of_rights) == (ALIAS, "default")
    row.refresh_from_db()
    assert row._state.db == "default", "outside a read, even a row that came from the replica"
    row = replica.read(read)[0]
    row.save()
    assert row._state.db == "default"
