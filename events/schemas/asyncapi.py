"""/api/asyncapi: the AsyncAPI 3.0 document of all topics, made of the JSON Schemas at /api/schemas."""

from __future__ import annotations

import functools
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from events.schemas.schemas import Direction, Name, find_schemas, read_schema
from runtime.telemetry.release import version
from web.api.get_only import get_only
from web.api.views import json_response

#: The names of schemas that are not topics.
ENVELOPE, DEAD_LETTER = "envelope", "dlt"
_ACTIONS: dict[Direction, str] = {"in": "receive", "out": "send"}
#: Keywords of a schema that stands alone. AsyncAPI's own dialect is draft-07, which has all others we use.
_ALONE = ("$schema", "$id")


@get_only
def document(request: HttpRequest) -> HttpResponse:
    return json_response(make_document())


@functools.cache
def make_document() -> dict[str, Any]:
    """Return the document, which is made once and must not be changed.

    Operations are this application's: it receives the topics of direction `in` and sends those of `out`.
    """
    made: dict[str, Any] = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "orderpost",
            "version": version(),
            "description": "All topics. Settings turn on the commands (EVENT_COMMANDS), the events of other"
            " systems' orders (ORDER_SOURCES) and the events of e-mails (EMAIL_EVENTS).",
        },
        "defaultContentType": "application/json",
        "channels": {},
        "operations": {},
        "components": {"messages": {}, "schemas": {}},
    }
    for name, file in find_schemas().items():
        _add_schema(made["components"]["schemas"], name, read_schema(file))
    for name in find_schemas():
        if name.name != ENVELOPE:
            _add_topic(made, name)
    return made


def _key(name: Name) -> str:
    return f"{name.direction}.{name.name}"


def _add_schema(schemas: dict[str, Any], name: Name, schema: dict[str, Any]) -> None:
    """Add the schema of a topic's `data`, or the envelope's `metadata`, which all messages share."""
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _ALONE}
    if name.name == ENVELOPE:
        schemas[f"{name.direction}.metadata"] = kept["properties"]["metadata"]
    else:
        schemas[_key(name)] = kept


def _add_topic(made: dict[str, Any], name: Name) -> None:
    key, channel_id = _key(name), name.name
    made["components"]["messages"][key] = _message(name)
    channel = made["channels"].setdefault(channel_id, _channel(name))
    channel["messages"][name.direction] = {"$ref": f"#/components/messages/{key}"}
    action = _ACTIONS[name.direction]
    made["operations"][f"{action}.{channel_id}"] = {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel_id}"},
        "messages": [{"$ref": f"#/channels/{channel_id}/messages/{name.direction}"}],
    }


def _channel(name: Name) -> dict[str, Any]:
    if name.name != DEAD_LETTER:
        return {"address": name.name, "messages": {}}
    topics = [other.name for other in find_schemas() if other.direction == "in" and other.name != ENVELOPE]
    parameters = {"topic": {"description": "The topic of the event", "enum": topics}}
    return {"address": "{topic}.dlt", "messages": {}, "parameters": parameters}


def _message(name: Name) -> dict[str, Any]:
    """Return the message of a topic: the envelope of its direction with the topic's `data`."""
    schema = read_schema(find_schemas()[name])
    envelope = read_schema(find_schemas()[Name(name.direction, ENVELOPE)])
    properties = dict(envelope["properties"])
    topic = {"pattern": r"\.dlt$"} if name.name == DEAD_LETTER else {"const": name.name}
    properties |= {
        "eventType": properties["eventType"] | topic,
        "data": {"$ref": f"#/components/schemas/{_key(name)}"},
        "metadata": {"$ref": f"#/components/schemas/{name.direction}.metadata"},
    }
    payload = {keyword: value for keyword, value in envelope.items() if keyword not in _ALONE}
    return {
        "name": name.name,
        "title": schema["title"],
        "correlationId": {"location": "$message.payload#/metadata/correlationId"},
        "payload": payload | {"title": schema["title"], "properties": properties},
    }


urlpatterns = [path("asyncapi", document, name="asyncapi")]
