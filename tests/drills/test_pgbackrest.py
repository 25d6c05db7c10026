"""pgBackRest as docs/guides/restore.md sets it up: any moment of 30 days, and snapshots of 90."""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from local.machine import HOST, PROJECT, free_port, guarded
from local.servers import EmbeddedPostgres
from tests.kit.needs import needs
from tests.kit.waiting import until

GUIDE = PROJECT / "docs" / "guides" / "restore.md"
PAGE = GUIDE.read_text()
PROGRAM = os.environ.get("PGBACKREST") or shutil.which("pgbackrest")
#: The days of the weekly backups, the last one today.
WEEKLY = range(-98, 1, 7)
CHANGES, SNAPSHOTS, RESTORED = "/backup/changes", "/backup/snapshots", "/var/lib/postgresql/restored"
WAL = re.compile(r"[0-9A-F]{24}")


def has_tools() -> bool:
    """Return whether a pgBackRest that knows PostgreSQL 18 is installed, and faketime to shift its clock."""
    if not PROGRAM or not shutil.which("faketime"):
        return False
    said = subprocess.run([PROGRAM, "version"], capture_output=True, text=True, timeout=30).stdout
    match = re.search(r"(\d+)\.(\d+)", said)
    return match is not None and (int(match[1]), int(match[2])) >= (2, 55)


pytestmark = [pytest.mark.flow, pytest.mark.drill, needs("pgbackrest", has_tools())]


def settings() -> str:
    """Return the configuration that the page links to."""
    targets: list[str] = re.findall(r"\]\(([^)]+/pgbackrest\.conf)\)", PAGE)
    return (GUIDE.parent / targets[0]).read_text()


