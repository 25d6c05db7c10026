"""Orders in the table, in the past if age matters, and their changes. Arguments override every default."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.db import OperationalError, connection, transaction

from orders import shipments
from orders.models import Shipment
from tests.kit.words import Order, is_lock_timeout, order_services, read_database_time


def _in_a_transaction(service: Callable[..., order_services.OrderChange]) -> Callable[..., Order]:
    def change(**values: Any) -> Order:
        while True:
            try:
                with transaction.atomic():
                    decided = service(**values)
                    decided.save()
                return decided.order
            except OperationalError as error:
                if not is_lock_timeout(error) or connection.in_atomic_block:
                    raise

    return change


pay_order = _in_a_transaction(order_services.pay)
fail_payment = _in_a_transaction(order_services.fail_payment)
confirm_order = _in_a_transaction(order_services.confirm)
complete_order = _in_a_transaction(order_services.complete)
cancel_order = _in_a_transaction(order_services.cancel)
refund_order = _in_a_transaction(order_services.refund)


def _of_a_shipment(
    service: Callable[..., tuple[order_services.OrderChange, Shipment]],
) -> Callable[..., Shipment]:
    def change(**values: Any) -> Shipment:
        changed: list[Shipment] = []

        def decide(**values: Any) -> order_services.OrderChange:
            decided, shipment = service(**values)
            changed.append(shipment)
            return decided

        _in_a_transaction(decide)(**values)
        return changed[-1]

    return change


ship_order = _of_a_shipment(shipments.ship)
correct_shipment = _of_a_shipment(shipments.correct)
deliver_shipment = _of_a_shipment(shipments.deliver)
return_shipment = _of_a_shipment(shipments.take_return)


def place_order(**values: Any) -> Order:
    return _in_a_transaction(order_services.place)(now=read_database_time(), **values)


def make_order(**fields: Any) -> Order:
    """Place an order as the API does."""
    values: dict[str, Any] = {
        "user_id": uuid.uuid4(),
        "email": "alice@example.com",
        "name": "Alice",
        "total_amount": 12_345,
        "reference": "R-1",
    }
    return Order.objects.create(**values | fields)


def make_orders(count: int, *, owner: str) -> None:
    """Insert many orders in one statement, a second apart, the newest now, and analyze the table.

    `owner` is "own", "external" (its ids contain no time) or "mixed". Every 40th order has the status
    `refunded`, and `User7@example.com` and user 7 have every 50th. The reference `R-7` has twenty orders.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO orders (id, source, status, version, user_id, email, name, locale, reference, items,
                total_amount, refunded_amount, currency, correlation_id, created_at, updated_at)
            SELECT
                CASE WHEN source <> '' THEN gen_random_uuid() ELSE
                    (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
                        || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid
                END,
                source,
                CASE WHEN n %% 40 = 0 THEN 'refunded' ELSE 'completed' END, 1,
                lpad((n %% 50)::text, 32, '0')::uuid, 'User' || n %% 50 || '@example.com', '', 'en',
                CASE WHEN n %% (%(count)s / 20) = 7 THEN 'R-7' ELSE 'S-' || n END, '[]', 1,
                CASE WHEN n %% 40 = 0 THEN 1 ELSE 0 END, 'USD', 'c' || n, at, at
            FROM generate_series(1, %(count)s) AS n,
                LATERAL (SELECT now() - (%(count)s - n) * interval '1 second' AS at,
                    CASE WHEN %(owner)s = 'own' OR %(owner)s = 'mixed' AND n %% 2 = 0 THEN ''
                        ELSE 'shop-a' END AS source) AS made
            """,
            {"count": count, "owner": owner},
        )
        cursor.execute("ANALYZE orders")
