"""The steps in Saleor that connect a shop, and the e-mails that Saleor's own senders write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shop_connections.encryption import Unreadable, decrypt
from shop_connections.models import ShopConnection
from shop_connections.setup import Calls, PlatformEmail, Setup, SetupStep

EMAILS = (
    PlatformEmail("Order confirmation", ("order.placed",)),
    PlatformEmail("Order confirmed", (), ("order.confirmed",)),
    PlatformEmail("Payment confirmation", ("order.paid",)),
    PlatformEmail("Fulfillment confirmation and update", ("order.completed", "order.shipped")),
    PlatformEmail("Order canceled", ("order.cancelled",)),
    PlatformEmail("Order refunded", ("order.refunded", "order.part_refunded")),
    PlatformEmail("Account confirmation, password, e-mail change and deletion"),
    PlatformEmail("Invoice"),
    PlatformEmail("Gift card"),
)


def values(connection: ShopConnection, address: str) -> Mapping[str, Any]:
    """Return the one address to install the app from. Its secret is the installation's."""
    try:
        manifest = _manifest(address, decrypt(connection.secret))
    except Unreadable:
        manifest = ""
    return {"manifest": manifest, "channel": connection.installation.get("channel", "")}


def _manifest(address: str, secret: str) -> str:
    return f"{address}/{secret}/manifest"


def _is_installed(shop: ShopConnection, calls: Calls) -> bool:
    is_here = shop.installation.get("place") == shop.secret_mark
    return bool(shop.api_key) and is_here and not shop.check_problem


def _is_chosen(shop: ShopConnection, calls: Calls) -> bool:
    return "channel" in shop.installation or shop.last_post_at is not None


SETUP = Setup(
    connect=(
        SetupStep("channel", "Choose the channel", "saleor/channel.html", _is_chosen, acts=("channel",)),
        SetupStep(
            "install", "Install the app in Saleor", "saleor/install.html", _is_installed, acts=("secret",)
        ),
    ),
    later=(),
    emails=EMAILS,
    emails_at="Configuration → Plugins → User emails, or in the app that sends e-mails",
    reconnect="install the app with its new address",
    authorize="install the app again",
    show_secret=lambda address, secret: ("Install the app from this address:", _manifest(address, secret)),
    find_lacks=lambda _: (),
    values=values,
)
