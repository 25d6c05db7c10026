"""No name fits every value, and no two classes of the product have one name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from local.machine import PROJECT
from tests.kit.packages import PACKAGES, files_of

#: Names that fit every value. A variable has the singular of its collection, or says what its value is.
EMPTY = {"one", "found", "known", "given"}
#: Classes that Django, or a provider's setting, finds by the module and this name.
BY_MODULE = {"Command", "Migration", "Backend"}


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names of variables, arguments, attributes, functions and classes, with their lines."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.Attribute(attr=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield node.lineno, name


def test_no_variable_has_a_name_that_fits_every_value():
    folders = ["config", "local", *PACKAGES, "tests", "benchmarks", "examples"]
    empty = [
        f"{file.relative_to(PROJECT)}:{line} {name}"
        for folder in folders
        for file in sorted((PROJECT / folder).rglob("*.py"))
        for line, name in bound_names(ast.parse(file.read_text()))
        if name in EMPTY
    ]
    assert empty == []


def test_no_two_classes_of_the_product_have_one_name():
    places: dict[str, list[Path]] = defaultdict(list)
    for package in ("config", "local", *PACKAGES):
        for file in files_of(package):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and node.name not in BY_MODULE:
                    places[node.name].append(file.relative_to(PROJECT))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
