"""Write the lock files again, with uv: `make lock`.

All files come from one resolution, and each version stands in one file alone: `-r` leads from a file to the
one that it adds to. So no target of make installs another version than the image has. By default the newest
versions that pyproject.toml allows are chosen; with `--keep` only what pyproject.toml changed is changed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
EVERYTHING = ("--all-extras", "--group", "dev", "--group", "bench")
#: By file: the one that it adds to, and what it is made for.
LAYERS = {
    "requirements.lock": ("", ("--all-extras",)),
    "requirements-run.lock": ("requirements.lock", ("--all-extras", "--group", "run")),
    "requirements-dev.lock": ("requirements-run.lock", ("--all-extras", "--group", "dev")),
    "requirements-bench.lock": ("requirements-run.lock", ("--all-extras", "--group", "bench")),
}


def main() -> None:
    """Resolve everything at once, then write what each file adds."""
    keep = "--keep" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "everything.txt"
        if keep:  # uv prefers the versions of a file that is there
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
    """Return each pinned package of a lock file: its line with its hashes."""
    if not path.exists():
        return []
    return re.findall(r"^[a-z0-9].*\n(?:[ #].*\n)*", path.read_text(), re.MULTILINE)


def resolve(output: Path, *options: str) -> None:
    """Have uv write one file for all platforms and every Python from 3.11 on."""
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
