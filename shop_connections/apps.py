"""Make connected shops count as sources of orders."""

from __future__ import annotations

from collections.abc import Iterable

from django.apps import AppConfig


class ConnectionsConfig(AppConfig):
    name, label = "shop_connections", "connections"  # the page's word, which permissions and addresses have
    roles = {
        "viewer": ["connections.view_shopconnection", "connections.view_connectionpost"],
        "support": ["connections.view_shopconnection", "connections.view_connectionpost"],
        "operator": [
            "connections.add_shopconnection",
            "connections.change_shopconnection",
            "connections.retry_connectionpost",
        ],
    }
    shop_rights = (
        "connections.view_shopconnection",
        "connections.change_shopconnection",
        "connections.view_connectionpost",
        "connections.retry_connectionpost",
    )

    def ready(self) -> None:
        from notifications.connected import ConnectedShops, register_shops
        from runtime.jobs.work import BackgroundStep, register_work
        from runtime.process.cached_rows import CachedRows, version_of
        from shop_connections import compare, going_live, process, readings, refresh
        from shop_connections.models import ShopConnection

        register_work(
            BackgroundStep(going_live.is_due, going_live.compare_all, waits_for_others=True),
            BackgroundStep(is_waiting=process.is_waiting, do=process.process_some),
            BackgroundStep(refresh.is_due, refresh.refresh_some, waits_for_others=True),
            BackgroundStep(readings.is_waiting, readings.read_some, waits_for_others=True),
            BackgroundStep(compare.is_due, compare.compare_all, waits_for_others=True),
        )
        shops = ShopConnection.objects

        def read_names() -> Iterable[str]:
            return shops.active().values_list("source", flat=True)

        names: CachedRows[bool] = CachedRows(
            version=version_of("shop_connections"), load=lambda: dict.fromkeys(read_names(), True)
        )
        register_shops(
            ConnectedShops(
                find=lambda source: shops.active().filter(source=source).first(),
                has_name=lambda source: source in names.get(),
                read_names=read_names,
            )
        )
