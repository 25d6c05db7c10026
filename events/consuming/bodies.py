"""Read the events in the body of a request: envelopes, or CloudEvents 1.0 in all three modes.

A body that cannot be read is refused as a whole, with a problem. A fault of one event stops only that event:
`Rejected` is raised when its envelope is read.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from rest_framework.request import Request

from events.consuming.cloudevents import ATTRIBUTES, envelope_from
from events.consuming.envelope import DEEPEST, Envelope, Rejected, check_storable, envelope_of
from events.schemas.schemas import Name, find_schemas, read_schema
from web.api.bodies import NotStrict, UnfitPart, parse_json
from web.api.headers import single_value
from web.api.problem_types import UNSUPPORTED_MEDIA_TYPE
from web.api.problems import Problem, RequestFault, invalid, malformed

MOST_EVENTS = 100
JSON = "application/json"
CLOUD_EVENT = "application/cloudevents+json"
CLOUD_EVENTS = "application/cloudevents-batch+json"
TYPES = (JSON, CLOUD_EVENT, CLOUD_EVENTS)
_HEADER = "HTTP_CE_"
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')

#: The schemas of the bodies in the OpenAPI document. /api/schemas has the schema of each topic's `data`.
_ENVELOPE = {
    name: value
    for name, value in read_schema(find_schemas()[Name("in", "envelope")]).items()
    if not name.startswith("$")
}
_CLOUD_EVENT = {
    "title": "A CloudEvent",
    "type": "object",
    "properties": {
        "specversion": {"const": "1.0"},
        "type": {"type": "string", "description": "the topic"},
        "id": {"type": "string", "format": "uuid"},
        "source": {"type": "string"},
        "time": {"type": "string", "format": "date-time"},
        "subject": {"type": "string", "description": "the order's id"},
        "sequence": {"type": ["integer", "string"], "description": "`metadata.sequence` of an envelope"},
        "correlationid": {"type": "string"},
        "traceparent": {"type": "string"},
        "datacontenttype": {"const": "application/json"},
        "data": {"type": "object"},
    },
    "required": ["specversion", "type", "id", "source"],
}
#: The document asks nothing of a list's members: one that is refused must not stop the others.
_LIST = {
    "type": "array",
    "items": {},
    "maxItems": MOST_EVENTS,
    "description": "Several events, each like one that is sent alone. The answer says of each whether it was"
    " refused.",
}
BODIES: dict[str, Any] = {
    JSON: {"oneOf": [_ENVELOPE, _LIST]},
    CLOUD_EVENT: _CLOUD_EVENT,
    CLOUD_EVENTS: _LIST,
}
#: The headers of the binary mode. They are no parameters in the document, which cannot say that one header
#: changes what the body is and which others are needed.
BINARY_MODE = """With the header `ce-specversion: 1.0`, the body is the `data` of one CloudEvent, and its
attributes are headers, percent-encoded as UTF-8:

- `ce-type` (needed): the topic
- `ce-id` (needed): the event's id, a UUID
- `ce-source` (needed): the source
- `ce-time`: the time of the event
- `ce-subject`: the order's id
- `ce-sequence`: `metadata.sequence` of an envelope"""


class SentEvent(NamedTuple):
    """One event as it was sent: parsed JSON, or the attributes and the data of a CloudEvent."""

    document: object
    is_cloud_event: bool

    @property
    def event_id(self) -> str | None:
        """The event's id, or None if it cannot be read."""
        if not isinstance(self.document, dict):
            return None
        try:
            return str(uuid.UUID(self.document.get("id" if self.is_cloud_event else "eventId")))
        except (ValueError, TypeError, AttributeError):
            return None

    def envelope(self) -> Envelope:
        """Return the envelope. Raise `Rejected` if the event is not one."""
        check_storable(self.document)
        document = envelope_from(self.document) if self.is_cloud_event else self.document
        topic = document.get("eventType") if isinstance(document, dict) else None
        envelope = envelope_of(document, topic=topic if isinstance(topic, str) else "")
        # Only the event's own time can show that it is too old, so an unreadable time is not a missing time.
        if envelope.timestamp is None and envelope.has_timestamp:
            raise Rejected("its timestamp is not a time in ISO 8601")
        return envelope


class SentEvents(NamedTuple):
    events: list[SentEvent]
    is_list: bool


def read_events(request: Request) -> SentEvents:
    """Return the events of a request. Raise the 400, 413 or 415 problem if its body cannot be read."""
    content_type = (request.content_type or "").partition(";")[0].strip().lower()
    body: bytes = request._request.body
    if f"{_HEADER}SPECVERSION" in request.META and content_type not in (CLOUD_EVENT, CLOUD_EVENTS):
        event: dict[str, Any] = _read_attributes(request.META)
        if body:
            if not content_type.endswith("+json"):
                _check_type(content_type)
            event["data"] = _parsed(body)
        return SentEvents([SentEvent(event, is_cloud_event=True)], is_list=False)
    if body:  # an empty one is malformed, whatever its type
        _check_type(content_type)
    document, is_cloud_event = _parsed(body), content_type != JSON
    is_list = isinstance(document, list)
    if not isinstance(document, dict | list | UnfitPart):
        raise invalid([RequestFault((), "The body must be a JSON object or a list of them.")])
    if content_type == CLOUD_EVENT and is_list:
        raise invalid([RequestFault((), f"A list of CloudEvents has the type {CLOUD_EVENTS}.")])
    if content_type == CLOUD_EVENTS and not is_list:
        raise invalid([RequestFault((), f"One CloudEvent has the type {CLOUD_EVENT}.")])
    documents = document if is_list else [document]
    if len(documents) > MOST_EVENTS:
        raise invalid([RequestFault((), f"A list has at most {MOST_EVENTS} events, not {len(documents)}.")])
    return SentEvents([SentEvent(document, is_cloud_event) for document in documents], is_list)


def _read_attributes(meta: Mapping[str, str]) -> dict[str, Any]:
    """Return a CloudEvent's attributes from its headers. Raise the 400 problem that names unreadable ones.

    The server passes on a value of other bytes than ASCII as an empty one.
    """
    attributes, faults = {}, []
    for name in ATTRIBUTES:
        value = meta.get(_HEADER + name.upper())
        if value is None:
            continue
        text = _unquoted(single_value(value))
        try:
            attributes[name] = unquote_to_bytes(text.encode("ascii")).decode()
        except UnicodeError:
            text = ""
        if not text:
            faults.append(
                RequestFault((f"ce-{name}",), "Percent-encode this as UTF-8: ä is %C3%A4.", "header")
            )
    if faults:
        raise invalid(faults)
    return attributes


def _unquoted(value: str) -> str:
    """Return the text of a header that is a quoted string (RFC 7230), as CloudEvents' binding asks."""
    quoted = _QUOTED.fullmatch(value)
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else value


def _check_type(content_type: str) -> None:
    if content_type not in TYPES:
        raise Problem(
            UNSUPPORTED_MEDIA_TYPE,
            detail=f"Events have one of these types: {', '.join(TYPES)}.",
            headers={"Accept-Post": ", ".join(TYPES)},
        )


def _parsed(body: bytes) -> Any:
    """Parse the body. Raise the 400 problem if it is not JSON. Unfit parts are refused with their event."""
    try:
        return parse_json(body, deepest=DEEPEST)
    except NotStrict as error:
        raise malformed(f"The body {error.reason}.") from None
