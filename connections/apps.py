"""The app of the connections."""

from __future__ import annotations

from django.apps import AppConfig


class ConnectionsConfig(AppConfig):
    name = "connections"
    roles = {
        "viewer": ["connections.view_shopconnection", "connections.view_connectionpost"],
        "operator": [
            "connections.add_shopconnection",
            "connections.change_shopconnection",
            "connections.retry_connectionpost",
        ],
    }
