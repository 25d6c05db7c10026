"""What is answered or written otherwise than by release 0.1.0 on purpose. Nothing else may differ."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from typing import Any


@dataclasses.dataclass(slots=True)
class Difference:
    """A pattern of recorded text (an entry as JSON) and what stands there now."""

    reason: str
    was: str
    now: str
    sections: tuple[str, ...] = ()  # empty: all
    found: int = 0  # how often the pattern was there

    def apply(self, entry: Any) -> Any:
        text, found = re.subn(self.was, self.now, json.dumps(entry, ensure_ascii=False))
        self.found += found
        return json.loads(text)


# A key of the caller. Without one, the event has `<order>:<topic>:<version>`.
_KEY = r'(?!<uuid)(?:[^"\\]|\\\\*")*?'

DIFFERENCES = [
    Difference(
        reason="A caller's Idempotency-Key may be any text and leaves in no event: its hash does.",
        was=rf'"idempotencyKey": "{_KEY}"',
        now=f'"idempotencyKey": "sha256:{"0" * 64}"',
    ),
    Difference(
        reason="The same, in the answer of GET /orders/{id}/events.",
        was=rf'\\"idempotencyKey\\":\\"{_KEY}\\"',
        now=rf'\\"idempotencyKey\\":\\"sha256:{"0" * 64}\\"',
    ),
    Difference(
        reason="An event keeps the caller's whole traceparent: its span has the request's for a parent.",
        was=r'"traceId": "([0-9a-f]{32})"',
        now=r'"traceId": "\1", "traceparent": "00-\1-b7ad6b7169203331-01"',
    ),
    Difference(
        reason="The same, in the answer of GET /orders/{id}/events.",
        was=r'\\"traceId\\":\\"([0-9a-f]{32})\\"',
        now=r'\\"traceId\\":\\"\1\\",\\"traceparent\\":\\"00-\1-b7ad6b7169203331-01\\"',
    ),
    Difference(
        reason="Jinja2 writes an escaped apostrophe as a decimal number.",
        was="&#x27;",
        now="&#39;",
    ),
    Difference(
        reason="An e-mail names the one that it is a copy of.",
        was=r'(\\"bounced_at\\":(?:null|\\"<time>\\"))}',
        now=r'\1,\\"resend_of\\":null}',
    ),
]


def as_of_now(section: str, entries: Any) -> Any:
    """Return a section's records with each difference applied; Content-Length follows."""
    changed = copy.deepcopy(entries)
    for name, entry in entries.items():
        for difference in DIFFERENCES:
            if not difference.sections or section in difference.sections:
                changed[name] = difference.apply(changed[name])
        grown = len(changed[name].get("body", "")) - len(entry.get("body", ""))
        changed[name]["headers"] = [
            f"Content-Length: {int(line.split()[1]) + grown}" if line.startswith("Content-Length") else line
            for line in changed[name].get("headers", [])
        ]
    return changed
