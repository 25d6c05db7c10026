"""Check that published events match the served schemas."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jsonschema

from outbox.events.schemas import Direction
from tests.kit.words import Name, find_schemas, read_schema


def strict(schema: Any) -> Any:
    """Return a copy of a schema that forbids unknown properties."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: strict(value) for key, value in schema.items()}
    return parts | {"additionalProperties": False} if schema.get("additionalProperties") is True else parts


@functools.cache
def validator(direction: Direction, name: str) -> Any:
    """Return the strict validator of a served schema."""
    return jsonschema.Draft202012Validator(
        strict(read_schema(find_schemas()[Name(direction, name)])),
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )


def validate_published(events: Iterable[tuple[str, Any]]) -> int:
    """Validate topics and payloads, and return their number. Raise `jsonschema.ValidationError`."""
    count = 0
    for topic, payload in events:
        validator("out", "dlt" if topic.endswith(".dlt") else topic).validate(payload)
        count += 1
    return count
