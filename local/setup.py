"""Make .venv from the lock files. Every `make` target begins with it; it does nothing if .venv is current.

    python local/setup.py [run | dev | bench]

Install requirements-<name>.lock and the files that it names. The machine's Python runs it by path before
anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
VENV = PROJECT / ".venv"
STAMP = VENV / "installed"


def main() -> None:
    lock = PROJECT / f"requirements-{(sys.argv[1:] or ['dev'])[0]}.lock"
    directory = os.open(PROJECT, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # two targets of make may run at the same time
        set_up(lock)
    finally:
        os.close(directory)


def set_up(lock: Path) -> None:
    """Install a lock file, unless .venv was made from its current content."""
    home = VENV.resolve().parent  # another checkout, if .venv is a link to its
    origin = f"{sys.version} in {home}".replace("\n", " ")
    installed = STAMP.read_text().splitlines() if STAMP.exists() else []
    if installed[:1] != [origin]:
        if installed:  # by this program, but with another Python, or before the checkout was moved
            shutil.rmtree(VENV, ignore_errors=True)
        installed = [origin]
    wanted = [f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.name}" for file in files(lock)]
    if set(wanted) <= set(installed) and is_runnable(VENV / "bin" / "python"):
        return
    make_venv()
    install(lock)
    # Make the checkout importable from every current directory.
    (site_packages() / "orderpost.pth").write_text(f"{home}\n")
    names = {line.split()[1] for line in wanted}
    kept = [line for line in installed[1:] if line.split()[1] not in names]
    STAMP.write_text("".join(f"{line}\n" for line in [origin, *kept, *wanted]))
    say("Setting up: done.")


def files(lock: Path) -> list[Path]:
    """Return a lock file and those that it adds to. A file's first line names the next."""
    first, *_ = lock.read_text().splitlines()
    return [lock, *(files(PROJECT / first[3:]) if first.startswith("-r ") else [])]


def make_venv() -> None:
    """Make an empty .venv unless it works already."""
    if is_runnable(VENV / "bin" / "python"):
        return
    try:
        import ensurepip  # noqa: F401 (Debian has it in a separate package)
        import venv
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            f"Python {version} lacks its venv module. "
            f"On Debian and Ubuntu: apt-get install python{version}-venv"
        )
    say("Setting up: .venv …")
    shutil.rmtree(VENV, ignore_errors=True)
    venv.create(VENV, with_pip=True)


def site_packages() -> Path:
    """Return the folder of packages, which .venv's own Python knows. It may be another one than this."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([VENV / "bin" / "python", "-c", ask], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def install(lock: Path) -> None:
    """Install the packages of a lock file. pip checks each package's hash."""
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
    """Rewrite one line on a terminal. Otherwise print every `every`th text."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif count % every == 0:
        say(text)


def say(text: str) -> None:
    """Print to standard error, because standard output belongs to the target of `make`."""
    print(text, file=sys.stderr, flush=True)


def is_runnable(python: Path) -> bool:
    """Return whether the interpreter starts and has pip."""
    if not python.exists():
        return False
    return subprocess.run([python, "-c", "import pip"], capture_output=True, timeout=60).returncode == 0


if __name__ == "__main__":
    main()
