"""Private files, and what the environment already says. For `config.local`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def is_given(name: str, *, environ: Mapping[str, str]) -> bool:
    """Return whether the environment has a value, directly or through a file."""
    return bool(environ.get(name) or environ.get(f"{name}_FILE"))


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner alone."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.rename(path)


def is_on(name: str, *, environ: Mapping[str, str]) -> bool:
    """Return whether a variable that turns something on is set."""
    return environ.get(name, "").strip().lower() in ("1", "on", "true", "yes")
