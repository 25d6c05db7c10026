"""Orders, their transitions and their API."""

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    """See the module."""

    name = "orders"
