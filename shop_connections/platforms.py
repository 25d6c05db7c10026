"""The platforms whose shops connect themselves. Each has a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from shop_connections.models import ShopConnection
from shop_connections.setup import Setup
from shop_connections.shop_order import ReadOrder, ShopHead, ShopOrder
from shop_connections.woocommerce import client, read, signature
from shop_connections.woocommerce.setup import SETUP


class Platform(NamedTuple):
    """The functions of a platform's folder. None of them writes anything."""

    #: is_ping(body=, content_type=): whether an unsigned post only tries whether the address answers.
    is_ping: Callable[..., bool]
    #: may_be_signed(headers=): whether a post with these headers could be signed, or such a ping.
    may_be_signed: Callable[..., bool]
    #: is_signed(body=, headers=, secret=): whether the signature of a post is that of its body.
    is_signed: Callable[..., bool]
    #: Which order a body is about; None if it is about something else. Raises `Rejected`.
    read_head: Callable[[bytes], ShopHead | None]
    #: read(body, locale=): the order in a body; None if it is about something else. Raises `Rejected` only if
    #: it is not known which order it is.
    read: Callable[..., ShopOrder | None]
    #: A status as the platform writes it, of a person's words; "" if it can be none.
    read_status: Callable[[str], str]
    #: read_orders(address=, key=, secret=, since=, until=, is_private_allowed=, seconds=, place=): orders for
    #: `read`.
    read_orders: Callable[..., Iterable[ReadOrder]]
    #: What the page of a connection says of the platform.
    setup: Setup


#: By `ShopConnection.platform`.
PLATFORMS: dict[str, Platform] = {
    ShopConnection.Platform.WOOCOMMERCE: Platform(
        is_ping=signature.is_ping,
        may_be_signed=signature.may_be_signed,
        is_signed=signature.is_signed,
        read_head=read.read_head,
        read=read.read_order,
        read_status=read.read_status,
        read_orders=client.read_orders,
        setup=SETUP,
    )
}


def is_known(connection: ShopConnection) -> bool:
    """Return whether this release knows the platform. In a rolling deploy, a later release may know more."""
    return connection.platform in PLATFORMS


def platform_of(connection: ShopConnection) -> Platform:
    return PLATFORMS[connection.platform]
