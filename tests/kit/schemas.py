"""Check events against the served schemas."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jsonschema

from events.schemas.schemas import Direction, Name
from tests.kit.words import find_schemas, read_schema


def strict(schema: Any) -> Any:
    """Return a copy of a schema that forbids unknown properties."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: strict(value) for key, value in schema.items()}
    return parts | {"additionalProperties": False} if schema.get("additionalProperties") is True else parts


@functools.cache
def validator(direction: Direction, name: str, *, is_strict: bool = True) -> Any:
    """Return the validator of a served schema. A strict one forbids unknown properties."""
    schema = read_schema(find_schemas()[Name(direction, name)])
    return jsonschema.Draft202012Validator(
        strict(schema) if is_strict else schema,
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )


def validate_published(events: Iterable[tuple[str, Any]]) -> int:
    """Validate topics and payloads, and return their number. Raise `jsonschema.ValidationError`."""
    count = 0
    for topic, payload in events:
        validator("out", "dlt" if topic.endswith(".dlt") else topic).validate(payload)
        count += 1
    return count


def validate_inbound(event: dict[str, Any]) -> None:
    """Validate the envelope and the data of an event that orderpost takes."""
    for name, value in (("envelope", event), (event["eventType"], event["data"])):
        validator("in", name, is_strict=False).validate(value)
