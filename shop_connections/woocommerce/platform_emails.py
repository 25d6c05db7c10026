"""The e-mails that WooCommerce itself sends to customers, by the event of ours that takes their place."""

from __future__ import annotations

PLATFORM_EMAILS = {
    "order.placed": "Order on-hold",
    "order.paid": "Processing order",
    "order.confirmed": "Processing order",
    "order.completed": "Completed order",
    "order.cancelled": "Cancelled order, to the customer",
    "order.refunded": "Refunded order",
    "order.part_refunded": "Refunded order",
    "order.shipped": "the e-mail of your tracking plug-in",
}
