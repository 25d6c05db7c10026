"""Prepared statements through pgbouncer, which refuses `options` at connect.

Versions before 1.21 cannot share prepared statements between sessions: in session mode, or without them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import OperationalError, connection

from config.local.machine import free_port
from outbox.core.postgres.cursor import Prepared
from tests.local.helpers import eventually
from tests.outbox.core.test_postgres import ask, wrapper
from tests.outbox.retention.months import dsn

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed"),
]


@pytest.fixture(params=["session"])
def pooler(request: pytest.FixtureRequest) -> Iterator[int]:
    given, port = connection.settings_dict, free_port()
    with tempfile.TemporaryDirectory(prefix="orderpost-pgbouncer-") as folder:
        Path(folder).chmod(0o755)  # pgbouncer refuses root, so that nobody reads it
        settings = Path(folder) / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={given['HOST']} port={given['PORT']} user={given['USER']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {request.param}\ndefault_pool_size = 1\n"
        )
        user = "nobody" if os.geteuid() == 0 else None
        process = subprocess.Popen([str(PROGRAM), str(settings)], user=user, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: answers(process, port), seconds=20)
            yield port
        finally:
            process.terminate()
            process.wait(10)


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    try:
        psycopg.connect(dsn(), port=port).close()
    except psycopg.OperationalError:
        assert process.poll() is None
        return False
    return True


def test_statements_are_prepared_and_planned_for_their_values(pooler):
    with wrapper(port=pooler) as database:
        database.settings_dict["OPTIONS"]["prepare_threshold"] = 1
        for number in range(8):
            assert ask(database, "SELECT %s::int + 1", [number]) == number + 1
        assert ask(database, "SELECT current_setting('plan_cache_mode')") == "force_custom_plan"
        assert ask(database, "SELECT count(*) FROM pg_prepared_statements") >= 1


def test_options_at_connect_would_be_refused(pooler):
    with wrapper(port=pooler) as database:
        database.settings_dict["OPTIONS"]["options"] = "-c plan_cache_mode=force_custom_plan"
        with pytest.raises(OperationalError, match="unsupported startup parameter"):
            ask(database)


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_sessions_may_be_shared_once_prepared_statements_are_off(pooler):
    """Two of our connections take turns on one session of the server."""
    with wrapper(port=pooler) as database:
        database.settings_dict["OPTIONS"]["prepared"] = False
        other = database.copy()
        try:
            for number in range(4):
                for mine in (database, other):
                    assert ask(mine, Prepared("SELECT %s::int + 1"), [number]) == number + 1
            pids = {ask(mine, "SELECT pg_backend_pid()") for mine in (database, other)}
            assert len(pids) == 1
        finally:
            other.close()
