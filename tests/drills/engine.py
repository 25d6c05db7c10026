"""podman for the drills, without a daemon or systemd, and with a separate storage.

The storage is in var/containers: a stand-in named `postgres:18` never gets among a person's own images.
`missing()` says what this machine lacks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local.machine import PROJECT
from tests.kit.needs import reason

FOLDER = PROJECT / "var" / "containers"
#: Of this checkout alone. Short: sockets are in it.
RUN = Path("/run") / f"orderpost-{hashlib.sha256(str(PROJECT).encode()).hexdigest()[:12]}"
PROGRAMS = ("podman", "runc", "conmon", "debootstrap", "unshare", "ip", "iptables", "curl", "go")

STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{run}/storage"
"""
# Limits that a machine may not raise are given as they are.
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=2000:2000"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{run}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""


def missing() -> str:
    """Return why no container can be built and run here, or an empty text."""
    if os.geteuid() != 0:
        return reason("podman", "the container drills want root")
    if lacking := [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]:
        return reason("podman", f"{', '.join(lacking)} not here")
    return ""


def search_path() -> str:
    """Return PATH with the folders of administration programs."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def environment() -> dict[str, str]:
    """Write the files of our storage. Return the environment in which `podman` uses it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in (("storage.conf", STORAGE), ("containers.conf", CONTAINERS)):
        (FOLDER / name).write_text(text.format(folder=FOLDER, run=RUN))
    return os.environ | {
        "PATH": search_path(),
        "CONTAINERS_CONF": str(FOLDER / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(FOLDER / "storage.conf"),
        "BUILDAH_ISOLATION": "chroot",
        "DISABLE_HC_SYSTEMD": "true",  # otherwise podman asks systemd for a timer of each health check
    }


def run(*command: str, text: str | None = None, check: bool = True, seconds: float = 500) -> str:
    """Run a command in `environment`. Return its output, or raise AssertionError with it."""
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env=environment(),
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}"
    return done.stdout.strip()


def podman(*arguments: str, check: bool = True, text: str | None = None) -> str:
    return run("podman", *arguments, check=check, text=text)


def trouble(name: str) -> str:
    """Run a container's health check, because without systemd nothing else does. Return its failure or ""."""
    done = subprocess.run(
        ["podman", "healthcheck", "run", name], env=environment(), capture_output=True, text=True, timeout=60
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip() or "unhealthy"


def inspect(name: str) -> dict[str, Any]:
    """Return podman's data about a container or an image."""
    document: dict[str, Any] = json.loads(podman("inspect", name))[0]
    return document


def has_image(name: str) -> bool:
    return podman("images", "--quiet", name, check=False) != ""


def remove_containers() -> None:
    """Remove all containers.

    podman removes them at the same time, and fails for one that others still depend on.
    """
    remove = ("rm", "--all", "--force", "--depend", "--time", "0", "--volumes")
    before, left = "", podman("ps", "--all", "--quiet")
    while left != before:
        podman(*remove, check=False)
        before, left = left, podman("ps", "--all", "--quiet")
    assert left == "", podman(*remove, check=False)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other drill of this checkout uses containers. Remove the remains of a killed drill."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Those of a killed drill were in namespaces that are gone: podman looks again, as after a restart.
        shutil.rmtree(RUN, ignore_errors=True)
        remove_containers()
        for kind in ("volume", "network"):
            podman(kind, "prune", "--force")
        yield
