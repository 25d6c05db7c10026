"""Mask e-mail addresses and secrets in a text, in nested values, and in a log line as JSON.

A log line is rendered once. Its values are masked one by one only if the line may have something to mask.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from typing import Any

from notifications.providers.registry import declarations
from runtime.personal_data import locals_in
from web.proxies import BEFORE_SECRET, SECRET_IN_PATH

# The characters of a local part in a log line, without those that separate values, such as = and / in a URL.
# A quote may only be inside.
_LOCAL = r"[\w.!#$*+^`{|}~%-]"
_SEPARATOR = re.compile(r"[^\w.!#$*+^`{|}~%'-]")
_AT = re.compile("@|%40")
_DOMAIN = re.compile(r"[\w.-]+|\[")
#: Masked already, or the name of a Celery worker. A worker's host is this one, or one without a domain, so no
#: customer has mail there.
_UNCHANGED = re.compile(
    rf"{_LOCAL}{{1,3}}\*\*\*@|celery@(?:{re.escape(socket.gethostname())}|[\w-]+)(?!\.?[\w-])"
)

#: The start of a JSON string that is a masked address.
_MASKED = re.compile(rf'"{_LOCAL}{{1,3}}\*\*\*@')


def _literals(pattern: str) -> list[str]:
    r"""Return the texts, one of which is in each key of a pattern: `re_`, `whsec_` for `\b(re_|whsec_)…`."""
    group = re.match(r"\\b\(([\w|.\\-]+)\)", pattern)
    return group[1].replace("\\", "").lower().split("|") if group else [""]


# Searching for a text takes a tenth of the time of a pattern. Each pattern therefore has texts in lower case,
# and each match of the pattern has one of them.
_SECRETS: tuple[tuple[Sequence[str], re.Pattern[str], str], ...] = (
    (["@"], re.compile(r"(://)[^\s/@]+@"), r"\1***@"),  # the user and password of a URL
    (["bearer", "basic"], re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE), r"\1 ***"),
    (["op_"], re.compile(r"\bop_[\w-]{16,}"), "op_***"),  # API tokens
    ([BEFORE_SECRET], SECRET_IN_PATH, r"\1***"),
    *(
        (_literals(declared.key_pattern), re.compile(declared.key_pattern), r"\1***")
        for declared in declarations().values()
        if declared.key_pattern
    ),
)
# PostgreSQL repeats the whole row of a broken constraint, with names, and the input of JSON or a COPY.
# No \b in front: in a repr the text before it is a backslash and an n.
_ROW = re.compile(
    r"(DETAIL|CONTEXT):\s.*?(?=\n(?:HINT|CONTEXT|LINE|QUERY):|\n\n(?:The above|During)|\nTraceback |\Z)",
    re.DOTALL,
)
_SECRET_NAMES = frozenset({"authorization", "password", "secret", "api_key", "cookie", "set-cookie"})
# A line of JSON with none of these has nothing to mask.
_ADDRESS_MARKS = ("@", "%40")
_OTHER_MARKS = (
    *("detail:", "context:", "\\u"),
    *(f'"{name}"' for name in _SECRET_NAMES),
    *(text for texts, _, _ in _SECRETS for text in texts if text not in _ADDRESS_MARKS),
)


def _has(text: str, literals: Sequence[str]) -> bool:
    for literal in literals:  # noqa: SIM110 - any() with a generator takes three times as long
        if literal in text:
            return True
    return False


def mask(text: str) -> str:
    """Mask e-mail addresses except for three characters and the domain, and secrets entirely.

    >>> mask("to alice.smith@example.com, Bearer op_abc")
    'to ali***@example.com, Bearer ***'
    """
    lowered = text.casefold()
    for literals, pattern, replacement in _SECRETS:
        if _has(lowered, literals) and pattern.search(text):
            text = pattern.sub(replacement, text)
    if "DETAIL:" in text or "CONTEXT:" in text:
        text = _ROW.sub(r"\1: ***", text)
    return _mask_addresses(text) if "@" in text or "%40" in text else text


def _mask_addresses(text: str) -> str:
    parts, copied, domain_end = [], 0, 0
    for before, at in locals_in(text, _AT):
        before = before[max(0, domain_end - at.start() + len(before)) :]
        local = _SEPARATOR.split(before)[-1].lstrip("'")
        start = at.start() - len(local)
        domain = _DOMAIN.match(text, at.end())
        if local and domain and not _UNCHANGED.match(text, start):
            parts += [text[copied:start], local.partition("'")[0][:3], "***@"]
            copied, domain_end = at.end(), domain.end()
    return "".join([*parts, text[copied:]])


def mask_values(value: Any) -> Any:
    """Mask every string in nested dicts, lists and tuples, including keys."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {
            mask_values(key): (
                "***" if isinstance(key, str) and key.lower() in _SECRET_NAMES else mask_values(member)
            )
            for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask_values(member) for member in value]
    return value


# ASCII: every terminal's encoding can write a line, even with half a surrogate pair in it.
_to_json = json.JSONEncoder(default=lambda value: mask(str(value))).encode


def masked_json_line(event: dict[str, Any]) -> str:
    """Render an event as JSON, masked."""
    line = _to_json(event)
    lowered = line.casefold()
    if _has(lowered, _OTHER_MARKS):
        return _to_json(mask_values(event))
    if not _has(lowered, _ADDRESS_MARKS):
        return line
    if "%40" not in line and len(_MASKED.findall(line)) == line.count("@"):
        return line  # the search for masked addresses is faster than the search for addresses
    # No pattern for addresses matches past a quote. The line has the same matches as its values.
    return mask(line) if "\\" not in line else _to_json(mask_values(event))
