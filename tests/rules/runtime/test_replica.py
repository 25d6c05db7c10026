"""A replica is read while it is fresh, and left alone for a while after it was not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, ProgrammingError, transaction

from runtime.database import replica
from runtime.database.replica import ALIAS, AWAY_SECONDS, LIMIT_SECONDS, Walk
from tests.kit.fake_replica import FakeReplica
from tests.kit.words import Heartbeat


@pytest.fixture
def fake(fake_replica: FakeReplica) -> FakeReplica:
    return fake_replica


def who() -> str:
    return replica.read(replica.alias)


def test_nothing_is_read_from_a_replica_that_is_not_set():
    assert not replica.is_set() and who() == "default"


def test_a_fresh_replica_is_read(fake):
    assert who() == ALIAS and replica.alias() == "default"


@pytest.mark.parametrize(("behind", "reader"), [(0, ALIAS), (4, ALIAS), (6, "default"), (60, "default")])
def test_it_is_read_up_to_five_seconds_behind(fake, behind, reader):
    fake.pass_seconds(10)
    fake.lag = behind  # the primary writes one position a second
    assert who() == reader


def test_it_is_fresh_however_long_nobody_writes(fake):
    fake.pass_seconds(60, writes=0)
    assert who() == ALIAS


def test_it_is_left_alone_for_a_while_after_it_was_behind(fake):
    fake.pass_seconds(10)
    fake.lag = 60
    assert fake.pass_seconds(1) == [False]
    fake.lag = 0
    assert who() == "default"
    found = fake.pass_seconds(int(AWAY_SECONDS) + 1)
    assert found.index(True) == AWAY_SECONDS - 1
    assert who() == ALIAS


def test_it_is_not_read_while_nobody_knows_where_the_primary_is(fake):
    fake.clock += LIMIT_SECONDS + 1
    assert who() == "default"
    assert fake.pass_seconds(2) == [False, True], "the first look only notes the primary's position"


def test_a_promoted_one_is_no_replica(fake):
    fake.promoted = True
    assert who() == "default"
    assert not any(fake.pass_seconds(30))


def fail_on_replica(error: Exception) -> str:
    def work() -> str:
        if replica.alias() == ALIAS:
            raise error
        return replica.alias()

    return replica.read(work)


def test_the_primary_answers_if_it_fails_and_it_is_left_alone(fake):
    error = OperationalError("canceling statement due to conflict with recovery")
    assert fail_on_replica(error) == "default"
    assert who() == "default"
    fake.pass_seconds(int(AWAY_SECONDS) + 1)
    assert who() == ALIAS


def test_the_primary_answers_what_a_schema_before_a_migration_cannot(fake):
    assert fail_on_replica(ProgrammingError('column "new" does not exist')) == "default"
    assert who() == ALIAS, "others read on"


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


def test_a_walk_stays_on_the_primary_once_it_read_there(fake):
    fake.pass_seconds(10)
    walk = Walk()
    assert replica.read(replica.alias, walk=walk) == ALIAS and walk.since == fake.replayed()
    fake.lag = 3
    assert replica.read(replica.alias, walk=walk) == "default", "this replica has not replayed the last page"
    fake.lag = 0
    assert replica.read(replica.alias, walk=walk) == "default"
    assert who() == ALIAS


def test_a_replica_that_is_promoted_while_it_reads_is_asked_for_nothing(fake):
    def work() -> str:
        fake.promoted = True
        return replica.alias()

    walk = Walk()
    assert replica.read(work, walk=walk) == "default" and walk.since is None


class Servers:
    """A primary and two replicas with random lags, one of which a read's connection leads to."""

    def __init__(self, fake: FakeReplica, chance: random.Random) -> None:
        self.fake, self.chance = fake, chance
        self.replicas = [100, 100]
        self.used = 0
        self.history = [(fake.clock, 100)]

    def go_on(self) -> None:
        """Let some time pass: the primary writes, and each replica replays, freezes or falls behind."""
        fake, chance = self.fake, self.chance
        for _ in range(chance.choice([0, 0, 1, 1, 2, 8])):
            fake.clock += 1.0
            fake.written += chance.choice([0, 1, 5])
            self.history.append((fake.clock, fake.written))
            for number, position in enumerate(self.replicas):
                step = chance.choice([0, 1, 5, 1000])
                self.replicas[number] = min(fake.written, position + step)
            self.used = chance.randrange(2)
            fake.known.look()
        self.used = chance.randrange(2)

    def answer(self) -> int:
        """Return the position of the data that the server has which answers now."""
        if replica.alias() != ALIAS:
            return self.fake.written
        if self.chance.random() < 0.05:
            raise OperationalError("killed")
        return self.replicas[self.used]

    def oldest_allowed(self) -> int:
        limit = self.fake.clock - LIMIT_SECONDS
        return max((lsn for at, lsn in self.history if at < limit), default=0)


def test_no_page_is_older_than_the_page_before_it_or_than_five_seconds(fake, monkeypatch):
    chance = random.Random(random.random())
    servers = Servers(fake, chance)
    monkeypatch.setattr(replica, "_replayed", lambda: servers.replicas[servers.used])
    by_replica = 0
    for _ in range(300):
        walk, last = Walk(), 0
        for _ in range(6):
            servers.go_on()
            page = replica.read(servers.answer, walk=walk)
            assert page >= last and page >= servers.oldest_allowed()
            last = page
            by_replica += walk.since is not None
    assert by_replica > 50
