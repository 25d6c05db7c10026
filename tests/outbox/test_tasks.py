"""The former daily tasks, in a worker whose role owns no table."""

from __future__ import annotations

import pytest
from django.db import connections

from outbox import conditions, tasks
from outbox.models import Heartbeat
from outbox.retention.partitions import partitions
from outbox.retention.rollover import ROLLED_OVER
from tests.outbox.database.test_postgres import database_port
from tests.pgbouncer import Pooler, needs_pgbouncer


@pytest.fixture
def no_owner(transactional_db):
    with connections["owner"].cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS orderpost_reader")
        cursor.execute("CREATE ROLE orderpost_reader IN ROLE pg_read_all_data")
        cursor.execute("SET ROLE orderpost_reader")
        yield
        cursor.execute("RESET ROLE")
        cursor.execute("DROP ROLE orderpost_reader")


@pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
class TestWithoutTheOwnersUrl:
    def test_they_do_nothing_and_warn_while_keep_partitions_is_away(self, no_owner, caplog):
        tasks.ensure_partitions()
        tasks.rollover()
        warnings = [line for line in caplog.records if "keep_partitions does not run" in str(line.msg)]
        assert len(warnings) == 2

    def test_they_are_quiet_beside_keep_partitions(self, caplog, request):
        Heartbeat.beat(name=partitions.MADE)
        Heartbeat.beat(name=ROLLED_OVER)
        request.getfixturevalue("no_owner")
        tasks.ensure_partitions()
        tasks.rollover()
        assert not [line for line in caplog.records if "keep_partitions" in str(line.msg)]

    @needs_pgbouncer
    def test_they_do_nothing_and_warn_where_a_pooler_shares_the_sessions(self, caplog, monkeypatch):
        owner = connections["owner"]
        owner.close()
        with Pooler(server=database_port()) as pooler:
            monkeypatch.setitem(owner.settings_dict, "PORT", pooler.port)
            tasks.ensure_partitions()
            tasks.rollover()
            owner.close()
        warnings = [line for line in caplog.records if "keep_partitions does not run" in str(line.msg)]
        assert len(warnings) == 2

    def test_they_still_log_an_error_when_partitions_run_out(self, no_owner, caplog, monkeypatch):
        monkeypatch.setitem(conditions.AHEAD_ALARM, "day", 7)
        tasks.ensure_partitions()
        assert [line for line in caplog.records if "partitions run out" in str(line.msg)]
