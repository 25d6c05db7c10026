"""Strict serializers and fields for bodies and query strings: no trimming, no "5" for 5, no unknown field.

The parser and the view have already refused control characters.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.validators import URLValidator
from django.utils.text import get_text_list
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from runtime.addresses import LONGEST, NotAnAddress, read_address
from runtime.database.ids import parse_uuid
from runtime.texts import has_visible, name_invisible

_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"[0-9]{1,9}")
_is_web_address = URLValidator(schemes=["http", "https"])


Schema = dict[str, Any]


def camel(name: str) -> str:
    """Return the name of an API field in events.

    >>> camel("total_amount")
    'totalAmount'
    """
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def schema_of(field: Any, *, is_open: bool) -> Schema:
    """Return the JSON Schema of a field in an event. If it `is_open`, its objects may have other fields."""
    if isinstance(field, serializers.ListField | serializers.ListSerializer):
        listed: Any = field  # the stubs do not know the sizes
        made: Schema = {"type": "array", "items": schema_of(listed.child, is_open=is_open)}
        made |= _bounds(minItems=listed.min_length, maxItems=listed.max_length)
    else:
        made = field.schema(is_open)
    return made | {"description": str(field.help_text)} if field.help_text else made


def _bounds(**bounds: int | None) -> Schema:
    return {key: value for key, value in bounds.items() if value is not None}


def unknown_field(*, allowed: Iterable[str]) -> str:
    """Return the error of a field that is not one of the `allowed` ones."""
    names = get_text_list([*allowed], "or")
    return (
        f"Unknown field. Use {names}."
        if names
        else "Unknown field. Remove it, because no field is read here."
    )


SerializerT = TypeVar("SerializerT", bound=serializers.Serializer[Any])


@functools.cache
def cached_serializer(serializer: type[SerializerT]) -> SerializerT:
    """Return the single instance of a serializer's class, which all threads share.

    Call only `run_validation` and `to_representation`. `is_valid` would change the instance.
    """
    made = serializer()
    _complete(made)
    return made


def _complete(field: serializers.Field[Any, Any, Any, Any]) -> None:
    """Create a field's lazy children, and the lazy texts that two threads must not format at once."""
    for validator in field.validators:
        if hasattr(validator, "message"):
            str(validator.message)
    for child in getattr(field, "fields", {}).values():
        _complete(child)
    if child := getattr(field, "child", None):
        _complete(child)


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses unknown fields."""

    def schema(self, is_open: bool) -> Schema:
        fields = self.fields.items()
        return {
            "type": "object",
            "properties": {camel(name): schema_of(field, is_open=is_open) for name, field in fields},
            "required": [camel(name) for name, field in fields if field.required],
            "additionalProperties": is_open,
        }

    def to_internal_value(self, data: Any) -> Any:
        """Check names and values, and report all faults together."""
        if not isinstance(data, Mapping):
            raise serializers.ValidationError("This must be an object.")
        errors: dict[str, Any] = {
            key: [unknown_field(allowed=self.fields)] for key in data.keys() - self.fields.keys()
        }
        values: dict[str, Any] = {}
        for name, field in self.fields.items():
            # DRF's own loop raises and catches an exception for each field that is absent.
            if name not in data and not field.required and field.default is serializers.empty:
                continue
            value = data.get(name, serializers.empty)
            try:
                values[name] = field.run_validation(value)
            except serializers.ValidationError as error:
                try:
                    values[name] = self.replace(name, value, error)
                except serializers.ValidationError as refused:
                    errors[name] = refused.detail
        if errors:
            raise serializers.ValidationError(errors)
        return values

    def replace(self, name: str, value: Any, error: serializers.ValidationError) -> Any:
        """Return what is used instead of a value that its field refuses, or raise the error."""
        raise error


class Nothing(StrictSerializer):
    """No fields, for an empty body or {}, or an empty query string."""

    def run_validation(self, data: Any = serializers.empty) -> Any:
        return {} if data == {} else super().run_validation(data)


class Text(serializers.CharField):
    """A string, not trimmed. Only blanks are refused, since a reader must see something.

    If `allow_blank`, it may be empty.
    """

    default_error_messages = {
        "invalid": "This must be a string.",
        "only_blanks": "This is only blanks.",
        "invisible": "{invisible}",
    }

    def __init__(self, **options: Any) -> None:
        if not options.get("allow_blank"):
            options.setdefault("min_length", 1)  # for the API's document; DRF refuses "" before
        super().__init__(trim_whitespace=False, **options)

    def schema(self, is_open: bool) -> Schema:
        least = None if self.allow_blank else 1
        return {"type": "string"} | _bounds(minLength=least, maxLength=self.max_length)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if data and not data.strip():
            self.fail("only_blanks")
        if data and not self.allow_blank and not has_visible(data):
            self.fail("invisible", invisible=name_invisible(data))
        return data


class Code(Text):
    """A text of one form. `wanted` describes the form to people."""

    default_error_messages = {"form": "This must be {wanted}."}

    def __init__(self, *, pattern: re.Pattern[str], wanted: str = "a code", **options: Any) -> None:
        super().__init__(**options)
        self.pattern, self.wanted = pattern, wanted

    def schema(self, is_open: bool) -> Schema:
        return {"type": "string", "pattern": f"^{self.pattern.pattern}$"}

    def to_internal_value(self, data: Any) -> str:
        value = super().to_internal_value(data)
        if not self.pattern.fullmatch(value):
            self.fail("form", wanted=self.wanted)
        return value


class Integer(serializers.IntegerField):
    """A whole number. A boolean, 1.0 or a string is refused."""

    default_error_messages = {"invalid": "This must be a whole number."}

    def schema(self, is_open: bool) -> Schema:
        return {"type": "integer"} | _bounds(minimum=self.min_value, maximum=self.max_value)

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int:
            self.fail("invalid")
        return data


class Amount(Integer):
    """An amount of money in the currency's minor units."""

    default_error_messages = {
        "invalid": "This must be a whole number of minor units, such as cents: 4990 for 49.90."
    }


