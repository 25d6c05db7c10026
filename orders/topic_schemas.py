"""Make the JSON Schemas of inbound topics from the bodies that read them, and complete those of our events.

`manage.py schemas --write` writes them, and `make check` compares. The hand-written part of an outgoing
schema is the fields of its kind of event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rest_framework import serializers

from events.schemas.schemas import read_schema
from orders.bodies import Currency, Field, OrderBody
from orders.events import EVENTS, SCHEMAS
from orders.fields import ORDER_FIELDS, Use, camel
from orders.inbound import commands, external
from orders.inbound.reading import InboundTopic
from orders.subscriptions import OTHER_TOPICS
from web.api import fields

Schema = dict[str, Any]
_ORDER_ID = {"orderId": {"type": "string", "format": "uuid"}}
_READ = "The fields of the envelope's `data` that are read here. Other fields are ignored."
_REPORTED = (
    "The `data` of an event of a system in ORDER_SOURCES: the whole order after the change. Other fields are"
    " ignored. `metadata.sequence` is the order's version. An order keeps its currency, so only an event with"
    " `notify: false` may change it. A value that does not fit is replaced, and refuses the event only in the"
    " order's id, its status and its money."
)


def make_schemas() -> Iterator[tuple[Path, Schema]]:
    """Yield the schema of each inbound topic and of each event that orders publish, with its file."""
    for name, topic in commands.TOPICS.items():
        made = _object(topic.body().fields, is_open=False)
        yield _inbound("command", name, topic, "The `data` of a command. Other fields are refused.", made)
    for name, topic in OTHER_TOPICS.items():
        made = _object(topic.body().fields, is_open=True)
        made |= {"properties": _ORDER_ID | made["properties"], "required": [*_ORDER_ID, *made["required"]]}
        yield _inbound("event", name, topic, _READ, made)
    for name, topic in external.TOPICS.items():
        made = _object(topic.body().fields, is_open=True)
        made["properties"]["status"] = {"enum": [str(status) for status in topic.statuses]}
        yield _inbound("external", name, topic, _REPORTED, made)
    for event in EVENTS.values():
        yield event.schema, _with_order(read_schema(event.schema))


def _inbound(kind: str, name: str, topic: InboundTopic, about: str, made: Schema) -> tuple[Path, Schema]:
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:orderpost:{kind}:{name}",
        "title": topic.title,
        "description": about,
    }
    return SCHEMAS / "in" / f"{name}.json", head | made


def _with_order(schema: Schema) -> Schema:
    """Return the schema of an event of ours with the fields of orders that it lacks."""
    fields = OrderBody().fields
    lacks = {
        field.json_name: make_schema(fields[field.name], is_open=True)
        for field in ORDER_FIELDS
        if Use.EVENTS in field.uses and field.name in fields and field.json_name not in schema["properties"]
    }
    return schema | {
        "properties": schema["properties"] | lacks,
        "required": [*schema["required"], *lacks],
    }


def _object(members: Mapping[str, Field], *, is_open: bool) -> Schema:
    return {
        "type": "object",
        "properties": {camel(name): make_schema(field, is_open=is_open) for name, field in members.items()},
        "required": [camel(name) for name, field in members.items() if field.required],
        "additionalProperties": is_open,
    }


def make_schema(field: Field, *, is_open: bool) -> Schema:
    """Return the JSON Schema of a body's field. If it `is_open`, its objects may have other fields."""
    made = _of_kind(field, is_open=is_open)
    return made | {"description": str(field.help_text)} if field.help_text else made


def _given(bounds: Schema) -> Schema:
    return {key: value for key, value in bounds.items() if value is not None}


def _of_kind(field: Field, *, is_open: bool) -> Schema:
    match field:
        case fields.Identifier():
            return {"type": "string", "format": "uuid"}
        case fields.EmailAddress():
            return {"type": "string", "format": "email", "maxLength": field.max_length}
        case fields.WebAddress():
            return {
                "type": "string",
                "format": "uri",
                "pattern": "^https?://",
                "maxLength": field.max_length,
            }
        case Currency():
            return {"type": "string", "pattern": "^[A-Z]{3}$"}
        case fields.Code():
            return {"type": "string", "pattern": f"^{field.pattern.pattern}$"}
        case fields.Text():
            shortest = {} if field.allow_blank else {"minLength": 1}
            return {"type": "string", **shortest, "maxLength": field.max_length}
        case fields.Integer():
            bounds = {"minimum": field.min_value, "maximum": field.max_value}
            return {"type": "integer", **_given(bounds)}
        case fields.Flag():
            return {"type": "boolean"}
        case fields.Choice():
            return {"enum": [str(choice) for choice in field.choices]}
        case serializers.DateTimeField():
            return {"type": "string", "format": "date-time", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T"}
        case serializers.ListField() | serializers.ListSerializer():
            listed: Any = field  # the stubs do not know the sizes
            sizes = {"minItems": listed.min_length, "maxItems": listed.max_length}
            items = make_schema(listed.child, is_open=is_open)
            return {"type": "array", "items": items, **_given(sizes)}
        case serializers.Serializer():
            return _object(field.fields, is_open=is_open)
        case _:
            raise TypeError(f"{type(field).__name__} has no JSON Schema. Add it here.")
