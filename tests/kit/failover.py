"""PostgreSQL with a synchronous standby, and Valkey with a replica, which can fail over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import redis

from local.machine import HOST, NOBODY, free_port
from local.servers import EmbeddedPostgres, EmbeddedValkey
from tests.kit.proxy import Proxy
from tests.kit.waiting import PATIENCE, until

STANDBY = "standby"


class Node(EmbeddedPostgres):
    """A server of the pair. Call `follow` before its start to make it a standby of the other one."""

    def argv(self) -> list[str]:
        # pg_rewind wants hints in the log, or checksums. A standby whose primary is gone looks for it every
        # five seconds by default, and begins its promotion at such a moment alone.
        return [*super().argv(), "-c", "wal_log_hints=on", "-c", "wal_retrieve_retry_interval=500ms"]

    def follow(self, primary: Node) -> None:
        """Copy the primary, or rewind this server's older data to the point where both were the same."""
        source = f"host={HOST} port={primary.port} user=orderpost dbname=orderpost sslmode=disable"
        source += f" application_name={STANDBY}"
        if (self.data / "PG_VERSION").exists():
            there = ("--target-pgdata", self.data, "--source-server", source)
            self._run("pg_rewind", *there, "--write-recovery-conf", "--no-sync")
            return
        self.data.parent.mkdir(parents=True, exist_ok=True)
        if self.account == "nobody":
            os.chown(self.data.parent, NOBODY, NOBODY)
        options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self._run("pg_basebackup", "--pgdata", self.data, "--dbname", source, *options)

    def kill(self) -> None:
        """Kill the server and all its backends at once (SIGKILL), as when its machine loses power."""
        assert self._process is not None
        main = self._process.pid
        os.kill(main, signal.SIGSTOP)  # so that it starts no backend and tells no client
        for child in Path(f"/proc/{main}/task/{main}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        self._process.kill()
        self._process.wait(PATIENCE)
        self.stop()  # only closes the log

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements on this server, primary or standby, and return the rows of the last."""
        with psycopg.connect(super().url, autocommit=True, connect_timeout=3) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class Pair:
    """Two servers under one URL. Every commit waits until the standby has it on disk."""

    def __init__(self, *, folder: Path) -> None:
        self._folder = folder
        self.primary = Node(data=folder / "postgres-a", port=free_port())
        self.standby = Node(data=folder / "postgres-b", port=free_port())
        self._servers = f"{HOST}:{self.primary.port},{HOST}:{self.standby.port}"

    @property
    def url(self) -> str:
        return f"postgresql://orderpost@{self._servers}/orderpost?target_session_attrs=read-write"

    def start(self, *, log: Path) -> None:
        self.primary.start(log=log)
        # In the servers' own file: pg_rewind recovers the killed one without the options of its command line,
        # and the checkpoint after that removes the log that pg_rewind needs.
        self.primary.ask("ALTER SYSTEM SET wal_keep_size = '512MB'", "SELECT pg_reload_conf()")
        self.join()

    def stop(self) -> None:
        self.standby.stop()
        self.primary.stop()

    def remove(self) -> None:
        self.standby.remove()
        self.primary.remove()

    def join(self) -> None:
        """Start the standby, and return as soon as commits wait for it."""
        self.standby.follow(self.primary)
        self.standby.start(log=self._folder / f"postgres-{self.standby.port}.log")
        standby = f"FROM pg_stat_replication WHERE application_name = '{STANDBY}'"  # others follow, too
        self._until(f"SELECT state {standby}", "streaming")
        self.primary.ask(
            f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'", "SELECT pg_reload_conf()"
        )
        self._until(f"SELECT sync_state {standby}", "sync")

    def fail_over(self) -> None:
        """Kill the primary and promote the standby, as a cluster manager does after it has noticed.

        The new primary has no standby yet, so its commits must not wait for one.
        """
        self.primary.kill()
        self.standby.ask(
            "ALTER SYSTEM SET synchronous_standby_names = ''",
            "SELECT pg_reload_conf()",
            "SELECT pg_promote()",
        )
        self.primary, self.standby = self.standby, self.primary

    def _until(self, sql: str, wanted: str) -> None:
        until(lambda: self.primary.ask(sql) == [(wanted,)], f"{wanted} is the answer to {sql}")


class ValkeyNode(EmbeddedValkey):
    """A server of the pair, which keeps its data only in memory. With `follows`, it replicates that port."""

    follows: int | None = None

    def argv(self) -> list[str]:
        replica = [] if self.follows is None else ["--replicaof", HOST, str(self.follows)]
        # By default it waits five seconds for more replicas before it sends its data.
        return [*super().argv(), "--repl-diskless-sync-delay", "0", *replica]

    def client(self) -> redis.Redis:
        return redis.Redis(host=HOST, port=self.port, decode_responses=True)


class ValkeyPair:
    """A primary and its replica. `url` is one address that an operator moves, as a name or a proxy in front.

    `link` carries what the primary sends to the replica.
    """

    def __init__(self, *, folder: Path) -> None:
        self._folder = folder
        self.primary, self.replica = (
            ValkeyNode(data=folder / f"valkey-{name}", port=free_port(), throwaway=True) for name in "ab"
        )
        self._address = Proxy(port=self.primary.port)
        self.link = Proxy(port=self.primary.port)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self._address.port}/0"

    def start(self, *, log: Path) -> None:
        self.primary.start(log=log)
        self._address.__enter__()
        self._connect()

    def stop(self) -> None:
        self._address.__exit__()
        self.link.__exit__()
        self.replica.stop()
        self.primary.stop()

    def remove(self) -> None:
        self.replica.remove()
        self.primary.remove()

    def fail_over(self) -> None:
        """Kill the primary, promote the replica and move the address."""
        self.primary.kill()
        self._promote()

    def switch_over(self) -> None:
        """Let the replica take over from a living primary, which becomes its replica, as at an upgrade.

        Clients of the former primary stay connected to it.
        """
        with self.primary.client() as client:
            client.client_pause(5_000, all=False)
            self._until(lambda: _offset(self.replica) >= _offset(self.primary))
        self._promote()
        with self.replica.client() as client:
            self.link = Proxy(port=self.primary.port).__enter__()
            client.replicaof(HOST, str(self.link.port))
            client.client_unpause()
        self._until(lambda: _is_linked(self.replica))

    def join(self) -> None:
        """Start the killed server as a replica, and return as soon as it has all data."""
        self.link = Proxy(port=self.primary.port)
        self._connect()

    def _promote(self) -> None:
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
        self.link.__exit__()  # data that the link still carries is lost
        self.primary, self.replica = self.replica, self.primary
        self._address.lead_to(self.primary.port)

    def _connect(self) -> None:
        self.link.__enter__()
        self.replica.follows = self.link.port
        self.replica.start(log=self._folder / f"valkey-{self.replica.port}.log")
        self._until(lambda: _is_linked(self.replica))

    def _until(self, condition: Callable[[], bool]) -> None:
        until(condition, "the replica follows")


def _offset(node: ValkeyNode) -> int:
    with node.client() as client:
        return int(client.info("replication")["master_repl_offset"])


def _is_linked(node: ValkeyNode) -> bool:
    with node.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")
