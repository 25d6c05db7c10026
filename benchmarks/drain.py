"""Measure orderpost and its peers draining queued mails, with two processes on the same servers."""

from __future__ import annotations

import sys
import time

import psycopg

from benchmarks.rig import Rig
from benchmarks.rows import queue_mails


def measure(rig: Rig, who: str, *, count: int, delay: float, threads: int) -> dict[str, float]:
    """Queue `count` mails and drain them. Return mails per second, and CPU ms for each mail.

    `who` is orderpost, post_office or task_each. Each has two processes of `threads`.
    """
    settings = {"EMAIL_CONCURRENCY": str(threads), "PEER_THREADS": str(threads)}
    rig.start_provider(delay=delay)
    python = [sys.executable, "-m"]
    names = [f"{who}:1"] if who == "post_office" else [f"{who}:1", f"{who}:2"]
    try:
        if who == "task_each":
            worker = [*python, "celery", "-A", "benchmarks.peers.celery", "--quiet", "worker"]
            for name in names:
                rig.run(name, [*worker, "-n", name, "--without-gossip", "--without-mingle"], **settings)
            rig.python("-m", "benchmarks.peers", "fill", who, "80")  # warm up every thread's connections
            _until(rig, 80)
            time.sleep(0.5)
            for name in names:
                rig.pause(name)
            rig.python("-m", "benchmarks.peers", "fill", who, str(count))
            before, taken, began = rig.cpu(), rig.provided(), time.monotonic()
            for name in names:
                rig.resume(name)
        else:
            if who == "orderpost":
                with psycopg.connect(rig.postgres.url, autocommit=True) as connection:
                    connection.execute("DELETE FROM email_notifications WHERE status <> 'sent'")
                    queue_mails(connection, count)
                    connection.execute("ANALYZE email_notifications")
                command = [*python, "benchmarks.ours", "drain"]
            else:
                rig.python("-m", "benchmarks.peers", "fill", who, str(count))
                command = [*python, "benchmarks.peers", "drain", "2"]
            for name in names:
                rig.run(name, command, pipes=True, **settings)
            for name in names:
                assert rig.processes[name].stdout.readline() == b"ready\n"  # type: ignore[union-attr]
            before, taken, began = rig.cpu(), rig.provided(), time.monotonic()
            for name in names:
                rig.processes[name].stdin.write(b"\n")  # type: ignore[union-attr]
                rig.processes[name].stdin.flush()  # type: ignore[union-attr]
        _until(rig, taken + count)
        seconds = time.monotonic() - began
        for name in names if who != "task_each" else ():
            rig.processes[name].stdout.readline()  # type: ignore[union-attr]  # the last outcomes are work
        after = rig.cpu()
        extra = rig.provided() - taken - count
    finally:
        for name in [*names, "provider"]:
            if name in rig.processes:
                rig.stop(name)
    if extra:
        raise AssertionError(f"{who} sent {extra} mails twice")
    return {
        "mails/s": count / seconds,
        "cpu ms": (after[who] - before[who]) / count * 1000,
        "postgres ms": (after["postgres"] - before["postgres"]) / count * 1000,
    }


def _until(rig: Rig, count: int) -> None:
    deadline = time.monotonic() + 120
    while rig.provided() < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{rig.provided()} of {count} mails came")
        time.sleep(0.01)


def prepare(rig: Rig) -> None:
    """Create the peers' database."""
    rig.query("CREATE DATABASE peers")
    rig.python("-m", "benchmarks.peers", "prepare")
