"""The list of connections, and the page of one: what to do in the shop, its trial, and going live."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from runtime.database.ids import parse_uuid
from runtime.models import AuditRow
from shop_connections.admin.buttons import ACTS, STEP_ACTS, make_another_secret, save_new_key, try_new_key
from shop_connections.admin.live import go_live, read_live_page
from shop_connections.admin.page import COLOURS, read_page
from shop_connections.encryption import KeyMissing, decrypt
from shop_connections.models import ShopConnection
from shop_connections.platforms import PLATFORMS, platform_of
from shop_connections.services import (
    ShopRefusal,
    change_address,
    check_source,
    clean_address,
    make_secret,
)
from web.admin.base import EstimatingPaginator, ListAdmin, RefreshedPage, answer_with_page, pill, show_time
from web.admin.menu import MenuItem

State = ShopConnection.State
_LIVE = "admin/connections/shopconnection/live.html"


class ShopForm(forms.ModelForm[ShopConnection]):
    """The fields of a connection that a person types."""

    class Meta:
        model = ShopConnection
        fields = ["source", "platform", "address"]
        labels = {"source": "Name", "address": "Address of the shop"}
        help_texts = {
            "source": "A short name of your choice, such as my-shop. It stays: the shop's orders have it.",
            "address": "Such as https://shop.example.com.",
        }

    def clean_source(self) -> str:
        source = str(self.cleaned_data["source"])
        if self.instance._state.adding:
            _check(check_source, source)
        return source

    def clean_address(self) -> str:
        return str(_check(clean_address, str(self.cleaned_data["address"])))

    def clean(self) -> dict[str, Any]:
        super().clean()  # has the name checked, which must be unique
        if not settings.CONNECTION_KEY:
            raise forms.ValidationError(
                "Set CONNECTION_KEY for all processes first: it encrypts the secrets of connections."
            )
        return self.cleaned_data


def _check(check: Any, value: str) -> Any:
    try:
        return check(value)
    except ShopRefusal as refusal:
        raise forms.ValidationError(str(refusal)) from refusal


@admin.register(ShopConnection)
class ShopConnectionAdmin(RefreshedPage[ShopConnection], ListAdmin[ShopConnection]):
    part_template = "admin/connections/shopconnection/_page.html"
    audit_kind = AuditRow.Kind.CONNECTION
    form = ShopForm
    paginator = EstimatingPaginator
    change_form_template = "admin/connections/shopconnection/change_form.html"
    menu = MenuItem(36, "Connections")
    empty_text = "Nothing here yet. Add a connection to take a shop's own webhooks."
    list_display = ["source", "platform", "shown_state", "last_post", "live_from"]
    ordering = ["source"]

    @admin.display(description="state", ordering="state")
    def shown_state(self, shop: ShopConnection) -> SafeString:
        return pill(COLOURS[State(shop.state)], shop.get_state_display())

    @admin.display(description="last post")
    def last_post(self, shop: ShopConnection) -> SafeString | str:
        return show_time(shop.last_post_at)

    @admin.display(description="live from")
    def live_from(self, shop: ShopConnection) -> SafeString | str:
        return show_time(shop.live_at)

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "connections_shopconnection"
        return [
            path("<uuid:id>/act/", view(self.act_view), name=f"{name}_act"),
            path("<uuid:id>/live/", view(self.live_view), name=f"{name}_live"),
            *super().get_urls(),
        ]

    def get_readonly_fields(
        self, request: HttpRequest, obj: ShopConnection | None = None
    ) -> list[str] | tuple[str, ...]:
        return () if obj is None else ("source", "platform")

    def audited(self, row: ShopConnection) -> dict[str, Any]:
        return {"source": row.source}

    def has_delete_permission(self, request: HttpRequest, obj: ShopConnection | None = None) -> bool:
        return False  # one that is off stays for its orders

    def save_model(self, request: HttpRequest, obj: ShopConnection, form: Any, change: bool) -> None:
        """Write only the address, since a post or another person may change the rest meanwhile."""
        if not change:
            make_secret(obj)
            obj.save()
            return
        if change_address(id=obj.id, address=obj.address):
            said = "The stored key goes to no other host, so it was forgotten."
            messages.warning(request, f"{said} For this one, {platform_of(obj).setup.authorize}.")

    def response_add(
        self, request: HttpRequest, obj: ShopConnection, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Go on with the page that says what to do in the shop, and shows the secret."""
        return self._with_secret(request, obj)

    def _with_secret(self, request: HttpRequest, shop: ShopConnection) -> HttpResponse:
        """Answer with the page, which shows a new secret.

        A person who may add a connection, and not view it, finds the secret in a message.
        """
        secret = decrypt(shop.secret)
        if not self.has_view_permission(request):
            address = request.build_absolute_uri(reverse("connect", args=[shop.source]))
            said, copied = platform_of(shop).setup.show_secret(address, secret)
            code = format_html('<code data-copy="the secret">{}</code>', copied)
            messages.warning(request, format_html("{} {}", said, code))
        url = reverse("admin:connections_shopconnection_change", args=[shop.id])
        shown = {"new_secret": secret}
        return answer_with_page(
            request,
            url=url,
            view=lambda page: self.change_view(page, str(shop.id), form_url=url, extra_context=shown),
        )

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        id = parse_uuid(object_id)
        unknown = ShopConnection.objects.filter(id=id).exclude(platform__in=PLATFORMS).first() if id else None
        if unknown is not None:
            messages.warning(request, f"This release does not know the platform of {unknown}.")
            return HttpResponseRedirect(reverse("admin:connections_shopconnection_changelist"))
        return super().change_view(request, object_id, form_url, extra_context)

    def read_part(self, request: HttpRequest, shop: ShopConnection) -> dict[str, Any]:
        return read_page(request, shop)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: ShopConnection | None = None,
    ) -> HttpResponse:
        if obj is not None:
            context |= read_page(request, obj, new_secret=context.get("new_secret", ""))
        return super().render_change_form(request, context, add, change, form_url, obj)

    def live_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Ask, before a connection goes live, for all that a person has to know and to choose."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        shop = ShopConnection.objects.filter(id=id, platform__in=PLATFORMS).first()
        if shop is None:
            raise Http404
        if request.method == "POST":
            try:
                with transaction.atomic():
                    said = go_live(request, shop)
                    self.log_change(request, shop, said)
            except ShopRefusal as refusal:
                messages.error(request, f"Nothing was changed. {refusal}")
            else:
                messages.success(request, said)
                return HttpResponseRedirect(reverse("admin:connections_shopconnection_change", args=[id]))
        context = {
            **self.admin_site.each_context(request),
            "title": f"Go live: {shop}",
            "opts": self.opts,
            **read_live_page(request, shop),
        }
        return TemplateResponse(request, _LIVE, context)

    def act_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Do what a button of the page says, and return to the page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_change_permission(request):
            raise PermissionDenied
        shop = ShopConnection.objects.filter(id=id, platform__in=PLATFORMS).first()
        name = request.POST.get("action", "")
        act = ACTS.get(name)
        if shop is None or act is None or (name in STEP_ACTS and name not in platform_of(shop).setup.acts):
            raise Http404
        try:
            with transaction.atomic():
                said = act(request, shop)
                self.log_change(request, shop, said)
        except (ShopRefusal, KeyMissing) as refusal:
            messages.error(request, f"Nothing was changed. {refusal}")
        else:
            if act is save_new_key:
                try_new_key(request, ShopConnection.objects.get(id=id))  # says that it is saved
            else:
                messages.success(request, said)
            if act is make_another_secret:
                return self._with_secret(request, ShopConnection.objects.get(id=id))
        return HttpResponseRedirect(reverse("admin:connections_shopconnection_change", args=[id]))
