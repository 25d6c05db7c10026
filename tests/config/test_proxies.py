"""Wrong passwords are counted for the client's own address, behind proxies too."""

from __future__ import annotations

import pytest
from django.test import RequestFactory

from config.proxies import client_address


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
