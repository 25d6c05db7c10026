"""Make the JSON Schemas of inbound topics from the bodies that read them, and complete those of our events.

`manage.py schemas --write` writes them, and `make check` compares. The hand-written part of an outgoing
schema is the fields of its kind of event.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from events.schemas.schemas import read_schema
from orders.bodies import OrderBody
from orders.events import EVENTS, PUBLISHED, SCHEMAS
from orders.inbound import commands, external
from orders.inbound.reading import InboundTopic
from orders.subscriptions import OTHER_TOPICS
from web.api.fields import Schema

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
        made = topic.body().schema(is_open=False)
        yield _inbound("command", name, topic, "The `data` of a command. Other fields are refused.", made)
    for name, topic in OTHER_TOPICS.items():
        made = topic.body().schema(is_open=True)
        made |= {"properties": _ORDER_ID | made["properties"], "required": [*_ORDER_ID, *made["required"]]}
        yield _inbound("event", name, topic, _READ, made)
    for name, topic in external.TOPICS.items():
        made = topic.body().schema(is_open=True)
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
    made = OrderBody().schema(is_open=True)["properties"]
    lacks = {name: made[name] for name in PUBLISHED if name in made and name not in schema["properties"]}
    return schema | {
        "properties": schema["properties"] | lacks,
        "required": [*schema["required"], *lacks],
    }
