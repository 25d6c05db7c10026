"""The JSON Schemas of events and commands: `schemas/in` and `schemas/out` of each app and of each release."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from django.apps import apps
from django.conf import settings

from events.schemas.rules import Direction as Direction
from events.schemas.rules import find_breaks

DIRECTIONS: tuple[Direction, ...] = ("in", "out")
#: A folder for each release. `manage.py schemas --keep` makes it.
RELEASED = Path(settings.BASE_DIR) / "docs" / "schemas"


class Name(NamedTuple):
    """`name` is a topic, `envelope`, or `dlt` for the dead letters of every topic."""

    direction: Direction
    name: str


_made: list[Callable[[], Iterable[tuple[Path, dict[str, Any]]]]] = []


def register_schemas(make: Callable[[], Iterable[tuple[Path, dict[str, Any]]]]) -> None:
    """Register a function that makes schemas from the code that reads the events, each with its file."""
    _made.append(make)


def outdated() -> dict[Path, str]:
    """Return the files of schemas that are not as they would be made now, each with its right text."""
    made = (pair for make in _made for pair in make())
    texts = {path: f"{json.dumps(schema, indent=2, ensure_ascii=False)}\n" for path, schema in made}
    return {path: text for path, text in texts.items() if not path.exists() or path.read_text() != text}


@functools.cache
def find_schemas() -> dict[Name, Path]:
    """Return the file of every schema of this release."""
    schemas: dict[Name, Path] = {}
    for app in apps.get_app_configs():
        schemas |= schemas_in(Path(app.path) / "schemas")
    return dict(sorted(schemas.items()))


def schemas_in(folder: Path) -> dict[Name, Path]:
    """Return the files of the schemas in a folder that has `in` and `out`."""
    return {
        Name(direction, path.name.removesuffix(".json")): path
        for direction in DIRECTIONS
        for path in sorted((folder / direction).glob("*.json"))
    }


def read_schema(path: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(path.read_text()))


def last_release() -> Path | None:
    """Return the folder of the last release's schemas."""
    folders = [path for path in RELEASED.glob("*") if path.is_dir()]
    return max(folders, key=lambda path: [int(part) for part in path.name.split(".")], default=None)


def breaks_since(folder: Path) -> Iterator[str]:
    """Yield a line for each promise of the schemas in `folder` that the schemas of this release break."""
    now = find_schemas()
    for name, path in schemas_in(folder).items():
        if name not in now:
            yield f"{name.direction}/{name.name}: it is gone"
            continue
        for text in find_breaks(old=read_schema(path), new=read_schema(now[name]), direction=name.direction):
            yield f"{name.direction}/{name.name}: {text}"


def keep(version: str) -> int:
    """Copy the schemas into the folder of a release, and return their number."""
    for name, path in find_schemas().items():
        folder = RELEASED / version / name.direction
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    return len(find_schemas())
