"""Make .venv from the lock files: the first step of every `make` target, done once for each state of them.

    python local/setup.py [run | dev | bench]

Each installs requirements-<name>.lock and the files that it names. Called by path with the machine's own
Python before anything is installed, so it imports the standard library alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
VENV = PROJECT / ".venv"
STAMP = VENV / "installed"


def main() -> None:
    """Install what is asked for, unless .venv has it from these very lock files."""
    directory = os.open(PROJECT, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)  # `make run` and `make test` may both be the first
    lock = PROJECT / f"requirements-{(sys.argv[1:] or ['dev'])[0]}.lock"
    origin = f"{sys.version} in {PROJECT}".replace("\n", " ")
    installed = STAMP.read_text().splitlines() if STAMP.exists() else []
    if installed[:1] != [origin]:
        installed = [origin]
    wanted = [f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.name}" for file in files(lock)]
    if set(wanted) <= set(installed) and runs(VENV / "bin" / "python"):
        return
    make_venv()
    install(lock)
    # The checkout itself is importable, whatever the current directory of a tool.
    paths = sysconfig.get_paths("venv", {"base": str(VENV), "platbase": str(VENV)})
    (Path(paths["purelib"]) / "orderpost.pth").write_text(f"{PROJECT}\n")
    names = {line.split()[1] for line in wanted}
    kept = [line for line in installed[1:] if line.split()[1] not in names]
    STAMP.write_text("".join(f"{line}\n" for line in [origin, *kept, *wanted]))
    say("Setting up: done.")


def files(lock: Path) -> list[Path]:
    """Return a lock file and those that it adds to, which its first line names."""
    first, *_ = lock.read_text().splitlines()
    return [lock, *(files(PROJECT / first[3:]) if first.startswith("-r ") else [])]


def make_venv() -> None:
    """Make an empty .venv unless there is a working one."""
    if runs(VENV / "bin" / "python"):
        return
    try:
        import ensurepip  # noqa: F401 (Debian ships it apart)
        import venv
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            f"Python {version} is here, but not its venv module. "
            f"On Debian and Ubuntu: apt-get install python{version}-venv"
        )
    say("Setting up: .venv …")
    shutil.rmtree(VENV, ignore_errors=True)
    venv.create(VENV, with_pip=True)


def install(lock: Path) -> None:
    """Install what the lock file lists; pip checks each package's hash."""
    total = sum(
        1
        for file in files(lock)
        for line in file.read_text().splitlines()
        if "==" in line and not line.startswith(("#", " "))
    )
    command = [
        str(VENV / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--require-hashes",
        "--requirement",
        str(lock),
    ]
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    pip = subprocess.Popen(
        [*command, *options], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert pip.stdout is not None
    output: list[str] = []
    seen = 0
    for line in pip.stdout:
        output.append(line)
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            seen += 1
            progress(
                f"Setting up: {min(seen, total)} of about {total} packages fetched …", every=10, count=seen
            )
        elif line.startswith("Installing collected"):
            progress("Setting up: installing them, about a minute at most …")
    if pip.wait() != 0:
        sys.exit(f"\nThe packages could not be installed:\n{''.join(output[-20:])}")
    if sys.stderr.isatty():
        say("")


def progress(text: str, *, every: int = 1, count: int = 0) -> None:
    """Rewrite one line on a terminal; elsewhere print each `every`th text."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif count % every == 0:
        say(text)


def say(text: str) -> None:
    """Print to standard error: standard output belongs to the target of `make`."""
    print(text, file=sys.stderr, flush=True)


def runs(python: Path) -> bool:
    """Return whether this interpreter starts and has pip."""
    if not python.exists():
        return False
    return subprocess.run([python, "-c", "import pip"], capture_output=True, timeout=60).returncode == 0


if __name__ == "__main__":
    main()
