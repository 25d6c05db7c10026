"""Write the lock files again, with uv: `make lock`.

All files come from one resolution, so each target of make installs the image's versions. A file begins with
`-r` and the file that it adds to, and each package is in only one file. By default uv chooses the newest
versions that pyproject.toml allows. With `--keep` it changes only what a change of pyproject.toml requires.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
EVERYTHING = ("--all-extras", "--group", "dev", "--group", "bench")
#: By file: the file that it adds to, and uv's options for its packages.
LAYERS = {
    "requirements.lock": ("", ("--all-extras",)),
    "requirements-run.lock": ("requirements.lock", ("--all-extras", "--group", "run")),
    "requirements-dev.lock": ("requirements-run.lock", ("--all-extras", "--group", "dev")),
    "requirements-bench.lock": ("requirements-run.lock", ("--all-extras", "--group", "bench")),
}


def main() -> None:
    """Resolve everything at once, then write the packages that each file adds."""
    keep = "--keep" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "everything.txt"
        if keep:  # uv prefers the versions of an existing output file
            everything.write_text("".join(text for name in LAYERS for text in entries(PROJECT / name)))
        resolve(everything, *EVERYTHING, *([] if keep else ["--upgrade"]))
        for name, (below, wanted) in LAYERS.items():
            layer = Path(folder) / name
            resolve(layer, *wanted, "--constraint", str(everything))
            known = {entry for lower in below_of(name) for entry in entries(PROJECT / lower)}
            added = [entry for entry in entries(layer) if entry not in known]
            (PROJECT / name).write_text((f"-r {below}\n" if below else "") + "".join(added))


def below_of(name: str) -> list[str]:
    """Return the files that a lock file adds to."""
    below = LAYERS[name][0]
    return [below, *below_of(below)] if below else []


def entries(path: Path) -> list[str]:
    """Return the pinned packages of a lock file, each with its hashes."""
    if not path.exists():
        return []
    return re.findall(r"^[a-z0-9].*\n(?:[ #].*\n)*", path.read_text(), re.MULTILINE)


def resolve(output: Path, *options: str) -> None:
    """Write one file by uv, for all platforms and every Python from 3.11 on."""
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *options, "--quiet"),
            *("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--universal"),
            *("--python-version", "3.11", "--output-file", str(output)),
        ],
        cwd=PROJECT,
        check=True,
    )


if __name__ == "__main__":
    main()
