"""A Docker engine for the drill of compose, in the drill's namespaces. `missing()` says what is not here.

Debian 13 has all of it: docker.io, docker-compose, docker-buildx and slirp4netns. The images come from the
storage of podman, so no registry is needed. `docker compose up --build` builds ours, as a reader's does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from tests.drills import images
from tests.drills.engine import FOLDER, RUN, environment, podman, run, search_path
from tests.drills.engine import missing as podman_missing
from tests.kit.needs import reason
from tests.kit.waiting import until

PROGRAMS = ("docker", "dockerd", "containerd", "slirp4netns", "nsenter")
#: The file descriptor of the network namespace of the machine, in the environment of the drill.
NETWORK = "MACHINE_NETWORK"


@functools.cache
def missing() -> str:
    """Return why no Docker engine can be started here, or an empty text."""
    if without := podman_missing():
        return without
    if lacking := [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]:
        return reason("docker", f"{', '.join(lacking)} not here")
    for plugin in ("compose", "buildx"):
        if subprocess.run(["docker", plugin, "version"], capture_output=True).returncode != 0:
            return reason("docker", f"`docker {plugin}` does not work here")
    return ""


@contextlib.contextmanager
def running(*, streaming: bool) -> Iterator[None]:
    """Start a Docker engine that has the images of the drill, and lead `docker` to it."""
    os.environ["DOCKER_HOST"] = f"unix://{RUN}/docker.sock"
    shutil.rmtree(RUN / "docker", ignore_errors=True)
    RUN.mkdir(exist_ok=True)
    options = [
        *("--host", os.environ["DOCKER_HOST"], "--data-root", str(FOLDER / "docker")),
        *("--exec-root", str(RUN / "docker"), "--pidfile", str(RUN / "docker.pid")),
    ]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((FOLDER / "dockerd.log").open("wb"))
        for command in (_internet(), ["dockerd", *options]):
            process = subprocess.Popen(
                command, env=environment(), stdout=log, stderr=log, pass_fds=[int(os.environ[NETWORK])]
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        until(_answers, "dockerd answers", details=lambda: (FOLDER / "dockerd.log").read_text()[-3000:])
        _load(streaming=streaming)
        yield


def _internet() -> list[str]:
    """Return the command that connects our network to the machine's, for downloads of packages."""
    network = f"/proc/self/fd/{os.environ[NETWORK]}"
    return ["nsenter", f"--net={network}", "slirp4netns", "--configure", str(os.getpid()), "tap0"]


def _answers() -> bool:
    return subprocess.run(["docker", "info"], env=environment(), capture_output=True).returncode == 0


def _load(*, streaming: bool) -> None:
    """Copy the images of the drill from podman's storage."""
    names = [image for name, image in images.wanted().items() if streaming or name not in images.STREAMING]
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        file = f"{folder}/images.tar"
        podman("save", "--multi-image-archive", "--output", file, images.BASE, *names)
        run("docker", "load", "--input", file)
