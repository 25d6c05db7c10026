"""Parse JSON bodies strictly.

Refuse malformed JSON, bytes that are not UTF-8, repeated keys, NaN, numbers of thousands of digits, a body
that is not an object, deep nesting, and control characters or lone surrogates in any string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any, NoReturn

from django.conf import settings
from rest_framework.parsers import BaseParser

from web.api.problems import Fault, Problem, invalid, malformed, too_large

MAX_DEPTH = 8  # the API's deepest body has three levels
#: C0 (with NUL, CR and LF), DEL, C1, Unicode's two line separators, and surrogates.
FORBIDDEN_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


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
        value = parse_json(
            raw,
            deepest=MAX_DEPTH,
            object_pairs_hook=_object_without_repeats,
            parse_constant=_refuse_constant,
        )
    except ValueError:  # raised by int() for thousands of digits
        raise malformed("The body has a number with too many digits.") from None
    if not isinstance(value, dict):
        raise invalid([Fault((), "The body must be a JSON object.")])
    if faults := list(_unfit_strings(value, ())):
        raise invalid(faults)
    return value


def parse_json(raw: bytes, *, deepest: int, **options: Any) -> Any:
    """Parse JSON with the options of `json.loads`. Raise `Problem` with the place and the reason.

    A body that is nested too deeply for Python may have at most `deepest` levels.
    """
    try:
        return json.loads(raw.decode("utf-8"), **options)
    except UnicodeDecodeError as error:
        raise malformed(f"The body must be UTF-8, and byte {error.start} is not.") from None
    except json.JSONDecodeError as error:
        raise malformed(
            f"The body must be JSON, and line {error.lineno}, column {error.colno} is not."
        ) from None
    except RecursionError:
        raise _too_deep(deepest) from None


def _unfit_strings(value: object, path: tuple[str | int, ...]) -> Iterator[Fault]:
    if len(path) > MAX_DEPTH:
        raise _too_deep(MAX_DEPTH)
    if isinstance(value, str):
        if FORBIDDEN_CHARACTERS.search(value):
            yield Fault(path, "Control characters and line breaks are not allowed.")
    elif isinstance(value, dict):
        for key, member in value.items():
            if FORBIDDEN_CHARACTERS.search(key):
                yield Fault((*path, key), "Control characters and line breaks are not allowed in a name.")
            yield from _unfit_strings(member, (*path, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _unfit_strings(member, (*path, index))


def _too_deep(deepest: int) -> Problem:
    return malformed(f"The body is nested too deeply. Use at most {deepest} levels.")


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise malformed(f"The body names {json.dumps(key[:100])} twice in one object. Name it once.")
            seen.add(key)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise malformed(f"{name} is not JSON. Use a number.")
