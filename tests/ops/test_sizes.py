"""No function is longer than a reader can keep in mind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from local.machine import PROJECT

FUNCTION_LINES = 60


def modules() -> Iterator[Path]:
    for package in ("config", "orders", "notifications", "outbox", "benchmarks", "examples"):
        for path in sorted((PROJECT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_functions_are_short() -> None:
    lengths = [(path, name, lines) for path in modules() for name, lines in functions(path)]
    assert len(lengths) > 500
    assert [found for found in lengths if found[2] > FUNCTION_LINES] == []
