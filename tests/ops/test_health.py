"""A container's probe sees a loop that hangs, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local.machine import PROJECT
from tests.kit.words import health


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HEALTH_DIR", str(tmp_path))
    monkeypatch.setattr(health, "_begun", [])
    before = health._of_thread.set(None)
    yield tmp_path
    health._of_thread.reset(before)


def made(role: str) -> health.Health:
    """Return a role whose file is written by the test alone."""
    one = health.Health(role=role, file=health.file_of(role))
    health._of_thread.set(one)
    health._begun.append(one)
    return one


def test_a_process_that_has_not_begun_is_unhealthy(directory: Path) -> None:
    assert f"{directory / 'relay'} does not exist" in health.trouble("relay")
    assert health.main(["relay"]) == 1
    assert health.quiet_seconds("relay") is None


def test_without_a_role_the_probe_looks_at_all_that_have_begun(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.main([]) == 1 and "no process has begun" in capsys.readouterr().err
    made("relay").write()
    made("web").write()
    (directory / "web.17").write_text("half written")
    assert health.begun() == ["relay", "web"] and health.main([]) == 0
    health.beat(within_seconds=-1)
    health._begun[1].write()
    assert health.main([]) == 1 and "web: its loop hangs" in capsys.readouterr().err


def test_a_loop_is_healthy_until_its_promise_is_over() -> None:
    relay = made("relay")
    health.beat(within_seconds=100)
    relay.write()
    assert health.trouble("relay") == "" and health.main(["relay"]) == 0
    health.beat(within_seconds=-1)
    relay.write()
    assert "its loop hangs" in health.trouble("relay")


def test_of_several_loops_the_one_that_hangs_decides() -> None:
    worker = made("worker")
    health.beat("drain", within_seconds=-1)
    health.beat(within_seconds=100)
    worker.write()
    assert "hangs" in health.trouble("worker")
    health.end("drain")
    worker.write()
    assert health.trouble("worker") == ""


def test_the_age_is_that_of_the_quietest_loop() -> None:
    worker = made("worker")
    worker._loops["drain"] = time.monotonic() - 40, time.monotonic() + 20
    health.beat()
    worker.write()
    seconds = health.quiet_seconds("worker")
    assert seconds is not None and seconds >= 39
    assert health.trouble("worker") == ""


def test_a_file_of_an_earlier_boot_is_no_health(directory: Path) -> None:
    (directory / "beat").write_text(f"{time.monotonic() + 1_000_000} {time.monotonic() + 999_999}\n")
    assert "older than this machine's last start" in health.trouble("beat")
    (directory / "beat").write_text("broken")
    assert "cannot be read" in health.trouble("beat")


def test_each_thread_of_a_process_with_several_roles_has_its_own() -> None:
    made("relay")

    def consume() -> None:
        consumer = made("consumer")
        health.beat(within_seconds=-1)
        consumer.write()

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join()
    health.beat()
    health._begun[0].write()
    assert health.trouble("relay") == "" and "hangs" in health.trouble("consumer")
    assert health.roles() == ["relay", "consumer"]


def test_a_role_that_begins_again_has_one_file_and_no_loop_of_its_first_time(monkeypatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    health.begin("relay")
    health.beat("drain", within_seconds=-1)
    health.begin("relay")
    assert health.roles() == ["relay"]
    health._begun[0].write()
    assert health.trouble("relay") == ""


def test_a_wait_beats_and_ends_when_stopped() -> None:
    relay = made("relay")
    stopped = threading.Event()
    stopped.set()
    health.wait(stopped, 1000)
    assert "loop" in relay._loops


LOOP = """
import time
from outbox.telemetry import health

health.WITHIN_SECONDS, health.WRITE_SECONDS = 2, 0.5
health.begin("relay")
while True:
    health.beat(within_seconds=2)
    time.sleep(0.5)
"""


def probe() -> tuple[int, str]:
    """Run the probe as a container does."""
    done = subprocess.run(
        [sys.executable, "manage.py", "health", "relay"], cwd=PROJECT, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def until(code: int) -> str:
    deadline = time.monotonic() + 60
    while (found := probe())[0] != code:
        assert time.monotonic() < deadline, found
    return found[1]


def test_the_probe_sees_a_frozen_process(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", LOOP], cwd=PROJECT)
    try:
        until(0)
        os.kill(process.pid, signal.SIGSTOP)
        assert "its loop hangs" in until(1)
        os.kill(process.pid, signal.SIGCONT)
        until(0)
    finally:
        process.kill()
        process.wait()


def test_the_probe_starts_no_django() -> None:
    """It runs every few seconds in each container."""
    code = "import sys; sys.argv = ['manage.py', 'health', 'relay']; import runpy\n"
    code += "try:\n    runpy.run_path('manage.py', run_name='__main__')\n"
    code += "except SystemExit: print(any(name.partition('.')[0] == 'django' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


WORKER = """
import time
from outbox.telemetry import health

health.begin("web")
print(health._begun[0].file.name, flush=True)
while True:
    health.beat()
    time.sleep(0.5)
"""


@contextmanager
def worker() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a worker of web, and yield it with the name of its file."""
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir() if not file.suffix)


def test_each_worker_of_web_has_a_file_and_the_successor_of_a_dead_one_continues_it(directory: Path) -> None:
    with worker() as (first, zero), worker() as (_second, one):
        assert (zero, one) == ("web-0", "web-1")
        assert health.begun() == ["web"] and health.main([]) == health.main(["web"]) == 0
        first.kill()
        first.wait()
        assert health.trouble("web") == "", "its successor has time to start"
        with worker() as (_successor, taken):
            assert taken == "web-0"
        assert names(directory) == ["web-0", "web-1"]


def test_one_dead_worker_fails_the_probe_though_the_other_beats(directory: Path) -> None:
    with worker() as (first, zero), worker():
        first.kill()
        first.wait()
        past = time.monotonic() - 90
        (directory / zero).write_text(f"{past + 60} {past}\n")
        assert health.trouble("web").startswith("web-0: its loop hangs") and health.main([]) == 1
        seconds = health.quiet_seconds("web")
        assert seconds is not None and seconds >= 90


def test_a_worker_that_never_begins_fails_the_probe(directory: Path) -> None:
    health.expect_workers(2)
    assert health.trouble("web").splitlines() == [
        "web-0: the process has not begun",
        "web-1: the process has not begun",
    ]
    assert health.quiet_seconds("web") is None
    with worker():
        assert health.trouble("web") == "web-1: the process has not begun"
        with worker():
            assert health.trouble("web") == ""


def test_fewer_workers_leave_no_file_that_fails_the_probe_for_ever(directory: Path) -> None:
    with worker() as (first, _), worker() as (_second, _one):
        first.kill()
        first.wait()
        health.expect_workers(0)
        assert names(directory) == ["web-1"], "a living worker keeps its file"
    health.expect_workers(1)
    assert names(directory) == ["web-0"]
    (directory / "other-app").write_text("")
    health.expect_workers(0)
    assert names(directory) == ["other-app"]


def test_a_folder_that_cannot_be_written_stops_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEALTH_DIR", "/dev/null/health")
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    health.expect_workers(2)
    health.begin("web")
    assert "cannot be read" in health.trouble("web") or "does not exist" in health.trouble("web")
