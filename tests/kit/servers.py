"""A pytest plugin: start PostgreSQL and Valkey for one test run, before Django reads its settings.

`-p tests.kit.servers` (pyproject.toml) loads it. If DATABASE_URL or REDIS_URL is set, the plugin uses that
server, because the processes of a parallel run share the servers of the first one. It sets every name that
`make run` writes to var/local.env, so that the tests never use a local run's servers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import redis

from local import environment
from local.machine import free_port
from local.servers import EmbeddedPostgres, EmbeddedValkey, Server
from tests.kit import prepared

FIXED = {
    **{name: "" for name in environment.NAMES if name not in ("DATABASE_URL", "REDIS_URL")},
    "EVENT_TRANSPORT": "redis",
    "SECRET_KEY": "not-secret-tests-only",
    "EMAIL_PROVIDERS": "sendgrid",
    "SENDGRID_API_KEY": "test",
    "SENDGRID_API_URL": "http://127.0.0.1:1/v3/",  # port 1 refuses, so a test must bring its provider
    "HTTPS": "off",
    "REQUIRE_MFA": "off",  # tests of the second factor turn it on
    "LOG_FORMAT": "json",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Start the servers before pytest-django reads the settings, in its plain implementation of this hook."""
    for test in early_config.known_args_namespace.file_or_dir:
        if not Path(test.partition("::")[0]).exists():  # a parallel run would only say "no tests ran"
            raise pytest.UsageError(f"file or directory not found: {test}")
    os.environ.update(FIXED)
    gc.set_threshold(50_000, 20, 10)  # the imports and the collected tests leave almost no garbage
    _keep_bytecode()
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if prepared.FOLDER not in os.environ:
        _make_folder(early_config.add_cleanup)
    if "DATABASE_URL" not in os.environ or "REDIS_URL" not in os.environ:
        _start_servers(early_config.add_cleanup)
    if worker is not None:  # "gw3": a Valkey database for each process, 0 being the first process's own
        os.environ["REDIS_URL"] = f"{os.environ['REDIS_URL'].rpartition('/')[0]}/{int(worker[2:]) + 1}"
    return (yield)


def _keep_bytecode() -> None:
    """Make Python write its bytecode, even if a container forbids it.

    Otherwise each of the hundreds of processes of the tests would compile the project again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _make_folder(add_cleanup: Callable[[Callable[[], None]], None]) -> None:
    """Create the folder that all processes of this run share."""
    directory = Path(tempfile.mkdtemp(prefix="orderpost-tests-"))
    os.environ[prepared.FOLDER] = str(directory)
    # Cleaned up in reverse order.
    add_cleanup(partial(os.environ.__delitem__, prepared.FOLDER))
    add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    add_cleanup(lambda: prepared.remove(directory))


def _start_servers(add_cleanup: Callable[[Callable[[], None]], None]) -> None:
    directory = Path(os.environ[prepared.FOLDER])
    servers: dict[str, Server] = {}
    if "DATABASE_URL" not in os.environ:
        data = directory / "postgres"
        servers["DATABASE_URL"] = EmbeddedPostgres(data=data, port=free_port(), throwaway=True)
    if "REDIS_URL" not in os.environ:
        servers["REDIS_URL"] = EmbeddedValkey(data=directory / "valkey", port=free_port(), throwaway=True)
    for name, server in servers.items():
        server.start(log=directory / f"{server.name}.log")
        # Cleaned up in reverse order, also after Ctrl-C; if pytest is killed, the kernel kills the servers.
        add_cleanup(server.remove)
        add_cleanup(server.stop)
        os.environ[name] = server.url


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Keep processes stopped within the block. Ignore one that has exited meanwhile."""
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def frozen(server: EmbeddedPostgres | EmbeddedValkey) -> Iterator[None]:
    """Freeze a server and its backends within the block. The kernel still takes connections and bytes."""
    main = main_process(server)
    with contextlib.ExitStack() as stack:
        stack.enter_context(stopped([main]))  # first, so that it starts no other backend
        stack.enter_context(stopped(children(main)))
        yield


def main_process(server: EmbeddedPostgres | EmbeddedValkey) -> int:
    """Return the id of a running server's first process."""
    if isinstance(server, EmbeddedPostgres):
        return int((server.data / "postmaster.pid").read_text().split()[0])
    with redis.Redis.from_url(server.url) as client:
        return int(client.info("server")["process_id"])


def children(pid: int) -> list[int]:
    """Return the ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
