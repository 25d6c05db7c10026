"""Let a client's host vanish. test_gone_host.py runs this as root of a separate network namespace.

Prints how many seconds its advisory lock stays. The client lives in a second namespace, at the other end of a
virtual cable that is then cut, so that not even a kernel answers for it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from local.machine import free_port
from local.servers import EmbeddedPostgres

HERE, THERE = "10.9.0.1", "10.9.0.2"
CLIENT = """
import sys, time, psycopg
connection = psycopg.connect(sys.argv[1], autocommit=True)
print(connection.execute("SELECT pg_try_advisory_lock(1)").fetchone()[0], flush=True)
time.sleep(600)
"""
PATIENCE = 120.0


class Postgres(EmbeddedPostgres):
    """The PostgreSQL of `make run`, which also listens at the cable."""

    def prepare(self) -> None:
        super().prepare()
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {THERE}/32 trust\n")

    def argv(self) -> list[str]:
        return [*super().argv(), "-c", "listen_addresses=*"]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def main() -> None:
    ip("link", "set", "lo", "up")
    ip("link", "add", "here", "type", "veth", "peer", "name", "there")
    with (
        subprocess.Popen(["unshare", "--net", "sleep", "600"]) as other,
        tempfile.TemporaryDirectory(prefix="orderpost-gone-") as folder,
    ):
        time.sleep(0.5)  # wait until it has its namespace
        inside = ["nsenter", "--target", str(other.pid), "--net"]
        ip("link", "set", "there", "netns", str(other.pid))
        ip("addr", "add", f"{HERE}/24", "dev", "here")
        ip("link", "set", "here", "up")
        subprocess.run([*inside, "ip", "addr", "add", f"{THERE}/24", "dev", "there"], check=True)
        subprocess.run([*inside, "ip", "link", "set", "there", "up"], check=True)
        server = Postgres(data=Path(folder) / "postgres", port=free_port())
        server.start(log=Path(folder) / "postgres.log")
        url = server.url.replace("127.0.0.1", HERE)
        client = subprocess.Popen([*inside, sys.executable, "-c", CLIENT, url], stdout=subprocess.PIPE)
        try:
            assert client.stdout is not None and client.stdout.readline() == b"True\n"
            ip("link", "set", "here", "down")
            print(f"{seconds_until_free(server.url):.1f}")
        finally:
            client.kill()
            client.wait()
            server.stop()
            other.kill()


def seconds_until_free(url: str) -> float:
    began = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() - began < PATIENCE:
            row = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()
            if row == (0,):
                break
            time.sleep(0.5)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
