"""Group errors by cause: errors that differ only in numbers, ids, addresses or times are one group. Pure.

A fingerprint depends on two stored columns, `provider` and `last_error`, so it can be computed later for rows
that were written without one.
"""

from __future__ import annotations

import functools
import hashlib
import re

#: Parts that differ from one error to the next, and their replacements. The order matters, because an address
#: or a time may contain numbers. Quantifiers have bounds, because a stranger writes the text.
_VARIABLE = [
    (re.compile(r"https?://[^\s\"'<>]{1,500}"), "<url>"),
    (re.compile(r"[^\s<>\"'(),;:=]{1,64}@[^\s<>\"'(),;]{1,255}"), "<address>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)?(?:Z|[+-]\d\d:?\d\d)?"),
        "<time>",
    ),
    (re.compile(r"\b\d{1,2}:\d\d(?::\d\d)?\b"), "<time>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "<ip>"),
    (re.compile(r"\[?\b[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{0,4}){3,7}\b\]?"), "<ip>"),
    (re.compile(r"\b(?:[a-zA-Z0-9-]{1,63}\.){1,8}[a-z]{2,24}\b(?!\.?\w)"), "<host>"),
    (re.compile(r"\b(?=[\w-]{0,64}\d)(?=[\w-]{0,64}[A-Za-z])[\w-]{8,200}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-fA-F]{1,16}\b"), "<id>"),
]
#: Numbers except status codes such as 5.1.1 and 5.7.1 (RFC 3463), which are different causes.
_NUMBER = re.compile(r"(\b[245]\.\d{1,3}\.\d{1,3}\b)|\d{1,200}(?:\.\d{1,200})?")
#: A status code at the beginning, which is the cause itself.
_CODE = re.compile(r"^(\d{3})\b")


def normalise(error: str) -> str:
    """Return an error in lower case, with placeholders for the parts that differ between messages."""
    code = found[1] if (found := _CODE.match(error)) else ""
    text = error[len(code) :]
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    text = _NUMBER.sub(lambda match: match[1] or "<n>", text)
    return " ".join(f"{code} {text}".lower().split())


@functools.lru_cache(maxsize=1024)  # in an outage thousands of errors are equal
def fingerprint_of(*, provider: str, error: str) -> str:
    """Return 16 hex digits for the cause of an error: the provider and the normalised text."""
    return hashlib.blake2b(f"{provider}\n{normalise(error)}".encode(), digest_size=8).hexdigest()
