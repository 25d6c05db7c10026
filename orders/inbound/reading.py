"""Read an inbound event by the API's fields, in camelCase, and the API's checks, and change its order."""

from __future__ import annotations

import contextlib
import difflib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rest_framework.exceptions import ValidationError
from rest_framework.fields import Field

from events.consuming.envelope import Envelope, Rejected
from events.consuming.handlers import Handler
from orders.services import OrderChange, OrderNotFound
from orders.transitions import ChangeRefused
from runtime.texts import CONTROL_CHARACTERS
from web.api.fields import StrictSerializer, cached_serializer, camel, unknown_field
from web.api.problems import faults_of

#: Currencies come and go, so an event's currency is checked by its form alone.
CURRENCY_FORM = re.compile(r"[A-Z]{3}")
_MOST_FAULTS = 5
#: A body may have thousands of members that nobody reads.
_MOST_UNKNOWN = 20


class InboundTopic(NamedTuple):
    """The handler of a topic. orders.topic_schemas makes the topic's JSON Schema of the rest."""

    handler: Handler
    body: type[StrictSerializer]
    title: str
    statuses: Sequence[str] = ()  # that `data.status` may have, if fewer than the body allows


def read_data(body: type[StrictSerializer], data: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the checked values of `data`. Raise `Rejected` with the faults, without quoting values.

    If `strict`, refuse unknown fields and nulls, as the API does. Otherwise ignore them, except those of
    money: an absent amount means the whole balance.
    """
    serializer = cached_serializer(body)
    try:
        values: dict[str, Any] = serializer.run_validation(_renamed(data, serializer, "data", strict))
    except ValidationError as error:
        faults = [
            f"{'.'.join(['data', *(camel(str(step)) for step in fault.path)])}: {fault.detail}"
            for fault in faults_of(error.detail)
        ]
        raise Rejected(" ".join(faults[:_MOST_FAULTS])) from error
    return values


def order_handler(change: Callable[[Envelope, uuid.UUID], OrderChange]) -> Handler:
    """Return a handler that changes the order in `data.orderId`, and saves what `change` returns."""

    def handle(event: Envelope) -> None:
        order_id = order_id_of(event)
        if order_id is None:
            raise Rejected("its data.orderId is not a UUID")
        with refusals_as_rejections():
            changed = change(event, order_id)
        changed.save()
        event.effects.warnings += changed.warnings

    return handle


@contextlib.contextmanager
def refusals_as_rejections() -> Iterator[None]:
    """Raise `Rejected` if the order does not exist or does not allow the change."""
    try:
        yield
    except (ChangeRefused, OrderNotFound) as error:
        raise Rejected(str(error)) from error


def order_id_of(event: Envelope) -> uuid.UUID | None:
    """Return `data.orderId`, or None if it is not a UUID."""
    value: Any = event.data.get("orderId")
    try:
        return uuid.UUID(value)
    except (ValueError, TypeError, AttributeError):
        return None


def name_unknown(body: type[StrictSerializer], data: Mapping[str, Any]) -> list[str]:
    """Return a warning for each member of an event's data that is not read, with what may be meant."""
    unknown = list(dict.fromkeys(_unknown(data, cached_serializer(body), "")))
    more = len(unknown) - _MOST_UNKNOWN
    return unknown[:_MOST_UNKNOWN] + ([f"{more} more members are unknown"] if more > 0 else [])


def _unknown(value: Any, field: Field[Any, Any, Any, Any], place: str) -> Iterator[str]:
    child = getattr(field, "child", None)
    if isinstance(value, list) and child is not None:
        for member in value:
            yield from _unknown(member, child, place)
    fields = getattr(field, "fields", None)
    if not isinstance(value, Mapping) or fields is None:
        return
    names = {camel(name): name for name in fields}
    for key, member in value.items():
        if key in names:
            yield from _unknown(member, fields[names[key]], f"{place}{key}.")
        elif place or key != "orderId":
            meant = _meant(key, names)
            yield f"{place}{key[:100]}: unknown" + (f"; did you mean {meant}?" if meant else "")


def _meant(key: str, names: Iterable[str]) -> str:
    """Return the name that is most like a key, in any case and however its words are joined, or ""."""
    plain = {name.lower(): name for name in names}
    near = difflib.get_close_matches(re.sub(r"[\W_]", "", key[:100]).lower(), plain, n=1, cutoff=0.85)
    return plain[near[0]] if near else ""


def _renamed(value: Any, field: Field[Any, Any, Any, Any], place: str, strict: bool) -> Any:
    """Rename the keys of a value to the names of the serializer's fields, at every level."""
    if isinstance(value, str) and CONTROL_CHARACTERS.search(value):
        raise Rejected(f"{place}: Control characters and line breaks are not allowed.")
    child = getattr(field, "child", None)
    if isinstance(value, list) and child is not None:
        return [_renamed(member, child, f"{place}.{index}", strict) for index, member in enumerate(value)]
    fields = getattr(field, "fields", None)
    if not isinstance(value, Mapping) or fields is None:
        return value
    names = {camel(name): name for name in fields}
    if strict and (unknown := value.keys() - names.keys()):
        raise Rejected(f"{place}.{min(unknown)[:100]}: {unknown_field(allowed=names)}")
    # Only the money of the order decides what is paid or refunded. That of its items is shown.
    is_order = field.parent is None
    money = {key.lower(): key for key, name in names.items() if is_order and _is_money(name)}
    for key in value.keys() - names.keys():
        if right := money.get(key.lower()):
            raise Rejected(f"{place}.{key}: Unknown field. Use {right}.")
    return {
        names[key]: _renamed(member, fields[names[key]], f"{place}.{key}", strict)
        for key, member in value.items()
        if key in names and (strict or member is not None or key.lower() in money)
    }


def _is_money(name: str) -> bool:
    return name == "currency" or name.rpartition("_")[2] == "amount"
