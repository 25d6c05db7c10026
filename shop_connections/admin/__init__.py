"""The admin of connections, and of what the shops posted."""

from shop_connections.admin import posts, shops

__all__ = ["posts", "shops"]
