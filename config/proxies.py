"""The client's own address behind proxies. django-axes counts wrong passwords by it.

No library: django-ipware finds no address behind one honest proxy, and believes `X-Forwarded-For` of a client
that connects directly.
"""

from __future__ import annotations

import functools
import ipaddress

from django.conf import settings
from django.http import HttpRequest


def client_address(request: HttpRequest) -> str:
    """Return the nearest address on the request's way that is no trusted proxy.

    Each proxy appends to `X-Forwarded-For` the address that it was called from. So the list is read from its
    end, and an entry counts only if a trusted proxy wrote it: what a client sends itself is never reached.
    """
    address = str(request.META.get("REMOTE_ADDR", ""))
    forwarded = request.headers.get("X-Forwarded-For", "").split(",")
    while _is_trusted(address, tuple(settings.TRUSTED_PROXIES)) and forwarded:
        earlier = forwarded.pop().strip()
        if not _parsed(earlier):
            break
        address = earlier
    return address


def _is_trusted(address: str, proxies: tuple[str, ...]) -> bool:
    found = _parsed(address)
    return found is not None and any(found in network for network in _networks(proxies))


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


@functools.cache
def _networks(proxies: tuple[str, ...]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(proxy) for proxy in proxies]
