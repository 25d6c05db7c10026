"""The programs of examples/ as modules."""

from __future__ import annotations

import importlib.util
from typing import Any

from local.machine import PROJECT


def load(name: str) -> Any:
    """Return examples/<name>.py as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", PROJECT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
