"""Fetch Java programs by Maven, once into a cache, and check each file's SHA-256.

A set is a directory with a `pom.xml` and the list `SHA256SUMS` of all its files. Maven's settings choose the
registry. `fetch` refuses a set whose files differ from its list. After a change of a POM, write its list
again and review the changes: `python -m local.kafka.jars --pin docker/kafka/broker`.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from local.machine import PROJECT, LocalRunFailed

BROKER = PROJECT / "docker" / "kafka" / "broker"
CONNECT = PROJECT / "docker" / "kafka" / "connect"
DEBEZIUM = PROJECT / "docker" / "kafka" / "debezium"
SUMS = "SHA256SUMS"
OLDEST_JAVA = 17
MAVEN_SECONDS = 540
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class Unavailable(LocalRunFailed):
    """Java or Maven is not installed, or Maven's registry does not answer."""


@cache
def java() -> str:
    """Return the path of Java 17 or later, from JAVA_HOME or else from PATH. Raise Unavailable."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin" if home else None)
    if path is None:
        raise Unavailable("Java 17 is missing. On Debian and Ubuntu: apt-get install default-jre-headless")
    said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise Unavailable(f"Java {OLDEST_JAVA} or later is needed; {path} says {said.splitlines()[:1]}")
    return path


def command(*, jars: Sequence[Path], main: str, arguments: Sequence[str | Path]) -> list[str]:
    """Return the command of a Java program, tuned for a quick start."""
    return [
        java(),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Djava.awt.headless=true",
        "-Dorg.apache.logging.log4j.level=WARN",
        *("-cp", os.pathsep.join(map(str, jars))),
        main,
        *map(str, arguments),
    ]


def fetch(directory: Path) -> list[Path]:
    """Return a set's files in the order of its list. Fetch them by Maven unless the cache has them.

    Raise Unavailable, or LocalRunFailed if a file differs from the list.
    """
    wanted = read_sums(directory)
    stamp = hashlib.sha256((directory / SUMS).read_bytes()).hexdigest()[:12]
    home = cache_directory() / f"{directory.name}-{stamp}"
    if not home.exists():
        cache_directory().mkdir(parents=True, exist_ok=True)
        with (cache_directory() / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a parallel test run has several processes
            if not home.exists():
                print(f"  fetching {len(wanted)} files of {directory.name} with Maven, once")
                _fetch(directory, wanted=wanted, home=home)
    return [home / name for name in wanted]


def cache_directory() -> Path:
    """Return the directory of fetched files, which is in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orderpost" / "jars"


def read_sums(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a set, by name."""
    lines = (directory / SUMS).read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def pin(directory: Path) -> None:
    """Fetch a set and write its list again."""
    with tempfile.TemporaryDirectory(prefix="orderpost-jars-") as folder:
        _run_maven(directory, target=Path(folder))
        sums = {path.name: _digest(path) for path in sorted(Path(folder).iterdir())}
    (directory / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))


def _fetch(directory: Path, *, wanted: dict[str, str], home: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{home.name}.", dir=home.parent) as folder:
        new = Path(folder) / "new"
        new.mkdir()
        _run_maven(directory, target=new)
        digests = {path.name: _digest(path) for path in new.iterdir()}
        wrong = sorted(name for name in wanted | digests if wanted.get(name) != digests.get(name))
        if wrong:
            raise LocalRunFailed(
                f"{directory / SUMS} does not have the SHA-256 of what Maven fetched: {', '.join(wrong)}."
            )
        new.rename(home)


def _run_maven(directory: Path, *, target: Path) -> None:
    java()
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("Maven is missing, which fetches this. On Debian and Ubuntu: apt-get install maven")
    options = ["--batch-mode", "--quiet", "--strict-checksums", "--file", str(directory / "pom.xml")]
    copy = [COPY, f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            [maven, *options, *copy],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAVEN_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Maven did not fetch {directory.name} within {MAVEN_SECONDS} s.") from error
    if done.returncode != 0:
        raise Unavailable(f"Maven could not fetch {directory.name}:\n{done.stdout.strip()[-1500:]}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Write the lists of sets again."""
    parser = argparse.ArgumentParser(prog="python -m local.kafka.jars", description=main.__doc__)
    parser.add_argument("--pin", nargs="+", type=Path, required=True, help="directories with a pom.xml")
    options = parser.parse_args()
    try:
        for directory in options.pin:
            pin(directory)
    except LocalRunFailed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
