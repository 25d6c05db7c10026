"""Read an inbound event by the API's fields, in camelCase, and the API's checks, and change its order."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rest_framework.exceptions import ValidationError
from rest_framework.fields import Field

from events.consuming.envelope import Envelope, Rejected
from events.consuming.handlers import Handler
from orders.fields import camel
from orders.services import OrderChange, OrderNotFound
from orders.transitions import ChangeRefused
from runtime.texts import CONTROL_CHARACTERS
from web.api.fields import StrictSerializer, cached_serializer, unknown_field
from web.api.problems import faults_of

_MOST_FAULTS = 5


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
            change(event, order_id).save()

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
    money = {key.lower(): key for key, name in names.items() if _is_money(name)}
    for key in value.keys() - names.keys():
        if right := money.get(key.lower()):
            raise Rejected(f"{place}.{key}: Unknown field. Use {right}.")
    return {
        names[key]: _renamed(member, fields[names[key]], f"{place}.{key}", strict)
        for key, member in value.items()
        if key in names and (strict or member is not None or _is_money(names[key]))
    }


def _is_money(name: str) -> bool:
    return name == "currency" or name.rpartition("_")[2] == "amount"
