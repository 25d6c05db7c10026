"""Say which IP addresses are of the internet, and which IPv4 address one of IPv6 stands for."""

from __future__ import annotations

import ipaddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Python's `is_global` depends on its patch release. These are the special networks of IANA's registries,
#: what is not of the internet in IPv6, and the address where Azure's machines find their own secrets.
_SPECIAL = [
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24"),
        *("192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/3", "::/3", "2001::/23", "2001:db8::/32", "2002::/16"),
        *("2620:4f:8000::/48", "3fff::/20", "4000::/2", "8000::/1"),
    )
]


def is_public(address: str) -> bool:
    """Return whether an IP address is of the internet, also the IPv4 address inside one of IPv6.

    >>> is_public("8.8.8.8"), is_public("10.0.0.1"), is_public("::ffff:127.0.0.1")
    (True, False, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and (inner := inner_ipv4(ip)) is not None:
        return is_public(str(inner))
    return ip.is_global and not any(ip in network for network in _SPECIAL)


def inner_ipv4(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for: `::ffff:`, NAT64 or 6to4."""
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped or ip.sixtofour
