"""Two shops with two brands on one installation, and their e-mails in the mailbox."""

from __future__ import annotations

import uuid
from typing import Any

from playwright.sync_api import Page, Route

from local.sandbox import Sandbox
from tests.kit.events import give, told
from tests.kit.orders import pay_order, place_order
from tests.kit.profiles import save_profile
from tests.kit.words import drain

LOGO_URL = "https://coffee.test/logo.svg"
#: White letters of Beans & Co, for a dark head.
LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="150" height="32" viewBox="0 0 150 32"><g fill="#fff">'
    '<ellipse cx="14" cy="16" rx="9" ry="13"/></g><path d="M16 4c-7 8 3 14-4 24" stroke="#7c2d12" fill="none"'
    ' stroke-width="2"/><text x="32" y="23" font-family="Arial" font-weight="700" font-size="20" fill="#fff">'
    "Beans</text></svg>"
)
ITEMS = [
    {"sku": "A-1", "name": "Darjeeling, 250 g", "quantity": 2, "unit_amount": 1490},
    {"sku": "B-7", "name": "Teapot", "quantity": 1, "unit_amount": 3900},
]


def send_two_brands(sandbox: Sandbox) -> tuple[str, str]:
    """Send an e-mail of the own shop and one of `coffee`. Return their paths in the mailbox.

    The caller sets ORDER_SOURCES.
    """
    save_profile(
        "",
        from_email="Leaf & Cup <orders@leaf.test>",
        shop_name="Leaf & Cup",
        postal_address="Leaf & Cup, 5 High Street, Leeds",
        url="https://leaf.test",
        colour="#166534",
    )
    save_profile(
        "coffee",
        from_email="Beans & Co <orders@coffee.test>",
        shop_name="Beans & Co",
        postal_address="Beans & Co, Hafenstraße 9, Hamburg",
        url="https://coffee.test",
        colour="#7c2d12",
        logo_url=LOGO_URL,
        default_locale="de",
    )
    order = place_order(
        user_id=uuid.uuid4(),
        email="ann@example.com",
        name="Ann Lee",
        reference="T-1001",
        total_amount=7370,
        currency="GBP",
        items=ITEMS,
    )
    pay_order(order_id=order.id)
    event = told("paid", "C-2002", 2, source="coffee", email="bo@example.com", name="Bo Kurz")
    assert give(event) == "done"
    drain.drain_emails()
    paths = {mail.from_email: f"/mails/{mail.message_id}/html" for mail in sandbox.mails}
    return paths["orders@leaf.test"], paths["orders@coffee.test"]


def serve_logo(page: Page) -> list[str]:
    """Answer requests for the logo, and return the list of them."""
    asked: list[str] = []

    def answer(route: Route) -> Any:
        asked.append(route.request.url)
        route.fulfill(body=LOGO, content_type="image/svg+xml")

    page.route(LOGO_URL, answer)
    return asked
