"""Orders, their transitions and their API."""

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    name = "orders"
