"""The programs of examples/ as modules."""

from __future__ import annotations

import importlib.util
from typing import Any

import jsonschema

from local.machine import PROJECT
from tests.kit.words import Name, find_schemas, read_schema


def load(name: str) -> Any:
    """Return examples/<name>.py as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", PROJECT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_valid(event: dict[str, Any]) -> None:
    """Check an event against the served schemas."""
    schemas = find_schemas()
    for name, value in (("envelope", event), (event["eventType"], event["data"])):
        jsonschema.Draft202012Validator(read_schema(schemas[Name("in", name)])).validate(value)
