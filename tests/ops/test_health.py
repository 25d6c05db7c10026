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
    """Return a role of this process whose file only the test writes."""
    return health.Health(role=role)


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


def worker(*, of: int = 2) -> Any:
    """Run one of so many workers of web."""
    return process(f"health.expect_workers({of}); health.begin('web')")


def test_a_process_that_has_not_begun_is_unhealthy(directory: Path) -> None:
    no_process = f"relay: no process lives, or it has another HEALTH_DIR than {directory}"
    assert health.describe_problems("relay") == no_process
    assert health.main(["relay"]) == 1
    assert health.quiet_seconds("relay") is None


def test_without_a_role_the_probe_looks_at_all_that_have_begun(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.main([]) == 1 and "no process has begun" in capsys.readouterr().err
    relay, web = made("relay"), made("web")
    relay.write()
    web.write()
    (directory / f".{web.file.name}").write_text("half written")
    assert health.begun() == ["relay", "web"] and health.main([]) == 0
    web.beat("loop", within_seconds=-1)
    web.write()
    assert health.main([]) == 1 and f"{web.file.name}: its loop hangs" in capsys.readouterr().err


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


def test_what_another_process_of_the_same_number_wrote_is_no_health() -> None:
    """The folder outlives a container, in which the numbers come again."""
    relay = made("relay")
    relay.write()
    name, number, start = relay.file.name.split(".")
    relay.file.rename(relay.file.with_name(f"{name}.{number}.{int(start) - 1}"))
    assert "no process lives" in health.describe_problems("relay")


def test_a_file_of_an_earlier_boot_or_a_broken_one_counts_for_no_process(directory: Path) -> None:
    with worker() as first, worker():
        first.kill()
        first.wait()
        (dead,) = (file for file in directory.glob("web.*") if file.name.split(".")[1] == str(first.pid))
        assert health.describe_problems("web") == ""
        dead.write_text(f"{time.monotonic() + 1_000_060} {time.monotonic() + 1_000_000} 2\n")
        assert health.describe_problems("web") == "web: the process has not begun"
        dead.write_text("broken")
        assert health.describe_problems("web") == "web: the process has not begun"


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


def processes(directory: Path) -> set[int]:
    """Return the numbers of the processes that have a file."""
    return {int(file.name.split(".")[1]) for file in directory.glob("[!.]*")}


def let_a_minute_pass(directory: Path, pid: int) -> None:
    """Write a minute-old file of a process that writes none itself."""
    past = time.monotonic() - 90
    (file,) = directory.glob(f"web.{pid}.*")
    file.write_text(f"{past + 60} {past} 2\n")


def test_the_successor_of_a_dead_worker_has_time_to_start_and_takes_its_place(directory: Path) -> None:
    with worker() as first, worker() as second:
        assert health.begun() == ["web"] and health.main([]) == health.main(["web"]) == 0
        first.kill()
        first.wait()
        assert health.describe_problems("web") == "", "its successor has time to start"
        with worker() as successor:
            assert health.describe_problems("web") == ""
            assert processes(directory) == {second.pid, successor.pid}


def test_one_dead_worker_fails_the_probe_though_the_other_beats(directory: Path) -> None:
    with worker() as first, worker():
        first.kill()
        first.wait()
        let_a_minute_pass(directory, first.pid)
        assert health.describe_problems("web").startswith(f"web.{first.pid}.") and health.main([]) == 1
        seconds = health.quiet_seconds("web")
        assert seconds is not None and seconds >= 90


def test_one_frozen_worker_fails_the_probe_though_the_other_beats(directory: Path) -> None:
    with worker() as first, worker():
        os.kill(first.pid, signal.SIGSTOP)
        until(lambda: b"T (stopped)" in Path(f"/proc/{first.pid}/status").read_bytes())
        let_a_minute_pass(directory, first.pid)
        assert "its loop hangs" in health.describe_problems("web") and health.main([]) == 1
        with worker():
            assert "its loop hangs" in health.describe_problems("web"), "a third does not take its place"


def test_a_worker_that_never_begins_fails_the_probe(directory: Path) -> None:
    assert "web: no process lives" in health.describe_problems("web")
    assert health.quiet_seconds("web") is None
    with worker(of=3):
        assert health.describe_problems("web").splitlines() == ["web: the process has not begun"] * 2
        with worker(of=3), worker(of=3):
            assert health.describe_problems("web") == ""


def test_fewer_workers_than_before_leave_no_file_that_fails_the_probe(directory: Path) -> None:
    with worker(of=2) as first, worker(of=2) as second:
        for dying in (first, second):
            dying.kill()
            dying.wait()
            let_a_minute_pass(directory, dying.pid)
        assert "no process lives" in health.describe_problems("web")
    with worker(of=1) as only:
        assert health.describe_problems("web") == "" and processes(directory) == {only.pid}


def test_a_process_removes_the_files_of_its_predecessors_where_no_probe_runs(directory: Path) -> None:
    for _ in range(3):
        with worker(of=1) as last:
            assert processes(directory) == {last.pid}


def test_a_folder_that_cannot_be_written_stops_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEALTH_DIR", "/dev/null/health")
    with worker():
        assert "no process lives" in health.describe_problems("web")
