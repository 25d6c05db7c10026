"""The packages of the product, as the import contracts in pyproject.toml list them, and their files."""

from __future__ import annotations

import tomllib
from pathlib import Path

from local.machine import PROJECT

_CONTRACTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
#: The packages below `config`, from top to bottom. Those of one level do not know each other.
LEVELS = [level.split(" | ") for level in _CONTRACTS[0]["layers"] if level not in ("local", "config")]
PACKAGES = [package for level in LEVELS for package in level]


def files_of(*packages: str) -> list[Path]:
    """Return the packages' Python files."""
    return [path for package in packages for path in sorted((PROJECT / package).rglob("*.py"))]
