"""The name of a field says what its value is: `_seconds`, `_at`, `is_` or `has_` (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from local.machine import PROJECT

PACKAGES = ("local", "config", "orders", "notifications", "outbox")
#: The bounds of a range keep their usual words. `_epoch` is a moment whose `_at` is taken by a datetime.
MOMENT = r"(.*_)?(now|since|until)|.*_(at|epoch)"
RULES = {
    "bool": r"(is|has)_.*",
    "datetime": MOMENT,
    "float": rf"(.*_)?seconds|{MOMENT}",
}
#: Fields that keep another name, each with its reason.
EXCEPTIONS = {
    "Condition.number": "neither a duration nor a time",
    "Condition.limit": "neither a duration nor a time",
    "Fault.probability": "neither a duration nor a time",
    "WebhookSettings.probability": "neither a duration nor a time",
    "WebhookSettings.delay": "a word of the sandbox's settings",
    "WebhookSettings.reorder": "a word of the sandbox's settings",
    "Entry.at": "JSON of manage.py timeline",
    "Envelope.timestamp": "JSON of an inbound event",
}


def kinds(hint: ast.expr) -> set[str]:
    """Return the last words of a hint's types, without None; a generic type is none of ours."""
    if isinstance(hint, ast.BinOp):
        return kinds(hint.left) | kinds(hint.right)
    if isinstance(hint, ast.Subscript):
        wrapped = hint.slice.elts[0] if isinstance(hint.slice, ast.Tuple) else hint.slice
        return kinds(wrapped) if ast.unparse(hint.value) in ("Annotated", "ClassVar") else {"other"}
    return {ast.unparse(hint).rpartition(".")[2]} - {"None"}


def fields(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield the public annotated fields of classes whose type has a rule: class, field, type."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                name, found = line.target.id, kinds(line.annotation)
                if not name.startswith("_") and len(found) == 1 and found <= RULES.keys():
                    yield node.name, name, found.pop()


def misnamed(text: str) -> set[str]:
    return {
        f"{owner}.{name}"
        for owner, name, kind in fields(ast.parse(text))
        if not re.fullmatch(RULES[kind], name)
    }


@pytest.mark.parametrize(
    "line",
    [
        "wait: float",
        "due: dt.datetime | None",
        "ready: bool",
        "now_or_never: datetime",
        "n: Annotated[float, 1]",
    ],
)
def test_a_field_without_its_unit_is_found(line):
    assert misnamed(f"class Row:\n    {line}\n") == {f"Row.{line.partition(':')[0]}"}


def test_every_field_of_seconds_a_time_or_a_truth_says_so_in_its_name():
    found = set[str]()
    for package in PACKAGES:
        for path in (PROJECT / package).rglob("*.py"):
            if "migrations" not in path.parts:
                found |= misnamed(path.read_text())
    assert found == set(EXCEPTIONS)  # an exception that nothing needs is removed
