"""Replace unusable values of other systems' facts. docs/reference/events.md has the table.

What happened elsewhere is a fact, and one odd value is no reason to refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from rest_framework import serializers

from notifications.content.rendering import nearest_locale
from orders.details import hide_card_number
from runtime.texts import one_line
from web.api.fields import StrictSerializer, camel

Field = serializers.Field[Any, Any, Any, Any]
_LEFT_OUT = "It was left out."


class Unusable(NamedTuple):
    """Takes the place of a value that was refused. `value` is None if there is nothing to use instead."""

    fault: str
    value: Any
    instead: str  # the words for what is used


def replace(name: str, field: Field, value: Any, error: serializers.ValidationError) -> Unusable:
    """Return what is used instead of a value that `field` refuses. `FALLBACKS` must have the name."""
    return Unusable(_first_fault(error.detail), *FALLBACKS[name](field, value))


class FactBody(StrictSerializer):
    """The data of a fact. Only the values of fields without a fallback can be refused, and its `identity`."""

    identity: ClassVar[str] = ""

    def replace(self, name: str, value: Any, error: serializers.ValidationError) -> Any:
        """Return an `Unusable` if the field has a fallback."""
        if name not in FALLBACKS or name == self.identity:
            raise error
        return replace(name, self.fields[name], None if value is serializers.empty else value, error)


def _first_fault(detail: Any) -> str:
    while not isinstance(detail, str):
        detail = next(iter(detail.values() if isinstance(detail, Mapping) else detail), "")
    return str(detail)


def _read(field: Field, value: Any) -> Any:
    """Return the checked value, or None if it is refused."""
    try:
        return field.run_validation(value)
    except serializers.ValidationError:
        return None


def _cut(field: Field, value: Any) -> Any:
    """Return a text that is too long for its field cut to it, and any other value as it is."""
    most = getattr(field, "max_length", None)
    if not isinstance(value, str) or most is None or len(value) <= most:
        return value
    return f"{value[: most - 1].rstrip()}…"


def _cut_text(field: Field, value: Any) -> tuple[str | None, str]:
    cut = _read(field, _cut(field, value))
    return (None, _LEFT_OUT) if cut is None else (cut, "It was cut.")


def _cut_line(field: Field, value: Any) -> tuple[str | None, str]:
    """Return a text with only the last digits of cards and accounts, and cut to its field."""
    hidden = hide_card_number(one_line(value)) if isinstance(value, str) else value
    return _cut_text(field, hidden)


def _cut_address(field: Field, value: Any) -> tuple[list[str] | None, str]:
    """Return the lines that say something, cut to their field, as far as an address may have so many."""
    parts: Any = field
    cut = [_read(parts.child, _cut(parts.child, line)) for line in value] if isinstance(value, list) else []
    lines = list(filter(None, cut))[: parts.max_length]
    return (lines, "It was cut.") if lines else (None, _LEFT_OUT)


def _cut_charges(field: Field, value: Any) -> tuple[list[Any], str]:
    """Return the charges with their labels cut, or none if they are malformed in any other way."""
    return _cut_list(field, value, "The order has no charges.")


def _cut_items(field: Field, value: Any) -> tuple[list[Any], str]:
    """Return the items with their texts cut, or none if they are malformed in any other way."""
    return _cut_list(field, value, "The order has no items.")


def _cut_list(field: Field, value: Any, instead: str) -> tuple[list[Any], str]:
    if isinstance(value, list):
        parts: Mapping[str, Field] = field.child.fields  # type: ignore[attr-defined] # a list's serializer
        cut = [_cut_item(parts, item) for item in value]
        if (usable := _read(field, cut)) is not None:
            return usable, "Its texts were cut."
    return [], instead


def _cut_item(parts: Mapping[str, Field], item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    return {name: _cut(parts[name], value) for name, value in item.items()}


def _near_locale(field: Field, value: Any) -> tuple[str | None, str]:
    near = nearest_locale(value) if isinstance(value, str) else None
    return near, f"It became {near}." if near else "It became the default of the shop's profile."


def _always(value: Any, instead: str) -> Callable[[Field, Any], tuple[Any, str]]:
    return lambda field, refused: (value, instead)


#: The fields of which no value refuses an event. The functions return what is used instead, and say so.
FALLBACKS: Mapping[str, Callable[[Field, Any], tuple[Any, str]]] = {
    "user_id": _always(None, "It was derived from the source and the order."),
    "email": _always("", "The event gives no address."),
    "name": _cut_text,
    "reference": _cut_text,
    "locale": _near_locale,
    "items": _cut_items,
    "charges": _cut_charges,
    "delivery_address": _cut_address,
    "billing_address": _cut_address,
    "delivery_method": _cut_text,
    "payment_method": _cut_line,
    "customer_note": _cut_text,
    "order_url": _always(None, _LEFT_OUT),
    "time_zone": _always(None, "That of the shop's profile is used."),
    "placed_at": _always(None, "The event's time is used."),
    "carrier": _cut_text,
    "tracking_number": _always(None, _LEFT_OUT),
    "tracking_url": _always(None, _LEFT_OUT),
    "lines": _always(None, "The parcel has no lines."),
    "shipped_at": _always(None, "The event's time is used."),
    "delivered_at": _always(None, "The event's time is used."),
    "returned_at": _always(None, "The event's time is used."),
    "reason": _cut_text,
    "was_paid": _always(None, "The order's own payment and refund say it."),
    "notify": _always(False, "No e-mail is sent."),
}


def use_fallbacks(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the usable values, and a warning for each that was not.

    A warning quotes no value but that of a locale.
    """
    usable, warnings = {}, []
    for name, value in values.items():
        if isinstance(value, Unusable):
            warnings.append(f"{camel(name)}: {value.fault} {value.instead}")
            value = value.value
            if value is None:
                continue
        usable[name] = value
    return usable, warnings
