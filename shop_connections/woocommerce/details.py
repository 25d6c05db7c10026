"""Read what the customer of WooCommerce expects to find in an e-mail, besides lines and sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from notifications.content.rendering import name_country
from orders.details import LONGEST_LINE, LONGEST_NOTE, MOST_LINES, hide_card_number
from shop_connections.woocommerce.charges import delivery_method
from shop_connections.woocommerce.time_zone import read_time_zone
from shop_connections.woocommerce.values import cut, html_text, text

#: Countries that write the state and then the postcode after the city.
_CITY_FIRST = frozenset(["AU", "CA", "US"])


def read_details(document: Mapping[str, Any], *, locale: str) -> dict[str, Any]:
    """Return the members of an order's `details` that the document has, empty if it says that there is none.

    Countries are named in the language.
    """
    details: dict[str, Any] = {}
    for name, key in (("delivery_address", "shipping"), ("billing_address", "billing")):
        if isinstance(parts := document.get(key), dict):
            details[name] = _address(parts, locale)
    if isinstance(document.get("shipping_lines"), list):
        details["delivery_method"] = cut(delivery_method(document), LONGEST_LINE)
    if isinstance(title := document.get("payment_method_title"), str):
        details["payment_method"] = cut(hide_card_number(html_text(title)), LONGEST_LINE)
    if isinstance(note := document.get("customer_note"), str):
        details["customer_note"] = cut(text(note), LONGEST_NOTE)
    if zone := read_time_zone(document):
        details["time_zone"] = zone
    return details


def _address(parts: Mapping[str, Any], locale: str) -> list[str]:
    """Return the lines of an address, or none if it has only a name: nothing is delivered then."""
    part = {key: html_text(value) for key, value in parts.items()}
    street = [part.get("address_1", ""), part.get("address_2", "")]
    town = _town(part)
    if not any([*street, town]):
        return []
    name = " ".join(filter(None, [part.get("first_name", ""), part.get("last_name", "")]))
    lines = [
        name,
        part.get("company", ""),
        *street,
        town,
        name_country(part.get("country", ""), locale=locale),
    ]
    return [cut(line, LONGEST_LINE) for line in lines if line][:MOST_LINES]


def _town(part: Mapping[str, str]) -> str:
    postcode, city, state = (part.get(key, "") for key in ("postcode", "city", "state"))
    if part.get("country") not in _CITY_FIRST:
        return f"{postcode} {city}".strip()
    return ", ".join(filter(None, [city, f"{state} {postcode}".strip()]))
