"""Read what the customer of Saleor expects to find in an e-mail, besides lines and sums."""

from __future__ import annotations

from typing import Any

from notifications.content.rendering import name_country
from orders.details import LONGEST_LINE, LONGEST_NOTE, MOST_LINES
from shop_connections.saleor.values import Json, cut, member, text

#: Countries that write the state and then the postcode after the city.
_CITY_FIRST = frozenset(["AU", "CA", "US"])


def read_details(order: Json, *, locale: str) -> dict[str, Any]:
    """Return the members of an order's `details` that the document has, empty if there is none."""
    details: dict[str, Any] = {}
    for name, key in (("delivery_address", "shippingAddress"), ("billing_address", "billingAddress")):
        if key in order:
            details[name] = _address(member(order, key), locale)
    for key in ("shippingMethodName", "collectionPointName"):
        if key in order:
            details["delivery_method"] = details.get("delivery_method") or cut(text(order[key]), LONGEST_LINE)
    if "customerNote" in order:
        details["customer_note"] = cut(text(order["customerNote"]), LONGEST_NOTE)
    return details


def read_name(order: Json) -> str | None:
    """Return the customer's name, or None if the order has no address."""
    for key in ("billingAddress", "shippingAddress"):
        if address := member(order, key):
            parts = [text(address.get(name)) for name in ("firstName", "lastName")]
            return " ".join(filter(None, parts)) or text(address.get("companyName"))
    return None


def _address(parts: Json, locale: str) -> list[str]:
    part = {key: text(value) for key, value in parts.items() if key != "country"}
    country = text(member(parts, "country").get("code"))
    street = [part.get("streetAddress1", ""), part.get("streetAddress2", ""), part.get("cityArea", "")]
    town = _town(part, country)
    if not any([*street, town]):
        return []
    name = " ".join(filter(None, [part.get("firstName", ""), part.get("lastName", "")]))
    lines = [name, part.get("companyName", ""), *street, town, name_country(country, locale=locale)]
    return [cut(line, LONGEST_LINE) for line in lines if line][:MOST_LINES]


def _town(part: dict[str, str], country: str) -> str:
    postcode, city, state = (part.get(key, "") for key in ("postalCode", "city", "countryArea"))
    if country not in _CITY_FIRST:
        return f"{postcode} {city}".strip()
    return ", ".join(filter(None, [city, f"{state} {postcode}".strip()]))
