"""The admin of suppressed addresses: search, add, lift."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from notifications.models import Suppression
from notifications.suppressions import suppression_of
from runtime.models import AuditRow
from runtime.personal_data import address_hash
from web.admin.address_field import AddressField
from web.admin.base import ChoiceFilter, EstimatingPaginator, ListAdmin, show_time
from web.admin.menu import MenuItem


class ReasonFilter(ChoiceFilter):
    title, parameter_name = "reason", "reason"

    def choices_of(self) -> Iterable[str]:
        return Suppression.Reason.values


class SuppressionForm(forms.ModelForm[Suppression]):
    address = AddressField(help_text="Only a keyed hash of the address is stored.")

    class Meta:
        model = Suppression
        fields = ["reason"]

    def clean_address(self) -> str:
        address: str = self.cleaned_data["address"]
        if suppression_of(address):
            raise forms.ValidationError("This address is suppressed already.")
        return address


@admin.register(Suppression)
class SuppressionAdmin(ListAdmin[Suppression]):
    audit_kind = AuditRow.Kind.SUPPRESSION
    form = SuppressionForm
    paginator = EstimatingPaginator
    show_full_result_count = False
    menu = MenuItem(28, "Suppressions")
    empty_text = "Nothing here yet. A permanent bounce, a complaint or a person adds an address."
    list_display = ["short", "reason", "provider", "email", "since"]
    list_filter = [ReasonFilter]
    search_fields = ["address_hash"]
    search_help_text = "A whole address, in any case. The search compares its hash."
    ordering = ["-id"]
    actions = ["lift"]

    @admin.display(description="hash of the address")
    def short(self, row: Suppression) -> str:
        return f"{row.address_hash[:12]}…"

    @admin.display(description="because of")
    def email(self, row: Suppression) -> SafeString | str:
        if row.notification_id is None:
            return "–"
        url = reverse("admin:notifications_emailnotification_change", args=[row.notification_id])
        return format_html('<a href="{}">e-mail</a>', url)

    @admin.display(description="since")
    def since(self, row: Suppression) -> SafeString | str:
        return show_time(row.created_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Suppression], search_term: str
    ) -> tuple[QuerySet[Suppression], bool]:
        text = search_term.strip()
        return (queryset.filter(address_hash=address_hash(text)) if text else queryset), False

    def save_model(self, request: HttpRequest, obj: Suppression, form: Any, change: bool) -> None:
        obj.address_hash = address_hash(form.cleaned_data["address"])
        super().save_model(request, obj, form, change)

    def has_change_permission(self, request: HttpRequest, obj: Suppression | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Suppression | None = None) -> bool:
        return False

    def has_lift_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications.lift_suppression")

    @admin.action(description="Lift: send to these addresses again", permissions=["lift"])
    def lift(self, request: HttpRequest, queryset: QuerySet[Suppression]) -> None:
        """Delete up to 1,000 suppressions. The e-mails that they stopped can be resent afterwards."""
        with transaction.atomic():
            rows = list(queryset.order_by("id").select_for_update()[:1000])
            for row in rows:
                self.log_change(request, row, f"Lifted ({row.reason}).")
            Suppression.objects.filter(id__in=[row.id for row in rows]).delete()
        said = f"{len(rows)} lifted. Their e-mails can be resent now."
        if providers := sorted({row.provider for row in rows} - {""}):
            said += (
                f" A provider keeps a list of its own: remove the addresses also at {', '.join(providers)},"
                " which may otherwise refuse or drop them."
            )
        self.message_user(request, said)
