"""Which posts a shop of WooCommerce cannot have sent, by their headers alone."""

from __future__ import annotations

import pytest

from shop_connections.woocommerce.signature import may_be_signed, sign

FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-WC-Webhook-Signature": sign(body=b"{}", secret="s")}, True),
        ({"X-WC-Webhook-Signature": "A" * 44}, False),
        ({"X-WC-Webhook-Signature": "A" * 42 + "="}, False),
        ({"X-WC-Webhook-Signature": "ä" * 43 + "="}, False),
        ({}, False),
        ({"Content-Type": "application/json", "Content-Length": "20"}, False),
        ({"Content-Type": FORM, "Content-Length": "64"}, True),
        ({"Content-Type": f"{FORM}; charset=utf-8", "Content-Length": "13"}, True),
        ({"Content-Type": FORM, "Content-Length": "65"}, False),
        ({"Content-Type": FORM}, False),
    ],
)
def test_only_a_signature_in_its_form_and_a_ping_may_be_its(headers, expected):
    assert may_be_signed(headers=headers) is expected
