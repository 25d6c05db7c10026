"""Groups errors by cause: errors that differ in numbers, ids, addresses or times have one fingerprint. Pure.

A fingerprint depends on two stored columns, `provider` and `last_error`, so it can be computed again for rows
that were written without one.
"""

from __future__ import annotations

import functools
import hashlib
import re

#: What differs from one error to the next, and what stands for it. The order matters: an address may contain
#: a number, a time is made of numbers. Quantifiers have bounds, for the text is a stranger's.
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
#: Numbers; but 5.1.1 and 5.7.1 are different causes (RFC 3463), so these stay.
_NUMBER = re.compile(r"(\b[245]\.\d{1,3}\.\d{1,3}\b)|\d{1,200}(?:\.\d{1,200})?")
#: A status code at the beginning is the cause itself.
_CODE = re.compile(r"^(\d{3})\b")


def normalise(error: str) -> str:
    """Return an error without what differs from one message to the next, in lower case."""
    code = found[1] if (found := _CODE.match(error)) else ""
    text = error[len(code) :]
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    text = _NUMBER.sub(lambda match: match[1] or "<n>", text)
    return " ".join(f"{code} {text}".lower().split())


@functools.lru_cache(maxsize=1024)  # in an outage thousands of errors are the same
def fingerprint_of(*, provider: str, error: str) -> str:
    """Return 16 hex digits for the cause of an error: the provider and the normalised text."""
    return hashlib.blake2b(f"{provider}\n{normalise(error)}".encode(), digest_size=8).hexdigest()
