"""The admin of orders. Each page is a class in a file of its own; this one puts them together."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, path

from orders.admin.copies import CopyPage
from orders.admin.order_page import OrderPage
from orders.admin.previews import PreviewPages
from orders.admin.privacy_actions import PrivacyActions
from orders.models import Order
from outbox.admin.base import TriageAdmin


@admin.register(Order)
class OrderAdmin(OrderPage, PrivacyActions, CopyPage, PreviewPages, TriageAdmin[Order]):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("copies/<uuid:id>/", view(self.copy_view), name="orders_order_copy"),
            path("<uuid:id>/emails/", view(self.preview_view), name="orders_order_emails"),
            path("<uuid:id>/emails/body/", view(self.preview_body), name="orders_order_email_body"),
            *super().get_urls(),
        ]
