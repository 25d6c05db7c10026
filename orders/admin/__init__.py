"""The admin of orders. Each page is a class in its own file, and this file combines them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, path, reverse

from orders.admin import attention, email_texts, search
from orders.admin.addresses import AddressPage
from orders.admin.copies import CopyPage
from orders.admin.lift import LiftPage
from orders.admin.order_page import OrderPage
from orders.admin.previews import PreviewPages
from orders.admin.privacy_actions import PrivacyActions
from orders.admin.unexpected_payments import UnexpectedPayments
from orders.models import Order
from web.admin.base import TriageAdmin
from web.admin.menu import MenuItem
from web.admin.tiles import Series, show_series

__all__ = ["OrderAdmin", "attention", "email_texts", "search"]

show_series(
    Series(
        place=10,
        name="placed",
        title="Orders placed",
        permission="orders.view_order",
        list_url=lambda: f"{reverse('admin:orders_order_changelist')}?age={{age}}",
        tone="plain",
    )
)


@admin.register(Order)
class OrderAdmin(
    OrderPage,
    PrivacyActions,
    UnexpectedPayments,
    LiftPage,
    CopyPage,
    AddressPage,
    PreviewPages,
    TriageAdmin[Order],
):
    menu = MenuItem(10, "Orders")
    empty_text = "A shop places orders by POST /api/v1/orders. manage.py demo places sample orders."

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("copies/<uuid:email_id>/", view(self.copy_view), name="orders_order_copy"),
            path("<uuid:id>/address/", view(self.address_view), name="orders_order_address"),
            path("<uuid:id>/returned/", view(self.returned_view), name="orders_order_returned"),
            path("<uuid:id>/lift/", view(self.lift_view), name="orders_order_lift"),
            path("<uuid:id>/emails/", view(self.preview_view), name="orders_order_emails"),
            path("<uuid:id>/emails/body/", view(self.preview_body), name="orders_order_email_body"),
            *super().get_urls(),
        ]
