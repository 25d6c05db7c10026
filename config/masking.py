"""Mask e-mail addresses and secrets: in a text, in nested values, and in a log line as JSON.

A line is rendered once. Only a line that may hold something to mask is taken apart for it.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from notifications.providers.registry import declarations

# The characters of an address's local part, without those that separate it from the text around it. A quote
# may be inside only. The possessive *+ keeps the time linear in the length of the text.
_LOCAL = r"(?:[\w.!#$*+^`{|}~-]|%(?!40))"
# The name of a Celery worker: its host is this one, or one without a domain, where no customer has mail.
_NODE = rf"celery@(?:{re.escape(socket.gethostname())}|[\w-]+)(?!\.?[\w-])"
_ADDRESS = re.compile(
    rf"""
    (?<![\w.!#$*+^`{{|}}~%-])             # a local part begins here
    (?!{_NODE})
    (?!{_LOCAL}{{1,3}}\*\*\*@)            # and is not masked already
    ({_LOCAL}{{1,3}})(?:{_LOCAL}|')*+
    (?:@|%40)([\w.-]+|\[)
    """,
    re.VERBOSE,
)

#: A value that is an address, masked already.
_MASKED = re.compile(rf'"{_LOCAL}{{1,3}}\*\*\*@')


def _literals(pattern: str) -> list[str]:
    r"""Return the texts of which a provider's key has one: `re_` and `whsec_` for `\b(re_|whsec_)…`."""
    group = re.match(r"\\b\(([\w|.\\-]+)\)", pattern)
    return group[1].replace("\\", "").lower().split("|") if group else [""]


# To look for a text costs a tenth of the search for a pattern. So each pattern comes with texts, in lower
# case, of which whatever it matches has one.
_SECRETS: tuple[tuple[Sequence[str], re.Pattern[str], str], ...] = (
    (["@"], re.compile(r"(://)[^\s/@]+@"), r"\1***@"),  # the user and password of a URL
    (["bearer", "basic"], re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE), r"\1 ***"),
    (["op_"], re.compile(r"\bop_[\w-]{16,}"), "op_***"),  # API tokens
    *(
        (_literals(declared.key_pattern), re.compile(declared.key_pattern), r"\1***")
        for declared in declarations().values()
        if declared.key_pattern
    ),
)
# PostgreSQL repeats the whole row of a broken constraint, names among it, and the input of JSON or a COPY.
# No \b in front: in a repr a backslash and an n stand there.
_ROW = re.compile(
    r"(DETAIL|CONTEXT):\s.*?(?=\n(?:HINT|CONTEXT|LINE|QUERY):|\n\n(?:The above|During)|\nTraceback |\Z)",
    re.DOTALL,
)
_SECRET_NAMES = frozenset({"authorization", "password", "secret", "api_key", "cookie", "set-cookie"})
#: A correlation id that is no secret: one of ours, or a UUID.
_PLAIN_ID = re.compile(r"[0-9A-Za-z]*|[0-9A-Fa-f-]{36}")
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
    """Mask e-mail addresses but for three characters and the domain, and secrets entirely.

    >>> mask("to alice.smith@example.com, Bearer op_abc")
    'to ali***@example.com, Bearer ***'
    """
    lowered = text.casefold()
    for literals, pattern, replacement in _SECRETS:
        if _has(lowered, literals) and pattern.search(text):
            text = pattern.sub(replacement, text)
    if "DETAIL:" in text or "CONTEXT:" in text:
        text = _ROW.sub(r"\1: ***", text)
    return _ADDRESS.sub(r"\1***@\2", text) if "@" in text or "%40" in text else text


def scrub(value: Any) -> Any:
    """Mask every string in nested dicts, lists and tuples, keys too."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {
            scrub(key): "***" if isinstance(key, str) and key.lower() in _SECRET_NAMES else scrub(member)
            for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [scrub(member) for member in value]
    return value


# ASCII: a line must come out whatever the terminal's encoding is, halves of surrogate pairs too.
_to_json = json.JSONEncoder(default=lambda value: mask(str(value))).encode


def json_line(event: dict[str, Any]) -> str:
    """Render an event as JSON, masked."""
    line = _to_json(event)
    lowered = line.casefold()
    if _has(lowered, _OTHER_MARKS):
        return _to_json(scrub(event))
    if not _has(lowered, _ADDRESS_MARKS):
        return line
    if "%40" not in line and len(_MASKED.findall(line)) == line.count("@"):
        return line  # a search for the masked is short; one for addresses reads every character
    # No pattern for addresses goes past a quote, so the line has the same matches as its values have.
    return mask(line) if "\\" not in line else _to_json(scrub(event))


def json_lines(event: dict[str, Any], each: Sequence[dict[str, str]]) -> str:
    """Render a line of JSON for each of `each`, which says what the lines do not have in common.

    The ids in `each` are ours; only a correlation id may come from outside, and have something to mask.
    """
    head = _to_json(event)[:-1] + ", "
    lines = []
    for one in each:
        if _PLAIN_ID.fullmatch(one.get("correlation_id", "")):
            lines.append(
                head + ", ".join([f'"{name}": {_quoted(value)}' for name, value in one.items()]) + "}"
            )
        else:
            lines.append(json_line(event | one))
    return "\n".join(lines)
