"""The admin of e-mails, put together from one mixin for each page."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, path

from notifications.admin.causes import CausesPage
from notifications.admin.email_actions import ActionsPage
from notifications.admin.email_detail import DetailPage
from notifications.admin.email_list import ListPage
from notifications.admin.email_preview import PreviewPage
from notifications.models import EmailNotification
from web.admin.base import TriageAdmin
from web.admin.menu import MenuItem


@admin.register(EmailNotification)
class EmailNotificationAdmin(
    ListPage, DetailPage, ActionsPage, CausesPage, PreviewPage, TriageAdmin[EmailNotification]
):
    menu = MenuItem(20, "E-mails")
    empty_text = (
        "Nothing here yet. A change of an order adds its e-mail: paid, shipped, cancelled or refunded."
    )
    more_menu = (MenuItem(25, "Causes", "notifications_emailnotification_causes"),)

    def get_urls(self) -> list[URLPattern]:
        name = "notifications_emailnotification"
        return [
            path("<uuid:id>/preview/", self.admin_site.admin_view(self.preview_view), name=f"{name}_preview"),
            path("<uuid:id>/message.eml", self.admin_site.admin_view(self.mime_view), name=f"{name}_mime"),
            path("<uuid:id>/act/", self.admin_site.admin_view(self.act_view), name=f"{name}_act"),
            path("causes/", self.admin_site.admin_view(self.causes_view), name=f"{name}_causes"),
            path("bulk/", self.admin_site.admin_view(self.bulk_view), name=f"{name}_bulk"),
            *super().get_urls(),
        ]
