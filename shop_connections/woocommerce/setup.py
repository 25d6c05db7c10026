"""The steps in WooCommerce that connect a shop, and the e-mails that WooCommerce itself sends."""

from __future__ import annotations

from collections.abc import Iterator

from events.consuming.envelope import DEEPEST
from shop_connections.models import ShopConnection
from shop_connections.setup import Calls, Lack, PlatformEmail, Setup, SetupStep
from web.api.bodies import NotStrict, parse_json

_TRACKING = "E-mail of the tracking plug-in"
EMAILS = (
    PlatformEmail("Order on-hold", ("order.placed",)),
    PlatformEmail("Processing order", ("order.paid",), ("order.confirmed",)),
    PlatformEmail("Completed order", ("order.completed",)),
    PlatformEmail("Cancelled order, to the customer", ("order.cancelled",)),
    PlatformEmail("Refunded order", ("order.refunded", "order.part_refunded")),
    PlatformEmail(_TRACKING, (), ("order.shipped",)),
    PlatformEmail("Failed order, to the customer"),
    PlatformEmail("Order details"),
    PlatformEmail("Customer note"),
    PlatformEmail("New account"),
    PlatformEmail("Reset password"),
)
#: What the shop's e-mails have and the posts do not.
_DOWNLOADS = Lack(
    "the links to downloads",
    "Completed order",
    "Leave it on, or customers get the files only in their account",
)
_BANK = Lack(
    "the shop's bank details",
    "Order on-hold",
    "Leave it on, or write the bank details into our text of order.placed, under Texts",
)


def find_lacks(body: bytes) -> Iterator[Lack]:
    """Yield what WooCommerce's e-mails about an order have, and ours cannot have."""
    try:
        document = parse_json(body, deepest=DEEPEST)
    except NotStrict:
        return
    if not isinstance(document, dict):
        return
    if document.get("needs_processing") is False and document.get("line_items"):
        yield _DOWNLOADS  # all lines are downloads
    if document.get("payment_method") == "bacs":
        yield _BANK


def _has_come(shop: ShopConnection, calls: Calls) -> bool:
    return shop.last_post_at is not None


def _was_reached(shop: ShopConnection, calls: Calls) -> bool:
    return bool(shop.last_post_at or shop.refused_at or calls.reached_at)


def _has_key(shop: ShopConnection, calls: Calls) -> bool:
    return bool(shop.api_key) and not shop.check_problem


SETUP = Setup(
    connect=(
        SetupStep(
            "webhook",
            "Make a webhook in the shop, with this secret",
            "woocommerce/webhook.html",
            _has_come,
            acts=("secret",),
        ),
        SetupStep("reached", "The webhook reaches us", "woocommerce/reached.html", _was_reached),
    ),
    later=(
        SetupStep(
            "key",
            "Give a key of the shop's API, so that lost posts are found",
            "woocommerce/key.html",
            _has_key,
            acts=("key",),
        ),
    ),
    emails=EMAILS,
    emails_at="WooCommerce → Settings → Emails",
    reconnect="paste the secret into the shop's webhook",
    authorize="enter the key of the shop's API",
    show_secret=lambda _, secret: ("Copy the webhook's secret now, because it is shown only once:", secret),
    find_lacks=find_lacks,
)
