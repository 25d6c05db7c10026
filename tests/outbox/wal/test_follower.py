"""The thread that always has a stream, with a real PostgreSQL: its turn, and every way to lose a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from outbox.telemetry.metrics import REGISTRY
from outbox.wal.follower import Follower, State
from outbox.wal.pgoutput import Committed
from tests.outbox.wal.server import SCHEMA, WATCHED, WalServer, running
from tests.waiting import until


class Owner:
    """Notes what a follower tells; `holds`, when cleared, keeps the follower's thread in its call."""

    def __init__(self, server: WalServer) -> None:
        self.begun = 0
        self.seen: list[frozenset[str]] = []
        self.times: list[float] = []
        self.stopped, self.holds = threading.Event(), threading.Event()
        self.holds.set()
        self.follower = Follower(params=server.params, watched=WATCHED, listener=self)
        self._thread = threading.Thread(target=self.follower.run, kwargs={"stopped": self.stopped})

    def became(self, state: State, /) -> None:
        self.begun += state == "streaming"

    def changed(self, committed: Committed, /) -> None:
        self.times.append(committed.committed_at)
        self.seen.append(committed.tables)
        assert self.holds.wait(30)

    def alive(self) -> None:
        pass

    def __enter__(self) -> Owner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.holds.set()
        self.stopped.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def is_streaming(self, *, times: int = 1) -> bool:
        return self.follower.state == "streaming" and self.begun == times


@pytest.fixture
def owner(server: WalServer, db: psycopg.Connection[tuple[object, ...]]) -> Iterator[Owner]:
    with Owner(server) as owner:
        until(owner.is_streaming)
        yield owner


def end_session(server: WalServer) -> None:
    server.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")


def test_tells_what_changed_as_soon_as_it_is_committed(owner, db):
    db.execute("INSERT INTO mails VALUES (1, 'text', 'pending')")
    until(lambda: owner.seen == [{"mails"}])


def test_counts_how_long_ago_by_the_servers_clock_a_commit_was(owner, db):
    def clock() -> float:
        return float(db.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()[0])

    labels = {"trigger": "wal"}
    count = REGISTRY.get_sample_value("orderpost_trigger_delay_seconds_count", labels) or 0
    before = clock()
    db.execute("INSERT INTO mails VALUES (1, 'text', 'pending')")
    after = clock()
    until(lambda: owner.seen)
    assert before - 1e-6 <= owner.times[0] <= after
    assert REGISTRY.get_sample_value("orderpost_trigger_delay_seconds_count", labels) == count + 1


def test_begins_anew_after_its_session_was_killed_and_has_its_owner_look_at_everything(owner, server, db):
    end_session(server)
    db.execute("INSERT INTO mails VALUES (1, 'text', 'pending')")  # nobody tells of this one
    until(lambda: owner.is_streaming(times=2))
    db.execute("INSERT INTO events VALUES (1, '{}')")
    until(lambda: {"events"} in owner.seen)


def test_one_leads_and_another_takes_over(owner, server, db):
    with Owner(server) as second:
        until(lambda: second.follower.state == "ready")
        db.execute("INSERT INTO mails VALUES (1, 'text', 'pending')")
        until(lambda: owner.seen)
        assert second.seen == [] and second.begun == 0
        assert len(server.sql("SELECT slot_name FROM pg_replication_slots")) == 1
        owner.stopped.set()
        until(second.is_streaming)
        db.execute("INSERT INTO mails VALUES (2, 'text', 'pending')")
        until(lambda: second.seen)
        assert len(owner.seen) == 1


def test_a_stuck_one_keeps_no_wal_and_begins_anew_with_a_full_look(owner, server, db, caplog):
    owner.holds.clear()
    db.execute("INSERT INTO mails VALUES (1, 'text', 'pending')")
    until(lambda: owner.seen)
    ((stuck,),) = server.sql("SELECT slot_name FROM pg_replication_slots")
    for _ in range(6):  # 16 MB of WAL each, of which 64 may stay
        db.execute("SELECT pg_logical_emit_message(false, 'x', 'y')")
        db.execute("SELECT pg_switch_wal()")
    db.execute("CHECKPOINT")
    until(lambda: server.sql("SELECT slot_name FROM pg_replication_slots") == [])
    owner.holds.set()
    until(lambda: owner.is_streaming(times=2))
    ((fresh,),) = server.sql("SELECT slot_name FROM pg_replication_slots")
    assert fresh != stuck
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    ends = [line for line in lines if line["event"] == "wal is not followed, trying again"]
    begins = [line for line in lines if line["event"] == "wal is followed"]
    assert "terminating connection" in ends[-1]["error"]
    assert [line["unseen_bytes"] is not None for line in begins] == [True]


def test_a_long_transaction_delays_the_beginning_and_not_the_end(server, db):
    # PostgreSQL may not have ended the session of the test before: its slot would be taken for this one's.
    until(lambda: not server.sql("SELECT slot_name FROM pg_replication_slots"))
    with psycopg.connect(server.url) as writer, ExitStack() as later:
        writer.execute("INSERT INTO others VALUES (1, 'text')")
        owner = later.enter_context(Owner(server))
        until(lambda: server.sql("SELECT slot_name FROM pg_replication_slots"))
        assert owner.follower.state == "away"  # so its owner claims without being woken
        writer.commit()
        until(owner.is_streaming)


@pytest.mark.drill
def test_goes_on_after_a_restart_of_postgresql_by_force():
    with ExitStack() as stack:
        server = stack.enter_context(running())
        server.sql(SCHEMA)
        owner = stack.enter_context(Owner(server))
        for times in (1, 2, 3):
            until(lambda: owner.is_streaming(times=times))  # noqa: B023 - called at once
            server.sql(f"INSERT INTO mails VALUES ({times}, 'text', 'pending')")
            until(lambda: len(owner.seen) == times)  # noqa: B023
            assert server._process is not None
            server._process.kill()
            server._process.wait(20)
            server.stop()
            server.start(log=server.data.parent / "postgres.log")
