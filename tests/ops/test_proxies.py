"""Wrong passwords are counted for the client's own address, behind proxies too. Logs have its network."""

from __future__ import annotations

import pytest
from django.test import RequestFactory

from outbox.api.proxies import client_address
from tests.kit.words import mask_address


@pytest.mark.parametrize(
    ("proxies", "remote", "forwarded", "client"),
    [
        ([], "203.0.113.9", "198.51.100.1", "203.0.113.9"),
        (["10.0.0.0/8"], "10.0.0.5", "198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "10.0.0.5", None, "10.0.0.5"),
        # What the client sends itself stands before what the proxies append.
        (["10.0.0.0/8"], "10.0.0.5", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "10.0.0.5", "1.1.1.1, 10.0.0.7,198.51.100.1,10.0.0.6", "198.51.100.1"),
        # A client that connects directly is believed nothing.
        (["10.0.0.0/8"], "203.0.113.9", "1.1.1.1, 10.0.0.5", "203.0.113.9"),
        (["10.0.0.0/8"], "10.0.0.5", "10.0.0.9, 10.0.0.8", "10.0.0.9"),
        (["10.0.0.0/8"], "10.0.0.5", "unknown", "10.0.0.5"),
        (["2001:db8::/32"], "2001:db8::1", "198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "", "198.51.100.1", ""),
    ],
)
def test_it_takes_the_nearest_address_that_is_no_trusted_proxy(settings, proxies, remote, forwarded, client):
    settings.TRUSTED_PROXIES = proxies
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    assert client_address(RequestFactory().get("/", headers=headers, REMOTE_ADDR=remote)) == client


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("203.0.113.9", "203.0.113.0/24"),
        ("255.255.255.255", "255.255.255.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"),
        ("::ffff:203.0.113.9", "203.0.113.0/24"),
        ("fe80::1%eth0", "fe80::/48"),
        ("::1", "::/48"),
        ("unix:", ""),
        ("", ""),
    ],
)
def test_a_log_line_has_only_the_network_of_an_address(address, masked):
    assert mask_address(address) == masked
