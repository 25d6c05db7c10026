"""Make connected shops count as sources of orders."""

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

    def ready(self) -> None:
        from connections import missing, posts
        from connections.models import ShopConnection
        from connections.privacy import erase_posts, export_posts
        from notifications import connected
        from orders.privacy.stored_answers import OTHER_TEXTS, OtherTexts
        from runtime.jobs.work import WORK, Work
        from runtime.process.cached_rows import CachedRows, version_of

        OTHER_TEXTS.append(OtherTexts(erase_posts, export_posts))
        WORK.append(Work(is_waiting=posts.is_waiting, do=posts.process_some))
        WORK.append(Work(missing.is_due, missing.compare_all, waits_for_others=True))
        shops = ShopConnection.objects
        connected.find_shop = lambda source: shops.active().filter(source=source).first()
        names: CachedRows[bool] = CachedRows(
            version=version_of("shop_connections"),
            load=lambda: dict.fromkeys(connected.read_names(), True),
        )
        connected.has_name = lambda source: source in names.get()
        connected.read_names = lambda: shops.active().values_list("source", flat=True)
