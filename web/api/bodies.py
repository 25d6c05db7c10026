"""Parse JSON strictly: the bodies of requests, and the events of other services over HTTP and brokers.

JSON is UTF-8 without a byte order mark. Refuse repeated members, NaN, numbers beyond every float or of
thousands of digits, and deep nesting. A request's body must also be an object without control characters and
lone surrogates in any string.
"""

from __future__ import annotations

import codecs
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

from django.conf import settings
from rest_framework.parsers import BaseParser

from runtime.texts import CONTROL_CHARACTERS
from web.api.problems import RequestFault, invalid, malformed, too_large

MAX_DEPTH = 8  # the API's deepest body has three levels
_MOST_DIGITS = 1000


class NotStrict(Exception):
    """A text is not strict JSON. `reason` completes "The body …" without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnfitPart(NamedTuple):
    """Stands for a part of parsed JSON that must not be used. `check_parts` raises its reason."""

    reason: str


def parse_json(raw: bytes, *, deepest: int) -> Any:
    """Parse JSON. Raise `NotStrict` if it cannot be parsed.

    An object that names a member twice, NaN and a number that is too large become `UnfitPart`. In a list of
    events, an unfit one must not stop the others. Call `check_parts` for the parts that you use.
    """
    if raw.startswith(codecs.BOM_UTF8):
        raise NotStrict("begins with a byte order mark (BOM). Leave it out")
    try:
        text = raw.decode("utf-8")
        return json.loads(
            text,
            object_pairs_hook=_read_object,
            parse_constant=lambda name: UnfitPart(f"has {name} in it, which is not JSON. Use a number"),
            parse_float=_read_float,
            parse_int=_read_integer,
        )
    except UnicodeDecodeError as error:
        raise NotStrict(f"must be UTF-8, and byte {error.start} is not") from None
    except json.JSONDecodeError as error:
        raise NotStrict(f"must be JSON, and line {error.lineno}, column {error.colno} is not") from None
    except RecursionError:
        raise _too_deep(deepest) from None


def check_parts(document: object, *, deepest: int) -> Iterator[str]:
    """Yield the strings of parsed JSON. Raise `NotStrict` for an unfit part, or for too many levels."""
    values: list[tuple[object, int]] = [(document, 1)]
    while values:
        value, level = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, UnfitPart):
            raise NotStrict(value.reason)
        elif isinstance(value, dict | list):
            if level > deepest:
                raise _too_deep(deepest)
            if isinstance(value, dict):
                yield from value
            values += [(part, level + 1) for part in (value.values() if isinstance(value, dict) else value)]


class StrictJSONParser(BaseParser):
    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the body as a dict. Raise `Problem` if it is not a valid JSON object."""
        # ApiView has refused a body without a Content-Length, so the header is right.
        if int(getattr(stream, "META", {}).get("CONTENT_LENGTH") or 0) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise too_large()
        return read_object(stream.read())


def read_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raise `Problem` with the place and the reason."""
    try:
        value = parse_json(raw, deepest=MAX_DEPTH)
        unfit = [text for text in check_parts(value, deepest=MAX_DEPTH) if CONTROL_CHARACTERS.search(text)]
    except NotStrict as error:
        raise malformed(f"The body {error.reason}.") from None
    if not isinstance(value, dict):
        raise invalid([RequestFault((), "The body must be a JSON object.")])
    if unfit:
        raise invalid(_unfit_strings(value, ()))
    return value


def _unfit_strings(value: object, path: tuple[str | int, ...]) -> Iterator[RequestFault]:
    if isinstance(value, str):
        if CONTROL_CHARACTERS.search(value):
            yield RequestFault(path, "Control characters and line breaks are not allowed.")
    elif isinstance(value, dict):
        for key, member in value.items():
            if CONTROL_CHARACTERS.search(key):
                yield RequestFault(
                    (*path, key), "Control characters and line breaks are not allowed in a name."
                )
            yield from _unfit_strings(member, (*path, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _unfit_strings(member, (*path, index))


def _too_deep(deepest: int) -> NotStrict:
    return NotStrict(f"is nested too deeply. Use at most {deepest} levels")


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | UnfitPart:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
    return UnfitPart(f"names {json.dumps(repeated[:100])} twice in one object. Name it once")


def _read_float(text: str) -> float | UnfitPart:
    value = float(text)
    return value if math.isfinite(value) else UnfitPart("has a number in it that is too large")


def _read_integer(digits: str) -> int | UnfitPart:
    """Return a number. Python would refuse more than 4,300 digits, which take long to parse."""
    return (
        int(digits) if len(digits) <= _MOST_DIGITS else UnfitPart("has a number with too many digits in it")
    )