class Identifier(serializers.UUIDField):
    """A UUID of any version in its 8-4-4-4-12 form, but not the nil one."""

    default_error_messages = {"invalid": "This must be a UUID like 01234567-89ab-cdef-0123-456789abcdef."}

    def schema(self, is_open: bool) -> Schema:
        return {"type": "string", "format": "uuid"}

    def to_internal_value(self, data: Any) -> uuid.UUID:
        value = parse_uuid(data)
        if value is None or not value.int:
            self.fail("invalid")
        return value


class Flag(serializers.BooleanField):
    """A JSON boolean. Values that could be converted to one are refused."""

    default_error_messages = {"invalid": "This must be true or false."}

    def schema(self, is_open: bool) -> Schema:
        return {"type": "boolean"}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return data


@extend_schema_field({"type": "string", "format": "email", "maxLength": LONGEST})
class EmailAddress(Text):
    """An address that every provider accepts. Its value is the address as it is stored."""

    default_error_messages = {"blank": "This is empty. Use an e-mail address like alice@example.com."}

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=LONGEST, **options)

    def schema(self, is_open: bool) -> Schema:
        return {"type": "string", "format": "email", "maxLength": self.max_length}

    def to_internal_value(self, data: Any) -> str:
        try:
            return read_address(super().to_internal_value(data))
        except NotAnAddress as error:
            raise serializers.ValidationError(str(error), code="email") from None


#: A name or address of a host and a port, without a user before them.
_PLACE = r"([^/?#@:\[\]]{1,253}|\[[^/?#@\[\]]+\])(:[0-9]{1,5})?"


@extend_schema_field(
    {"type": "string", "format": "uri", "pattern": rf"^[hH][tT][tT][pP][sS]?://{_PLACE}([/?#]|$)"}
)
class WebAddress(Text):
    """An http or https address that an e-mail may link."""

    default_error_messages = {
        "url": "This must be an http:// or https:// address.",
        "user": "Leave out what is before the @: the address would look like one of another host.",
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=2000, **options)

    def schema(self, is_open: bool) -> Schema:
        return {"type": "string", "format": "uri", "pattern": "^https?://", "maxLength": self.max_length}

    def to_internal_value(self, data: Any) -> str:
        """Accept what Django's validator accepts if every character is printable."""
        value = super().to_internal_value(data)
        if invisible := name_invisible(value):
            self.fail("invisible", invisible=invisible)
        try:
            _is_web_address(value)
        except DjangoValidationError:
            self.fail("url")
        if not value.isprintable() or " " in value:
            self.fail("url")
        if "@" in urlsplit(value).netloc:
            self.fail("user")
        return value


class Digits(serializers.IntegerField):
    """A whole number in a query string. Only digits are accepted."""

    default_error_messages = {"invalid": "This must be a whole number."}

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, str) or not _DIGITS.fullmatch(data):
            self.fail("invalid")
        return int(data)


class Instant(serializers.DateTimeField):
    """An ISO 8601 time in a query string, in UTC if it has no offset. A date alone is refused."""

    default_error_messages = {"invalid": "This must be a time like 2026-11-20T10:00:00Z. Write + as %2B."}

    def to_internal_value(self, data: Any) -> dt.datetime:
        if not isinstance(data, str) or not _INSTANT.fullmatch(data):
            self.fail("invalid")
        try:
            value = dt.datetime.fromisoformat(data.upper())
            return value.replace(tzinfo=value.tzinfo or dt.UTC).astimezone(dt.UTC)
        except (ValueError, OverflowError):
            self.fail("invalid")


class Moment(serializers.DateTimeField):
    """A time in a body, as DRF reads it."""

    def schema(self, is_open: bool) -> Schema:
        return {"type": "string", "format": "date-time", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T"}


class Choice(serializers.ChoiceField):
    """One of some words. The error names the field and the words."""

    def schema(self, is_open: bool) -> Schema:
        return {"enum": [str(choice) for choice in self.choices]}

    def bind(self, field_name: str, parent: Any) -> None:
        super().bind(field_name, parent)
        words = get_text_list([*map(str, self.choices)], "or")
        self.error_messages["invalid_choice"] = f"Unknown {field_name.replace('_', ' ')}. Use {words}."
