"""The e-mails that Saleor's own senders write to customers, by the event of ours that takes their place."""

from __future__ import annotations

PLATFORM_EMAILS = {
    "order.placed": "Order confirmation",
    "order.paid": "Payment confirmation",
    "order.confirmed": "Order confirmed",
    "order.completed": "Fulfillment confirmation",
    "order.shipped": "Fulfillment confirmation",
    "order.cancelled": "Order canceled",
    "order.refunded": "Order refunded",
    "order.part_refunded": "Order refunded",
}
