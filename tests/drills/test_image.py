"""The image, built by `make image` and run: each role is healthy, ends at SIGTERM and writes nowhere else."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.machine import HOST, PROJECT, free_port
from local.servers import EmbeddedPostgres, EmbeddedValkey
from tests.drills import engine, images
from tests.drills.engine import inspect, podman
from tests.kit.roles import RUNNING
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.drill,
    pytest.mark.skipif(engine.missing() != "", reason=engine.missing() or "nothing is missing"),
]
MEGABYTE = 1_000_000
HOST_NAME = "orders.example.com"


@pytest.fixture(scope="module", autouse=True)
def image() -> Iterator[None]:
    with engine.alone():
        images.build()
        yield


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, str]]:
    """Start PostgreSQL and Valkey on this host; migrate by the image. Return a production's settings."""
    with tempfile.TemporaryDirectory(prefix="orderpost-image-") as folder:
        postgres = EmbeddedPostgres(data=Path(folder) / "postgres", port=free_port())
        valkey = EmbeddedValkey(data=Path(folder) / "valkey", port=free_port(), throwaway=True)
        for server in (postgres, valkey):
            server.start(log=Path(folder) / f"{server.name}.log")
        try:
            yield {
                "DATABASE_URL": postgres.url,
                "REDIS_URL": valkey.url,
                "SECRET_KEY": "not-secret-drills-only",
                "EMAIL_PROVIDERS": "smtp",
                "ALLOWED_HOSTS": HOST_NAME,
            }
        finally:
            for server in (valkey, postgres):
                server.stop()
                server.remove()


def arguments(settings: dict[str, str]) -> list[str]:
    """Return what is stricter than any of the orchestrators: nothing can be written but /tmp and /archive."""
    return [
        *("--network", "host", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all"),
        *("--security-opt", "no-new-privileges", "--tmpfs", "/tmp", "--volume", "/archive"),
        *(word for name, value in settings.items() for word in ("--env", f"{name}={value}")),
    ]


@contextlib.contextmanager
def container(role: str, settings: dict[str, str]) -> Iterator[str]:
    name = f"drill-{os.getpid()}-{role}"
    podman("run", "--detach", "--name", name, *arguments(settings), images.IMAGE, role)
    try:
        yield name
    finally:
        podman("rm", "--force", "--time", "0", "--volumes", name)


def until_healthy(name: str) -> None:
    def healthy() -> bool:
        said = engine.trouble(name)
        assert not said or inspect(name)["State"]["Running"], f"{said}\n{podman('logs', name)}"
        return not said

    until(healthy, f"{name} is healthy", details=lambda: podman("logs", name))


def test_it_is_small_and_runs_as_nobody_special() -> None:
    facts = inspect(images.IMAGE)
    above = facts["Size"] - inspect(images.BASE)["Size"]
    print(f"{above / MEGABYTE:.0f} MB above a base of {inspect(images.BASE)['Size'] / MEGABYTE:.0f} MB")
    assert above < 300 * MEGABYTE
    assert facts["Config"]["User"] == "10001"
    assert facts["Config"]["Entrypoint"] == ["orderpost"]


def test_its_labels_name_its_release_and_commit() -> None:
    labels = inspect(images.IMAGE)["Config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == "1.2.3"
    assert labels["org.opencontainers.image.revision"] == "4b825dc"


def test_it_has_every_extra_and_no_tool_to_install_more() -> None:
    code = (
        "import confluent_kafka, opentelemetry.sdk, opentelemetry.exporter.otlp.proto.http, storages, boto3"
    )
    run = ["run", "--rm", "--network", "none", "--entrypoint", "python", images.IMAGE]
    podman(*run, "-c", f"{code}; boto3.client('sesv2', 'us-east-1'); boto3.client('s3')")
    assert "No module named pip" in podman(*run, "-m", "pip", check=False)
    assert "No module named 'local'" in podman(*run, "-c", "import local", check=False)


def files(image: str, folder: Path) -> dict[str, tuple[object, ...]]:
    """Return each file of an image by its path: kind, mode, owner, and a hash of its content."""
    name, archive = f"drill-{os.getpid()}-files", folder / "files.tar"
    podman("create", "--name", name, image)
    podman("export", "--output", str(archive), name)
    podman("rm", name)
    with tarfile.open(archive) as tar:
        return {
            member.name: (
                member.type,
                member.mode,
                member.uid,
                member.gid,
                member.linkname,
                content_hash(tar, member),
            )
            for member in tar
        }


def content_hash(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member) if member.isreg() else None
    return hashlib.sha256(file.read() if file else b"").hexdigest()


def test_another_checkout_gives_the_same_files_and_none_has_the_day(tmp_path: Path) -> None:
    checkout, again = tmp_path / "checkout", f"{images.IMAGE}-again"
    ignored = shutil.ignore_patterns(".git", ".venv", "var", "__pycache__", ".*_cache")
    shutil.copytree(PROJECT, checkout, symlinks=True, ignore=ignored)
    engine.run("chmod", "--recursive", "go=", str(checkout))  # as a clone with the umask 077
    arguments = ("ENGINE=podman", f"BASE={images.BASE}", f"TAG={again}", "ARGS=--network host --no-cache")
    engine.run("make", "--directory", str(checkout), "image", *arguments)
    assert files(again, tmp_path) == files(images.IMAGE, tmp_path)
    podman("rmi", again)
    shadow = ["run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "cat", images.IMAGE]
    assert "\norderpost:!::" in podman(*shadow, "/etc/shadow")  # and no day


def test_each_role_is_healthy_and_ends_at_sigterm(settings: dict[str, str]) -> None:
    podman("run", "--rm", *arguments(settings), images.IMAGE, "migrate")
    settings = settings | {"METRICS_HOST": HOST}
    with contextlib.ExitStack() as stack:
        port = free_port()
        names = {
            role: stack.enter_context(
                container(role, settings | {"PORT": str(port), "METRICS_PORT": str(free_port())})
            )
            for role in RUNNING
        }
        for name in names.values():
            until_healthy(name)
        for role, name in names.items():
            podman("exec", name, "orderpost", "health", role)
        ready = podman("exec", names["web"], "python", "-c", READY.format(port=port, host=HOST_NAME))
        assert ready == "200"
        began = time.monotonic()
        podman("stop", "--time", "30", *names.values())
        codes = {role: inspect(name)["State"]["ExitCode"] for role, name in names.items()}
        assert codes == dict.fromkeys(names, 0), [podman("logs", "--tail", "20", n) for n in names.values()]
        assert time.monotonic() - began < 60


READY = """
import urllib.request as r
print(r.urlopen(r.Request("http://127.0.0.1:{port}/readyz", headers={{"Host": "{host}"}})).status)
"""


def test_a_command_of_manage_py_ends_at_sigterm_although_it_is_process_1(settings: dict[str, str]) -> None:
    name = f"drill-{os.getpid()}-shell"
    sleep = ("shell", "--command", "import time; print('begun', flush=True); time.sleep(600)")
    podman("run", "--detach", "--name", name, *arguments(settings), images.IMAGE, *sleep)
    try:
        until(lambda: "begun" in podman("logs", name), "it has begun")
        podman("stop", "--time", "30", name)
        assert inspect(name)["State"]["ExitCode"] == 143
    finally:
        podman("rm", "--force", "--time", "0", "--volumes", name)
