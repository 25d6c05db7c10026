"""One replication connection to a real PostgreSQL: what it receives, reports and leaves behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import tracemalloc
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from local.machine import free_port
from outbox.wal import stream as module
from outbox.wal.stream import NotReady, Stream, StreamEnded
from tests.needs import needs
from tests.outbox.wal.server import WATCHED, running
from tests.proxy import Proxy
from tests.waiting import until

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


def answers(url: str, port: int) -> bool:
    try:
        psycopg.connect(url, port=port).close()
    except psycopg.OperationalError:
        return False
    return True


def received(stream: Stream, *, quiet: float = 0.3) -> list[set[str]]:
    """Return the tables of each transaction that comes until it has been quiet."""
    found: list[set[str]] = []
    while done := stream.receive(seconds=60 if not found else quiet):  # a busy machine decodes slowly
        found.append(set(done.tables))
    return found


class TestReceive:
    def test_gives_the_lower_half_of_the_transactions_id(self, db, stream):
        with db.transaction():
            db.execute("INSERT INTO events VALUES (1, '{}')")
            ((id,),) = db.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
        done = stream.receive(seconds=60)
        assert done is not None and done.xid == id & 0xFFFF_FFFF

    def test_names_the_table_of_each_transaction_once_however_many_rows_it_wrote(self, db, stream):
        db.execute("INSERT INTO mails SELECT n, 'text', 'pending' FROM generate_series(1, 50) AS n")
        with db.transaction():
            db.execute("INSERT INTO mails VALUES (51, 'text', 'pending')")
            db.execute("INSERT INTO events VALUES (1, '{}')")
        db.execute("INSERT INTO events VALUES (2, '{}')")
        assert received(stream) == [{"mails"}, {"mails", "events"}, {"events"}]

    def test_names_no_other_table_and_no_transaction_that_was_rolled_back(self, db, stream):
        db.execute("INSERT INTO others VALUES (1, 'text')")
        with db.transaction(force_rollback=True):
            db.execute("INSERT INTO mails VALUES (1, 'text', 'pending')")
        db.execute("INSERT INTO events VALUES (1, '{}')")
        assert received(stream) == [{"events"}]

    def test_names_a_table_for_updates_that_make_a_row_due_and_for_no_others(self, db, stream):
        db.execute("INSERT INTO mails VALUES (1, NULL, 'pending')")
        for status in ("processing", "sent", "failed", "dead_lettered", "pending"):
            db.execute("UPDATE mails SET status = %s", [status])
        db.execute("UPDATE mails SET id = 2")  # the message then begins with the old key
        db.execute("INSERT INTO mails VALUES (3, 'text', 'suppressed')")
        db.execute("INSERT INTO events VALUES (1, '{}')")
        db.execute("UPDATE events SET payload = '[]'")
        assert received(stream) == [{"mails"}] * 4 + [{"events"}]

    def test_finds_the_state_behind_a_long_text_that_an_update_did_not_change(self, db, stream):
        text = "SELECT 1, string_agg(md5(n::text), ''), 'sent' FROM generate_series(1, 2000) AS n"
        db.execute(f"INSERT INTO mails {text}")
        db.execute("UPDATE mails SET status = 'pending'")
        assert received(stream) == [{"mails"}]

    def test_names_a_partition_that_was_added_meanwhile_by_its_table(self, db, stream):
        db.execute("CREATE TABLE mails_2 (LIKE mails)")
        db.execute("ALTER TABLE mails ATTACH PARTITION mails_2 FOR VALUES FROM (1000000) TO (2000000)")
        db.execute("INSERT INTO mails VALUES (1000001, 'text', 'pending')")
        assert received(stream) == [{"mails"}]
        db.execute("DROP TABLE mails_2")

    def test_goes_on_through_a_column_that_was_added_before_the_state(self, db, stream):
        db.execute("INSERT INTO mails VALUES (1, 'text', 'pending')")
        db.execute("ALTER TABLE mails ADD COLUMN more text")
        db.execute("INSERT INTO mails VALUES (2, 'text', 'pending', 'more')")
        assert received(stream) == [{"mails"}] * 2
        db.execute("ALTER TABLE mails DROP COLUMN more")

    def test_keeps_nothing_of_a_huge_transaction(self, db, stream):
        rows = 100_000
        tracemalloc.start()
        try:
            db.execute(
                "INSERT INTO mails SELECT n, repeat('x', 200), 'pending' FROM generate_series(1, %s) AS n",
                [rows],
            )
            assert received(stream) == [{"mails"}]
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


class TestSlot:
    def test_is_temporary_and_goes_with_the_session_as_the_leaders_lock_does(self, server, stream):
        slots = "SELECT slot_name, temporary FROM pg_replication_slots"
        assert server.sql(slots) == [(stream.slot, True)]
        other = Stream(params=server.params(), watched=WATCHED)
        assert not other.lead()
        stream.close()
        until(lambda: server.sql(slots) == [])
        until(other.lead)
        other.close()

    def test_moves_on_over_transactions_of_other_tables_so_that_wal_can_be_removed(self, server, db, stream):
        db.execute("INSERT INTO others SELECT n, 'text' FROM generate_series(1, 1000) AS n")
        ((written,),) = db.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchall()

        def confirmed() -> bool:
            stream.receive(seconds=0.2)
            ((at,),) = server.sql("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots")
            return bool(at >= written)

        until(confirmed)

    def test_begins_only_with_what_commits_after_it(self, server, db):
        db.execute("INSERT INTO events VALUES (1, '{}')")
        stream = Stream(params=server.params(), watched=WATCHED)
        stream.begin()
        db.execute("INSERT INTO mails VALUES (1, 'text', 'pending')")
        assert received(stream) == [{"mails"}]
        stream.close()


class TestSilence:
    def test_a_server_that_hears_nothing_but_reports_keeps_the_session(self, server, monkeypatch):
        monkeypatch.setattr(module, "SENDER_TIMEOUT", "800ms")
        monkeypatch.setattr(module, "REPORT_SECONDS", 0.2)
        stream = Stream(params=server.params(), watched=WATCHED)
        stream.check()
        stream.begin()
        assert stream.receive(seconds=1.6) is None
        server.sql("INSERT INTO events VALUES (7, '{}')")
        assert received(stream) == [{"events"}]
        stream.close()

    def test_ends_the_stream_of_a_server_that_answers_nothing(self, server, monkeypatch):
        monkeypatch.setattr(module, "PING_SECONDS", 0.1)
        monkeypatch.setattr(module, "REPORT_SECONDS", 0.1)
        monkeypatch.setattr(module, "SILENT_SECONDS", 1.0)
        with Proxy(port=server.port) as proxy:
            stream = Stream(params=server.params(port=proxy.port), watched=WATCHED)
            stream.begin()
            assert stream.receive(seconds=1.5) is None  # its pings are answered
            proxy.drop()
            with pytest.raises(StreamEnded, match="silent for 1 s"):
                stream.receive(seconds=30)
            stream.close()

    def test_a_killed_session_ends_the_stream(self, server, stream):
        server.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        with pytest.raises((StreamEnded, psycopg.OperationalError), match="terminating connection"):
            stream.receive(seconds=10)


class TestNotReady:
    def test_names_the_publications_that_are_missing_or_wrong(self, server):
        server.sql("ALTER PUBLICATION orderpost_mails SET (publish_via_partition_root = false)")
        server.sql("DROP PUBLICATION orderpost_events")
        stream = Stream(params=server.params(), watched=WATCHED)
        with pytest.raises(NotReady, match=r"orderpost_events, orderpost_mails .* --make-publications"):
            stream.check()
        stream.close()
        server.sql("ALTER PUBLICATION orderpost_mails SET (publish_via_partition_root = true)")
        server.sql(
            "CREATE PUBLICATION orderpost_events FOR TABLE events"
            " WITH (publish = 'insert', publish_via_partition_root = true)"
        )

    def test_a_role_that_may_not_replicate_is_told_so(self, server):
        server.sql("CREATE ROLE nobody LOGIN")
        with pytest.raises(NotReady, match="REPLICATION"):
            Stream(params=server.params(user="nobody"), watched=WATCHED)

    def test_a_server_that_is_away_is_no_mistake_of_the_settings(self, server):
        with pytest.raises(psycopg.OperationalError):
            Stream(params=server.params(port=1), watched=WATCHED)

    @pytest.mark.drill
    def test_a_server_without_logical_wal_is_named(self):
        with running(wal_level="replica") as other:
            stream = Stream(params=other.params(), watched=WATCHED)
            with pytest.raises(NotReady, match=r"wal_level = replica\. Set wal_level = logical"):
                stream.check()
            stream.close()

    @needs("pgbouncer", PGBOUNCER)
    @pytest.mark.parametrize("ignored", ["", "replication"])
    def test_a_pooler_in_the_url_is_named(self, server, tmp_path, ignored):
        port = free_port()
        tmp_path.chmod(0o755)  # pgbouncer refuses root, so that nobody reads it
        for folder in tmp_path.parents:
            if folder.name.startswith(("pytest-", "popen-")):
                folder.chmod(0o755)
        settings = Path(tmp_path) / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=orderpost\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\nignore_startup_parameters = extra_float_digits,{ignored}\n"
        )
        user = "nobody" if os.geteuid() == 0 else None
        process = subprocess.Popen([str(PGBOUNCER), str(settings)], user=user, stderr=subprocess.DEVNULL)
        try:
            until(lambda: answers(server.url, port))
            with (
                ExitStack() as opened,
                pytest.raises(NotReady, match=r"not to (pgbouncer|PostgreSQL itself)"),
            ):
                params = server.params(port=port)
                opened.enter_context(closing(Stream(params=params, watched=WATCHED))).check()
        finally:
            process.terminate()
            process.wait(10)
