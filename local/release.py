"""Make the files of a release in var/release: `make release`.

    python local/release.py [--tag v0.2.0] [--only documents,chart,image]

It makes the documents (OpenAPI, AsyncAPI, the JSON Schemas of events, the docs site, the list of all
packages), the chart, and an image for this machine's architecture, with the sums of all files. It signs and
pushes nothing, because .github/workflows/release.yml does that.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
RELEASE = PROJECT / "var" / "release"
CHART = PROJECT / "docker" / "helm" / "orderpost"
SUMS = "SHA256SUMS"
PARTS = ("documents", "chart", "image")
#: One package of a requirements file: its name, its version, a marker, and its hashes.
PACKAGE = re.compile(r"^([\w.-]+)==(\S+?)(?: ; .+)? \\\n((?:    --hash=sha256:\w+(?: \\)?\n)+)", re.MULTILINE)
#: Writes both documents of the API to a folder. It needs settings, but no server.
WRITE_DOCUMENTS = """
import json, sys
from pathlib import Path
import django
django.setup()
from drf_spectacular.generators import SchemaGenerator
from outbox.api.asyncapi import make_document
folder = Path(sys.argv[1])
for name, document in (
    ("openapi.json", SchemaGenerator().get_schema(request=None, public=True)),
    ("asyncapi.json", make_document()),
):
    (folder / name).write_text(json.dumps(document, indent=1, default=str) + "\\n")
"""
NO_SERVERS = {
    "DJANGO_SETTINGS_MODULE": "config.settings",
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "SECRET_KEY": "not-secret-release-only",
    "EMAIL_PROVIDERS": "smtp",
}


class ReleaseFailed(Exception):
    """The release cannot be made. The text says why."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", default="", help="refuse unless it is the tag of this version")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to make, separated by commas")
    parser.add_argument("--folder", type=Path, default=RELEASE)
    given = parser.parse_args(arguments)
    try:
        make(given.folder, tag=given.tag, parts=given.only.split(","))
    except ReleaseFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def make(folder: Path, *, tag: str, parts: Iterable[str]) -> None:
    """Make the parts of a release in an empty folder, and write the sums of its files."""
    number = version()
    if tag and tag != f"v{number}":
        raise ReleaseFailed(f"The tag {tag} is not the version {number} of pyproject.toml.")
    if unknown := set(parts) - set(PARTS):
        raise ReleaseFailed(f"A release has no part {min(unknown)}. Its parts are {', '.join(PARTS)}.")
    if changes := output("git", "status", "--porcelain"):
        raise ReleaseFailed(f"Commit these changes first:\n{changes}")
    if folder == RELEASE:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ReleaseFailed(f"{folder} is not empty.")
    if "documents" in parts:
        make_documents(folder, number)
    if "chart" in parts:
        run("helm", "package", CHART, "--destination", folder)
    if "image" in parts:
        make_image(folder, number)
    files = sorted(file for file in folder.iterdir() if file.name != SUMS)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / SUMS).write_text("".join(lines))
    print(f"{number} in {folder}:")
    for file in files:
        print(f"  {file.name}  {file.stat().st_size:,} bytes")


def version() -> str:
    return str(tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"])


def make_documents(folder: Path, number: str) -> None:
    run(sys.executable, "-c", WRITE_DOCUMENTS, folder, environment=NO_SERVERS)
    schemas = [path for name in ("orders", "outbox") for path in (PROJECT / name / "schemas").rglob("*.json")]
    pack(
        folder / f"orderpost-schemas-{number}.tar.gz",
        {str(path.relative_to(PROJECT)): path for path in schemas},
    )
    run(sys.executable, "local/docs.py")
    site = PROJECT / "var" / "site"
    pages = [path for path in site.rglob("*") if path.is_file()]
    pack(folder / f"orderpost-docs-{number}.tar.gz", {str(path.relative_to(site)): path for path in pages})
    (folder / "sbom.cdx.json").write_text(
        bill_of_materials(number, (PROJECT / "requirements" / "image.txt").read_text())
    )


def pack(archive: Path, files: Mapping[str, Path]) -> None:
    """Write a .tar.gz that depends on the files' names and contents alone."""
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, path in sorted(files.items()):
            entry, content = tarfile.TarInfo(name), path.read_bytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def bill_of_materials(number: str, lock: str) -> str:
    """Return the packages of a requirements file with their hashes, in CycloneDX 1.6."""
    packages = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{pinned}",
            "name": name,
            "version": pinned,
            "purl": f"pkg:pypi/{name}@{pinned}",
            "hashes": [{"alg": "SHA-256", "content": one} for one in re.findall(r"sha256:(\w+)", hashes)],
        }
        for name, pinned, hashes in PACKAGE.findall(lock)
    ]
    program = {"type": "application", "bom-ref": "orderpost", "name": "orderpost", "version": number}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": program},
        "components": packages,
        "dependencies": [{"ref": "orderpost", "dependsOn": [one["bom-ref"] for one in packages]}],
    }
    return json.dumps(document, indent=1) + "\n"


def make_image(folder: Path, number: str) -> None:
    """Build the image for this machine, and save it as an archive for `docker load` or `podman load`."""
    engine = find_engine()
    tag = f"orderpost:{number}"
    labels = {"VERSION": number, "REVISION": output("git", "rev-parse", "HEAD")}
    # `make release` has its own ARGS, which are not for the build.
    own = {"ENGINE": engine, "TAG": tag, "ARGS": os.environ.get("BUILD_ARGS", "")}
    run(PROJECT / "docker" / "build", environment=own | labels)
    archive = folder / f"orderpost-image-{number}-{os.uname().machine}.tar"
    run(engine, "save", "--output", archive, tag)
    run("gzip", "--no-name", archive)


def find_engine() -> str:
    """Return docker or podman, if it works here. ENGINE may name one."""
    for engine in os.environ.get("ENGINE", "docker podman").split():
        if shutil.which(engine) and subprocess.run([engine, "info"], capture_output=True).returncode == 0:
            return engine
    raise ReleaseFailed("Neither docker nor podman works here. Install one, or leave out the image (--only).")


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command in the project. Raise `ReleaseFailed` with its output if it fails."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except FileNotFoundError:
        raise ReleaseFailed(f"{name} is not installed.") from None
    if done.returncode:
        raise ReleaseFailed(f"{name} failed:\n{done.stdout.strip()}")


def output(*command: str) -> str:
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