def commands() -> list[list[str]]:
    """Return the lines of the page's two blocks of commands: to back up, and to restore."""
    parts = re.findall(r"^```sh\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return [text.splitlines() for text in parts if text.startswith("pgbackrest ")]


class Postgres(EmbeddedPostgres):
    """A PostgreSQL whose programs share a clock, which is a file. PostgreSQL's time names the backups."""

    def __init__(self, *, folder: Path, archives: bool = True) -> None:
        super().__init__(data=folder / "postgres", port=free_port())
        self.folder, self.archives = folder, archives

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            "PATH": f"{self.folder / 'bin'}:{self.bin}:{os.environ['PATH']}",
            "PGHOST": HOST,  # pgBackRest would search for a socket
            "PGBACKREST_PG1_PORT": str(self.port),
            "PGBACKREST_PG1_USER": "orderpost",
            "PGBACKREST_CONFIG": str(self.folder / "pgbackrest.conf"),
            "PGBACKREST_LOCK_PATH": str(self.data.parent / "lock"),
            "PGBACKREST_SPOOL_PATH": str(self.data.parent / "spool"),
            "PGBACKREST_LOG_LEVEL_FILE": "off",
            "LD_PRELOAD": faketime_library(),
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock"),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def argv(self) -> list[str]:
        return [*super().argv(), "-c", f"archive_mode={'on' if self.archives else 'off'}"]


def faketime_library() -> str:
    """Return the library that `faketime` preloads."""
    said = subprocess.run(["faketime", "-f", "+0d", "env"], capture_output=True, text=True, timeout=30).stdout
    return next(line for line in said.splitlines() if line.startswith("LD_PRELOAD=")).partition("=")[2]


class Backups:
    """A PostgreSQL and the page's configuration and commands, with paths in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.began = folder, dt.datetime.now(dt.UTC)
        self.postgres = Postgres(folder=folder)
        mine = self.postgres.data.parent
        self.paths = {path: mine / path.rpartition("/")[2] for path in (CHANGES, SNAPSHOTS, RESTORED)}
        self.paths["/var/lib/postgresql/18/main"] = self.postgres.data
        (folder / "pgbackrest.conf").write_text(self.here(settings()))
        (folder / "bin").mkdir()
        (folder / "bin" / "pgbackrest").symlink_to(str(PROGRAM))
        self.set_clock(0)

    def here(self, text: str) -> str:
        """Return a text of the page with this test's paths."""
        for path, mine in self.paths.items():
            assert path in PAGE + settings()
            text = text.replace(path, str(mine))
        return text

    def set_clock(self, days: int) -> None:
        """Set the clock of PostgreSQL and pgBackRest to so many days from now."""
        new = self.folder / "clock.new"
        new.write_text(f"{days:+d}d\n")
        new.replace(self.folder / "clock")

    def run(self, command: str) -> str:
        """Run a command as PostgreSQL's account, and return what it prints."""
        done = subprocess.run(
            guarded(shlex.split(self.here(command)), account=self.postgres.account),
            env=self.postgres.environment(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def add(self, day: int) -> str:
        """Store a row of a day, and return PostgreSQL's time after it."""
        ask(self.postgres, f"INSERT INTO days VALUES ({day})")
        ((moment,),) = ask(self.postgres, "SELECT clock_timestamp()::text")
        return str(moment)

    def days(self, repository: str) -> list[int]:
        """Return the days of a repository's backups, the oldest first."""
        return [
            round((taken_at(label) - self.began).total_seconds() / 86_400)
            for label in self.labels(repository)
        ]

    def labels(self, repository: str) -> list[str]:
        """Return the names of a repository's backups, the oldest first."""
        return sorted(path.name for path in self.paths[repository].glob("backup/orderpost/*F"))

    def wal(self, repository: str) -> list[str]:
        """Return the names of a repository's WAL files, the oldest first."""
        paths = self.paths[repository].glob("archive/orderpost/*/*/*")
        return sorted({match[0] for path in paths if (match := WAL.match(path.name))})

    @contextmanager
    def restored(self, command: str) -> Iterator[list[int]]:
        """Restore by a command, start the result, and yield the days of its rows."""
        shutil.rmtree(folder := self.paths[RESTORED], ignore_errors=True)
        self.run(command)
        server = Postgres(folder=self.folder, archives=False)  # here the old server goes on
        server.data = folder
        server.start(log=self.folder / "restored.log")
        try:
            until(lambda: ask(server, "SELECT pg_is_in_recovery()") == [(False,)], "the server is promoted")
            yield [int(str(day)) for (day,) in ask(server, "SELECT day FROM days ORDER BY day")]
        finally:
            server.stop()


def ask(server: Postgres, sql: str) -> list[tuple[object, ...]]:
    """Run a statement and return its rows."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def taken_at(label: str) -> dt.datetime:
    return dt.datetime.strptime(label, "%Y%m%d-%H%M%SF").replace(tzinfo=dt.UTC)


@pytest.fixture
def backups() -> Iterator[Backups]:
    """Start PostgreSQL 98 days ago, with the page's archive_command."""
    with tempfile.TemporaryDirectory(prefix="orderpost-backup-") as folder:
        made = Backups(Path(folder))
        (archiving,) = re.findall(r"`archive_command = '(pgbackrest [^']+)'`", PAGE)
        made.set_clock(WEEKLY[0])
        made.postgres.start(log=made.folder / "postgres.log")
        try:
            ask(made.postgres, f"ALTER SYSTEM SET archive_command = '{archiving}'")
            ask(made.postgres, "SELECT pg_reload_conf()")
            ask(made.postgres, "CREATE TABLE days (day int)")
            yield made
        finally:
            made.postgres.stop()
            shutil.rmtree(made.paths[RESTORED], ignore_errors=True)
            made.postgres.remove()


def test_each_moment_of_30_days_and_a_snapshot_of_each_week_of_90_can_be_restored(backups):
    (create, check, *weekly), (to_moment, to_snapshot) = commands()
    backups.run(create)
    backups.run(check)
    moments = {}
    for day in sorted({*WEEKLY, -30, -29}):
        backups.set_clock(day)
        moments[day] = backups.add(day)
        if day in WEEKLY:
            for backup in weekly:
                backups.run(backup)

    # The newest backup that is old enough, and all newer ones: one of 28 days is not old enough.
    assert backups.days(CHANGES) == [*range(-35, 1, 7)]
    assert backups.days(SNAPSHOTS) == [*range(-91, 1, 7)]
    assert set(backups.wal(CHANGES)) - set(backups.wal(SNAPSHOTS))  # what no snapshot needs

    with backups.restored(re.sub(r"--target='[^']+'", f"--target='{moments[-30]}'", to_moment)) as days:
        assert days == [*range(-98, -34, 7), -30]
    oldest, *_ = backups.labels(SNAPSHOTS)
    with backups.restored(re.sub(r"--set=\S+", f"--set={oldest}", to_snapshot)) as days:
        assert days == [-98, -91]

    wal = backups.wal(CHANGES)
    backups.set_clock(30)
    backups.run("pgbackrest --stanza=orderpost expire")
    assert backups.days(CHANGES) == [0]
    assert backups.days(SNAPSHOTS) == [*range(-63, 1, 7)]
    assert 0 < len(backups.wal(CHANGES)) < len(wal)
    with pytest.raises(AssertionError, match="unable to find backup set"):
        backups.run(re.sub(r"--target='[^']+'", f"--target='{moments[-30]}'", to_moment))
    backups.set_clock(90)
    backups.run("pgbackrest --stanza=orderpost expire")
    assert backups.days(CHANGES) == backups.days(SNAPSHOTS) == [0]
