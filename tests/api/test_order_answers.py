"""An order's answer is written by hand, for speed: it must be what its serializer's fields say."""

from __future__ import annotations

import datetime as dt

import pytest
from rest_framework import serializers

from orders.api.serializers import OrderSerializer
from tests.kit.orders import make_order
from tests.kit.words import Order

pytestmark = pytest.mark.django_db
FIELDS = {
    "items": [{"sku": "TEA-1", "name": "Grüner Tee", "quantity": 2, "unit_amount": 0, "size": "not shown"}],
    "created_at": dt.datetime(2026, 11, 21, 23, 5, 9, tzinfo=dt.UTC),  # no fraction of a second
}


@pytest.mark.parametrize("unexpected_payment_at", [None, FIELDS["created_at"]])
@pytest.mark.parametrize("source", ["", "erp"])
def test_an_order_is_shown_as_its_fields_say(source, unexpected_payment_at):
    values = {"source": source, "unexpected_payment_at": unexpected_payment_at}
    for order in (made := make_order(**values, **FIELDS), Order.objects.get(id=made.id)):
        by_fields = serializers.Serializer.to_representation(OrderSerializer(), order)
        for name, value in {**values, "charges": order.charges}.items():
            if not value:
                del by_fields[name]
        assert list(OrderSerializer().to_representation(order).items()) == list(by_fields.items())
