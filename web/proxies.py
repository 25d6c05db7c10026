"""Find the client's address behind proxies, and say whom it counts as. Logs show its network.

Logs also lack the secret in the path of an installation in a shop.

No library does this: django-ipware finds no address behind one honest proxy, and trusts `X-Forwarded-For` of
a client that connects directly.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Sequence

from django.conf import settings
from django.http import HttpRequest

from runtime.ip_addresses import inner_ipv4


def client_address(request: HttpRequest) -> str:
    """Return the nearest address on the request's way that is not a trusted proxy.

    Each proxy appends its caller's address to `X-Forwarded-For`. Read the list from its end, and use an entry
    only if a trusted proxy wrote it. Entries that the client forged are never used.
    """
    address = str(request.META.get("REMOTE_ADDR", ""))
    proxies = tuple(settings.TRUSTED_PROXIES)
    if not proxies:
        return address
    # Read META: building the mapping `headers` costs each request 20 µs.
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    while _is_trusted(address, proxies) and forwarded:
        earlier = forwarded.pop().strip()
        if not _parsed(earlier):
            break
        address = earlier
    return address


def is_address_known() -> bool:
    """Return whether a request shows its client's address. TLS ends at a proxy, which must be named."""
    return bool(settings.TRUSTED_PROXIES) or not settings.HTTPS


def is_inside(address: str, networks: Sequence[str]) -> bool:
    """Return whether a client's address is in one of the networks. One that is not known is in none."""
    ip = _parsed(plain_address(address)) if is_address_known() else None
    return ip is not None and any(ip in network for network in _networks(tuple(networks)))


def counts_as(address: str) -> str:
    """Return whom an address counts as wherever something is limited by it, or "" for what is no address.

    IPv4 counts as itself, also inside IPv6. In IPv6 a customer gets at least a /64, whose first address
    stands for all of them.

    >>> counts_as("203.0.113.9"), counts_as("::ffff:203.0.113.9"), counts_as("2001:db8:1:2::3")
    ('203.0.113.9', '203.0.113.9', '2001:db8:1:2::')
    """
    return str(_counted(address) or "")


def plain_address(address: str) -> str:
    """Return an address as PostgreSQL writes it, IPv4 also from IPv6, or "" for what is no address.

    >>> plain_address("::ffff:203.0.113.9"), plain_address("FE80::1%eth0"), plain_address("a client")
    ('203.0.113.9', 'fe80::1', '')
    """
    ip = _parsed(address)
    ip = (isinstance(ip, ipaddress.IPv6Address) and inner_ipv4(ip)) or ip
    return str(ip or "").partition("%")[0]


def mask_address(address: str) -> str:
    """Return the network of an address, /24 or in IPv6 /48, or an empty text for what is not an address.

    >>> mask_address("203.0.113.9"), mask_address("2001:db8:1:2::3")
    ('203.0.113.0/24', '2001:db8:1::/48')
    """
    ip = _counted(address)
    if isinstance(ip, ipaddress.IPv6Address):
        return f"{ipaddress.IPv6Address(int(ip) >> 80 << 80)}/48"
    return f"{ipaddress.IPv4Address(int(ip) >> 8 << 8)}/24" if ip else ""


def _counted(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    ip = _parsed(address)
    if isinstance(ip, ipaddress.IPv6Address):
        return inner_ipv4(ip) or ipaddress.IPv6Address(int(ip) >> 64 << 64)
    return ip


def _is_trusted(address: str, proxies: tuple[str, ...]) -> bool:
    ip = _parsed(address)
    # A server that listens on both families has the proxy's IPv4 address so. The other forms prove no proxy.
    ip = (isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped) or ip
    return ip is not None and any(ip in network for network in _networks(proxies))


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


@functools.cache
def _networks(proxies: tuple[str, ...]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(proxy) for proxy in proxies]


#: What comes before the secret, and the secret. A text without `BEFORE_SECRET` has none.
SECRET_IN_PATH = re.compile(r"(/connect/[^/\s?#\"'\\]+/)[^/\s?#\"'\\]+")
BEFORE_SECRET = "/connect/"  # noqa: S105 - no secret


def mask_path(path: str) -> str:
    """Return a path without its secret.

    >>> mask_path("/connect/tea-shop/s3cret/posts")
    '/connect/tea-shop/***/posts'
    """
    return SECRET_IN_PATH.sub(r"\1***", path)
