"""Each kind of incompatible change of a schema is refused, and each compatible one is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from events.schemas import schemas
from events.schemas.rules import find_breaks

SCHEMA: dict[str, Any] = {
    "title": "A change",
    "type": "object",
    "properties": {
        "orderId": {"type": "string", "format": "uuid"},
        "status": {"enum": ["paid", "cancelled"]},
        "amount": {"type": "integer", "minimum": 1, "maximum": 100},
        "note": {"type": "string", "maxLength": 10},
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]},
        },
    },
    "required": ["orderId", "status"],
    "additionalProperties": True,
}
Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> dict[str, Any]:
    new = copy.deepcopy(SCHEMA)
    change(new)
    return new


def rename(schema: dict[str, Any]) -> None:
    schema["properties"]["total"] = schema["properties"].pop("amount")


def properties(schema: dict[str, Any]) -> Any:
    return schema["properties"]


BOTH: dict[str, tuple[Change, str]] = {
    "a property removed": (lambda s: properties(s).pop("note"), "data.note: it is gone"),
    "a property renamed": (rename, "data.amount: it is gone"),
    "a property retyped": (lambda s: properties(s)["amount"].update(type="string"), "data.amount: its type"),
    "a format changed": (lambda s: properties(s)["orderId"].update(format="uri"), "data.orderId: its format"),
    "an item's property removed": (
        lambda s: properties(s)["items"]["items"]["properties"].pop("sku"),
        "data.items[].sku: it is gone",
    ),
    "an item's property retyped": (
        lambda s: properties(s)["items"]["items"]["properties"]["sku"].update(type="integer"),
        "data.items[].sku: its type",
    ),
}
IN: dict[str, tuple[Change, str]] = {
    "a property newly required": (lambda s: s["required"].append("amount"), "data.amount: it is newly"),
    "a new property that is required": (
        lambda s: (properties(s).update(extra={}), s["required"].append("extra")),
        "data.extra: it is newly required",
    ),
    "an enum narrowed": (
        lambda s: properties(s)["status"]["enum"].pop(),
        "data.status: its enum is narrower",
    ),
    "an enum introduced": (lambda s: properties(s)["note"].update(enum=["a"]), "data.note: its enum"),
    "a type narrowed": (lambda s: properties(s).update(note={"type": "null"}), "data.note: its type"),
    "a minimum raised": (lambda s: properties(s)["amount"].update(minimum=2), "data.amount: its minimum"),
    "a maximum lowered": (lambda s: properties(s)["amount"].update(maximum=99), "data.amount: its maximum"),
    "a length shortened": (lambda s: properties(s)["note"].update(maxLength=9), "data.note: its maxLength"),
    "a pattern introduced": (lambda s: properties(s)["note"].update(pattern="^a"), "data.note: its pattern"),
    "other properties refused": (lambda s: s.update(additionalProperties=False), "data: other properties"),
    "an unknown keyword": (lambda s: s.update(oneOf=[{}]), "data: its oneOf"),
}
OUT: dict[str, tuple[Change, str]] = {
    "a property no longer required": (lambda s: s["required"].pop(), "data.status: it is no longer"),
    "an enum widened": (
        lambda s: properties(s)["status"]["enum"].append("x"),
        "data.status: its enum is wider",
    ),
    "an enum dropped": (lambda s: properties(s).update(status={"type": "string"}), "data.status: its enum"),
    "a type widened": (
        lambda s: properties(s)["note"].update(type=["string", "null"]),
        "data.note: its type",
    ),
    "a format dropped": (lambda s: properties(s)["orderId"].pop("format"), "data.orderId: its format"),
    "a maximum raised": (lambda s: properties(s)["amount"].update(maximum=101), "data.amount: its maximum"),
    "a minimum dropped": (lambda s: properties(s)["amount"].pop("minimum"), "data.amount: its minimum"),
    "items no longer described": (lambda s: properties(s)["items"].pop("items"), "data.items: its items"),
}
FINE: dict[str, tuple[str, Change]] = {
    "a new optional property in": ("in", lambda s: properties(s).update(extra={"type": "string"})),
    "a new property out": (
        "out",
        lambda s: (properties(s).update(extra={"type": "string"}), s["required"].append("extra")),
    ),
    "an enum widened in": ("in", lambda s: properties(s)["status"]["enum"].append("x")),
    "an enum narrowed out": ("out", lambda s: properties(s)["status"]["enum"].pop()),
    "a property no longer required in": ("in", lambda s: s["required"].pop()),
    "a property newly required out": ("out", lambda s: s["required"].append("amount")),
    "a type widened in": ("in", lambda s: properties(s)["amount"].update(type="number")),
    "a maximum raised in": ("in", lambda s: properties(s)["amount"].update(maximum=101)),
    "another title": ("in", lambda s: s.update(title="Another", description="More")),
}
CASES = [
    *((direction, name, *case) for name, case in BOTH.items() for direction in ("in", "out")),
    *(("in", name, *case) for name, case in IN.items()),
    *(("out", name, *case) for name, case in OUT.items()),
]


@pytest.mark.parametrize(
    ("direction", "name", "change", "said"), CASES, ids=[f"{case[0]}: {case[1]}" for case in CASES]
)
def test_an_incompatible_change_is_refused(direction, name, change, said):
    breaks = find_breaks(old=SCHEMA, new=changed(change), direction=direction)
    assert any(line.startswith(said) for line in breaks), (name, breaks)


@pytest.mark.parametrize("name", FINE)
def test_a_compatible_change_is_not(name):
    direction, change = FINE[name]
    assert find_breaks(old=SCHEMA, new=changed(change), direction=direction) == []


def test_nothing_that_the_last_release_promised_is_broken():
    last = schemas.last_release()
    assert last is not None and len(schemas.schemas_in(last)) >= 13
    assert list(schemas.breaks_since(last)) == []


def test_make_check_refuses_a_change_of_any_released_schema(tmp_path, monkeypatch, capsys):
    """Each schema of the last release gets a property more that is gone now; one topic is gone altogether."""
    last = schemas.last_release()
    assert last is not None
    for name, path in schemas.schemas_in(last).items():
        folder = tmp_path / "9.0.0" / name.direction
        folder.mkdir(parents=True, exist_ok=True)
        document = json.loads(path.read_text())
        document["properties"]["gone"] = {"type": "string"}
        (folder / path.name).write_text(json.dumps(document))
    (tmp_path / "9.0.0" / "in" / "gone.v1.json").write_text("{}")
    monkeypatch.setattr(schemas, "RELEASED", tmp_path)
    with pytest.raises(CommandError) as refusal:
        call_command("schemas")
    lines = str(refusal.value).splitlines()
    assert sum(line.endswith("data.gone: it is gone") for line in lines) == len(schemas.schemas_in(last))
    assert "in/gone.v1: it is gone" in lines
    with pytest.raises(CommandError):
        call_command("schemas", keep="9.1.0")
    assert not (tmp_path / "9.1.0").exists()


def test_a_release_keeps_its_schemas(tmp_path, monkeypatch, capsys):
    (tmp_path / "1.9.0").mkdir()
    monkeypatch.setattr(schemas, "RELEASED", tmp_path)
    call_command("schemas", keep="1.10.0")
    assert schemas.last_release() == tmp_path / "1.10.0"
    assert len(schemas.schemas_in(tmp_path / "1.10.0")) == len(schemas.find_schemas())
    call_command("schemas")
    assert "break nothing of 1.10.0" in capsys.readouterr().out
