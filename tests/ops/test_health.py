"""A container's probe sees a loop that hangs, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from local.machine import PROJECT
from tests.kit.waiting import until
from tests.kit.words import health


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEALTH_DIR", str(tmp_path))
    return tmp_path


def made(role: str) -> health.Health:
    """Return a role whose file only the test writes."""
    return health.Health(role=role, file=health.file_of(role))


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has begun its roles in `code` and writes their files often, until it is killed."""
    begin = (
        "import threading, time; from runtime.telemetry import health; health.WRITE_SECONDS = 0.02\n"
        f"{code}\nprint('begun', flush=True)\n"
    )
    beat = "while True: health.beat(); time.sleep(0.02)"
    command = [sys.executable, "-c", begin + beat]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None and started.stdout.readline() == "begun\n"
            yield started
        finally:
            started.kill()


def worker() -> Any:
    """Run a worker of web."""
    return process("health.begin('web')")


def test_a_process_that_has_not_begun_is_unhealthy(directory: Path) -> None:
    assert f"{directory / 'relay'} does not exist" in health.describe_problems("relay")
    assert health.main(["relay"]) == 1
    assert health.quiet_seconds("relay") is None


def test_without_a_role_the_probe_looks_at_all_that_have_begun(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.main([]) == 1 and "no process has begun" in capsys.readouterr().err
    relay, web = made("relay"), made("web")
    relay.write()
    web.write()
    (directory / "web.17").write_text("half written")
    assert health.begun() == ["relay", "web"] and health.main([]) == 0
    web.beat("loop", within_seconds=-1)
    web.write()
    assert health.main([]) == 1 and "web: its loop hangs" in capsys.readouterr().err


def test_of_several_loops_the_one_that_hangs_decides_until_it_ends() -> None:
    worker = made("worker")
    worker.beat("loop", within_seconds=100)
    worker.write()
    assert health.describe_problems("worker") == "" and health.main(["worker"]) == 0
    worker.beat("drain", within_seconds=-1)
    worker.write()
    assert "its loop hangs" in health.describe_problems("worker")
    worker.end("drain")
    worker.write()
    assert health.describe_problems("worker") == ""


def test_the_age_is_that_of_the_quietest_loop() -> None:
    worker = made("worker")
    worker.beat("drain", within_seconds=60)
    time.sleep(0.2)
    worker.beat("loop", within_seconds=60)
    worker.write()
    seconds = health.quiet_seconds("worker")
    assert seconds is not None and seconds >= 0.19  # the file has milliseconds


def test_a_file_of_an_earlier_boot_is_no_health(directory: Path) -> None:
    (directory / "beat").write_text(f"{time.monotonic() + 1_000_000} {time.monotonic() + 999_999}\n")
    assert "older than this machine's last start" in health.describe_problems("beat")
    (directory / "beat").write_text("broken")
    assert "cannot be read" in health.describe_problems("beat")


def test_each_thread_of_a_process_with_several_roles_has_its_own() -> None:
    code = """
health.begin("relay")
def consume():
    health.begin("consumer")
    health.beat(within_seconds=-1)
thread = threading.Thread(target=consume)
thread.start()
thread.join()
assert health.roles() == ["relay", "consumer"]
"""
    with process(code):
        until(lambda: "hangs" in health.describe_problems("consumer"))
        assert health.describe_problems("relay") == ""


def test_a_role_that_begins_again_has_one_file_and_no_loop_of_its_first_time() -> None:
    code = """
health.begin("relay")
health.beat("drain", within_seconds=-1)
health.begin("relay")
assert health.roles() == ["relay"]
"""
    with process(code):
        until(lambda: health.describe_problems("relay") == "")


def test_a_wait_beats_and_ends_when_stopped() -> None:
    code = """
health.begin("relay")
health.beat("loop", within_seconds=-1)
stopped = threading.Event()
stopped.set()
health.wait(stopped, 1000)
health.beat = lambda: None
"""
    with process(code):
        until(lambda: health.describe_problems("relay") == "")


def probe() -> tuple[int, str]:
    """Run the probe as a container does."""
    done = subprocess.run(
        [sys.executable, "manage.py", "health", "relay"], cwd=PROJECT, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_the_probe_sees_a_frozen_process() -> None:
    with process("health.WITHIN_SECONDS = 2; health.begin('relay'); health.beat(within_seconds=2)") as relay:
        until(lambda: probe()[0] == 0)
        os.kill(relay.pid, signal.SIGSTOP)
        until(lambda: "its loop hangs" in probe()[1])
        os.kill(relay.pid, signal.SIGCONT)
        until(lambda: probe()[0] == 0)


def test_the_probe_starts_no_django() -> None:
    """It runs every few seconds in each container."""
    code = "import sys; sys.argv = ['manage.py', 'health', 'relay']; import runpy\n"
    code += "try:\n    runpy.run_path('manage.py', run_name='__main__')\n"
    code += "except SystemExit: print(any(name.partition('.')[0] == 'django' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir() if not file.suffix)


def test_each_worker_of_web_has_a_file_and_the_successor_of_a_dead_one_continues_it(directory: Path) -> None:
    with worker() as first, worker():
        assert names(directory) == ["web-0", "web-1"]
        assert health.begun() == ["web"] and health.main([]) == health.main(["web"]) == 0
        first.kill()
        first.wait()
        assert health.describe_problems("web") == "", "its successor has time to start"
        with worker():
            assert names(directory) == ["web-0", "web-1"], "it takes the file of the dead one"


def test_one_dead_worker_fails_the_probe_though_the_other_beats(directory: Path) -> None:
    with worker() as first, worker():
        first.kill()
        first.wait()
        past = time.monotonic() - 90
        (directory / "web-0").write_text(f"{past + 60} {past}\n")
        assert health.describe_problems("web").startswith("web-0: its loop hangs") and health.main([]) == 1
        seconds = health.quiet_seconds("web")
        assert seconds is not None and seconds >= 90


def test_a_worker_that_never_begins_fails_the_probe(directory: Path) -> None:
    health.expect_workers(2)
    assert health.describe_problems("web").splitlines() == [
        "web-0: the process has not begun",
        "web-1: the process has not begun",
    ]
    assert health.quiet_seconds("web") is None
    with worker():
        assert health.describe_problems("web") == "web-1: the process has not begun"
        with worker():
            assert health.describe_problems("web") == ""


def test_fewer_workers_leave_no_file_that_fails_the_probe_for_ever(directory: Path) -> None:
    with worker() as first, worker():
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
    with process("health.expect_workers(2); health.begin('web')"):
        assert "cannot be read" in health.describe_problems(
            "web"
        ) or "does not exist" in health.describe_problems("web")
