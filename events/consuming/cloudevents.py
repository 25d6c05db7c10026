"""Translate a CloudEvent (version 1.0, JSON) into the envelope of an inbound event.

`type` is the topic, `id` the event's id, `source` the source, `time` the time, and `subject` the order's id.
`correlationid`, `traceparent` and `sequence` are extensions. Other attributes are ignored.
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from events.consuming.envelope import Rejected, read_json

#: Attribute -> member of the envelope's `metadata`.
EXTENSIONS = {"correlationid": "correlationId", "traceparent": "traceparent", "sequence": "sequence"}
#: The attributes that are read.
ATTRIBUTES = ("specversion", "type", "id", "source", "time", "subject", "datacontenttype", *EXTENSIONS)
_VERSION = re.compile(r".*\.v([1-9][0-9]{0,8})", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,10}")
_JSON = re.compile(r"[a-z0-9.+-]+/(?:[a-z0-9.-]+\+)?json", re.IGNORECASE)


def envelope_from(event: object) -> dict[str, Any]:
    """Return the envelope of a parsed CloudEvent. Raise `Rejected` if it is none."""
    if not isinstance(event, dict):
        raise Rejected("it is not a JSON object")
    if event.get("specversion") != "1.0":
        raise Rejected("its specversion is not '1.0'")
    topic = event.get("type")
    match = _VERSION.fullmatch(topic) if isinstance(topic, str) else None
    data = _data(event)
    subject = event.get("subject")
    if isinstance(data, dict) and isinstance(subject, str):
        order_id = data.setdefault("orderId", subject)
        if not isinstance(order_id, str) or order_id.lower() != subject.lower():
            raise Rejected("its subject is not its data.orderId")
    return {
        "eventId": event.get("id"),
        "eventType": topic,
        "version": int(match[1]) if match else 1,
        "source": event.get("source"),
        "timestamp": event.get("time"),
        "data": data,
        "metadata": {
            member: _number(event[name]) if name == "sequence" else event[name]
            for name, member in EXTENSIONS.items()
            if name in event
        },
    }


def _data(event: Mapping[str, Any]) -> Any:
    """Return a copy of the event's data, which may be JSON in `data_base64`."""
    content_type = event.get("datacontenttype") or "application/json"
    if not isinstance(content_type, str) or not _JSON.fullmatch(content_type.partition(";")[0].strip()):
        raise Rejected("its datacontenttype is not application/json")
    if event.get("data_base64") is None:
        data = event.get("data")
        return dict(data or {}) if data is None or isinstance(data, dict) else data
    if event.get("data") is not None:
        raise Rejected("it has both data and data_base64: send one")
    try:
        return read_json(base64.b64decode(event["data_base64"], validate=True))
    except (binascii.Error, ValueError, TypeError) as error:
        raise Rejected("its data_base64 is not base64") from error


def _number(value: object) -> object:
    """Return a sequence as a number. Some senders can write an attribute only as a string."""
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
