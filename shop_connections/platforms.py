"""The platforms whose shops connect themselves. Each has a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from django.http import HttpRequest, HttpResponse

from shop_connections.models import ShopConnection
from shop_connections.saleor import client as saleor_client
from shop_connections.saleor import install as saleor_install
from shop_connections.saleor import read as saleor_read
from shop_connections.saleor import signature as saleor_signature
from shop_connections.saleor.setup import SETUP as SALEOR_SETUP
from shop_connections.setup import Setup
from shop_connections.shop_order import ReadOrder, ShopHead, ShopOrder
from shop_connections.woocommerce import client, read, signature
from shop_connections.woocommerce.setup import SETUP

#: Answers a request below a connection's address.
View = Callable[[HttpRequest, ShopConnection], HttpResponse]
#: Whether a post is the shop's: yes, no, not known yet, or yes but about nothing that is stored.
Verdict = Literal["yes", "no", "later", "other"]


class Platform(NamedTuple):
    """The functions of a platform's folder. Those about bodies write nothing."""

    #: route(connection, rest): the view at `rest` below `/connect/<source>/`, "posts" if the shop posts to
    #: it, or None for an unknown path.
    route: Callable[[ShopConnection, str], View | Literal["posts"] | None]
    #: is_ping(body=, content_type=): whether an unsigned post only tries whether the address answers.
    is_ping: Callable[..., bool]
    #: may_be_signed(rest=, headers=): whether a post there with these headers could be signed, or such a
    #: ping, or is read by a view. Reads nothing.
    may_be_signed: Callable[..., bool]
    #: is_authentic(connection, body=, headers=). Raises `Unreadable`.
    is_authentic: Callable[..., Verdict]
    #: Which order a body is about; None if it is about something else. Raises `Rejected`.
    read_head: Callable[[bytes], ShopHead | None]
    #: read(body, locale=): the order in a body; None if it is about something else. Raises `Rejected` only if
    #: it is not known which order it is.
    read: Callable[..., ShopOrder | None]
    #: A status as the platform writes it, of a person's words; "" if it can be none.
    read_status: Callable[[str], str]
    #: read_orders(address=, key=, secret=, since=, until=, is_private_allowed=, seconds=, place=, offset=):
    #: orders for `read`. `offset` is what to add to the shop's times to have ours.
    read_orders: Callable[..., Iterable[ReadOrder]]
    #: What the page of a connection says of the platform.
    setup: Setup
    #: read_again(connection, body=, offset=, seconds=): the order in a body as the shop's API has it now, for
    #: `read`, with what only the body tells; None if the shop no longer has it. A worker calls it for a post
    #: that came late or does not tell its order. Raises `ShopUnreachable`. None: such a post changes nothing.
    read_again: Callable[..., bytes | None] | None = None
    #: refresh(connection, seconds=): what to keep as its `installation`. A worker calls it by the hour, and
    #: soon after a post whose signature was not known yet. Raises `ShopUnreachable`.
    refresh: Callable[..., Mapping[str, Any]] | None = None


#: By `ShopConnection.platform`.
PLATFORMS: dict[str, Platform] = {
    ShopConnection.Platform.WOOCOMMERCE: Platform(
        route=lambda _, rest: None if rest else "posts",
        is_ping=signature.is_ping,
        may_be_signed=signature.may_be_signed,
        is_authentic=signature.is_authentic,
        read_head=read.read_head,
        read=read.read_order,
        read_status=read.read_status,
        read_orders=lambda offset, **rest: client.read_orders(**rest),
        setup=SETUP,
    ),
    ShopConnection.Platform.SALEOR: Platform(
        route=saleor_install.route,
        is_ping=lambda **_: False,
        may_be_signed=saleor_signature.may_be_signed,
        is_authentic=saleor_signature.is_authentic,
        read_head=saleor_read.read_head,
        read=saleor_read.read_order,
        read_status=saleor_read.read_status,
        read_orders=saleor_client.read_orders,
        setup=SALEOR_SETUP,
        read_again=saleor_client.read_again,
        refresh=saleor_install.refresh,
    ),
}


def is_known(connection: ShopConnection) -> bool:
    """Return whether this release knows the platform. In a rolling deploy, a later release may know more."""
    return connection.platform in PLATFORMS


def platform_of(connection: ShopConnection) -> Platform:
    return PLATFORMS[connection.platform]
