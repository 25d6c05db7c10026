"""Find changes of a JSON Schema that break a promise to another service.

Every document that we publish must also match the old schema. New properties are allowed, since consumers
ignore unknown ones. We must still accept every document that matches the old schema. Removing or renaming a
property breaks both directions: the other side would miss or ignore it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

Direction = Literal["in", "out"]
Schema = Mapping[str, Any]

_NOTES = {"$schema", "title", "description", "examples", "default", "deprecated", "$comment"}
_LOWER, _UPPER = ("minimum", "minLength", "minItems"), ("maximum", "maxLength", "maxItems")
_COMPARED = {"type", "enum", "required", "properties", "additionalProperties", "items", *_LOWER, *_UPPER}


def find_breaks(*, old: Schema, new: Schema, direction: Direction) -> list[str]:
    """Return a line for each broken promise, or none if the change is compatible."""
    return list(_Comparison(direction).nodes(old, new, "data"))


class _Comparison:
    """Check that every document of `narrow` matches `wide`: old and new for "in", new and old for "out"."""

    def __init__(self, direction: Direction) -> None:
        self.direction = direction

    def nodes(self, old: Schema, new: Schema, place: str) -> Iterator[str]:
        narrow, wide = (old, new) if self.direction == "in" else (new, old)
        yield from self._values(narrow, wide, place)
        yield from _bounds(narrow, wide, place)
        yield from self._others(narrow, wide, place)
        yield from self._properties(old, new, narrow, wide, place)
        if "items" in wide:
            if "items" in narrow:
                yield from self.nodes(old["items"], new["items"], f"{place}[]")
            else:
                yield f"{place}: its items are described {self._when('now', 'no longer')}"

    def _when(self, taken: str, published: str) -> str:
        return taken if self.direction == "in" else published

    def _values(self, narrow: Schema, wide: Schema, place: str) -> Iterator[str]:
        if "type" in wide and not _types(narrow) <= _types(wide):
            yield f"{place}: its type is another"
        if "enum" in wide:
            allowed = wide["enum"]
            more = [value for value in narrow.get("enum", [None]) if value not in allowed]
            if "enum" not in narrow or more:
                yield f"{place}: its enum is {self._when('narrower', 'wider')}"

    def _others(self, narrow: Schema, wide: Schema, place: str) -> Iterator[str]:
        """Compare keywords without an order (pattern, format, …). `narrow` must have those of `wide`."""
        for key in sorted(wide.keys() - _NOTES - _COMPARED):
            if narrow.get(key) != wide[key]:
                yield f"{place}: its {key} is another"

    def _properties(
        self, old: Schema, new: Schema, narrow: Schema, wide: Schema, place: str
    ) -> Iterator[str]:
        mine, theirs = old.get("properties", {}), new.get("properties", {})
        for name in mine:
            if name in theirs:
                yield from self.nodes(mine[name], theirs[name], f"{place}.{name}")
            else:
                yield f"{place}.{name}: it is gone"
        for name in set(wide.get("required", [])) - set(narrow.get("required", [])):
            if name in theirs or name not in mine:
                yield f"{place}.{name}: it is {self._when('newly required', 'no longer always there')}"
        if self.direction == "in" and _is_open(old) and not _is_open(new):
            yield f"{place}: other properties are refused now"


def _types(schema: Schema) -> set[str]:
    declared = schema.get("type", ["null", "boolean", "object", "array", "number", "string", "integer"])
    types = {declared} if isinstance(declared, str) else set(declared)
    return types | ({"integer"} if "number" in types else set())


def _bounds(narrow: Schema, wide: Schema, place: str) -> Iterator[str]:
    for key in _LOWER:
        if key in wide and narrow.get(key, float("-inf")) < wide[key]:
            yield f"{place}: its {key} is another"
    for key in _UPPER:
        if key in wide and narrow.get(key, float("inf")) > wide[key]:
            yield f"{place}: its {key} is another"


def _is_open(schema: Schema) -> bool:
    return schema.get("additionalProperties", True) is not False
