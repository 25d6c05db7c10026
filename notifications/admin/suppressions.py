"""The admin of suppressed addresses: search, add, lift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import SEARCH_VAR
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from notifications.models import Suppression
from notifications.providers.registry import declarations
from notifications.suppressions import suppression_of
from runtime.models import AuditRow
from runtime.personal_data import AddressGiven, address_hash, refuse_addresses
from web.admin.acts import record_act
from web.admin.address_field import AddressField
from web.admin.base import ChoiceFilter, EstimatingPaginator, ListAdmin, show_time
from web.admin.menu import MenuItem
from web.admin.rights import describe_missing

ADD, LIFT = "notifications.add_suppression", "notifications.lift_suppression"
LIFT_COMPLAINT = "notifications.lift_complaint"
#: So many suppressions are lifted at once.
MOST = 1_000


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


class LiftForm(forms.Form):
    reason = forms.CharField(
        label="Reason, for the log",
        max_length=200,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        error_messages={"required": "Say why. The audit log keeps it."},
    )

    def clean_reason(self) -> str:
        reason = " ".join(str(self.cleaned_data["reason"]).split())
        try:
            refuse_addresses(reason)
        except AddressGiven as error:
            raise forms.ValidationError(str(error)) from error
        return reason


@admin.register(Suppression)
class SuppressionAdmin(ListAdmin[Suppression]):
    """Suppressions hold for all shops. A bound user sees those that e-mails of their shops caused."""

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

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Say who may suppress and lift. Say of an address that another shop suppressed only that it is."""
        lacks = [right for right in (ADD, LIFT) if not request.user.has_perm(right)]
        context = {**(extra_context or {}), "lacks": [describe_missing(request, right) for right in lacks]}
        if (text := request.GET.get(SEARCH_VAR, "").strip()) and self.has_view_permission(request):
            row = suppression_of(text)
            is_shown = row is None or self.get_queryset(request).filter(id=row.id).exists()
            context["elsewhere"] = "" if is_shown else text
        return super().changelist_view(request, context)

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
        return request.user.has_perm(LIFT)

    @admin.action(description="Lift: send to these addresses again …", permissions=["lift"])
    def lift(self, request: HttpRequest, queryset: QuerySet[Suppression]) -> HttpResponse | None:
        """Ask for a reason, then delete up to `MOST` suppressions. What they stopped can be resent then."""
        rows, refused = list(queryset.order_by("id")[:MOST]), ""
        if not request.user.has_perm(LIFT_COMPLAINT):
            complaints = [row for row in rows if row.reason == Suppression.Reason.COMPLAINT]
            rows = [row for row in rows if row.reason != Suppression.Reason.COMPLAINT]
            if complaints:
                missing = describe_missing(request, LIFT_COMPLAINT)
                refused = f"{len(complaints)} after a complaint: left alone. {missing}"
        if not rows:
            self.message_user(request, f"Nothing was lifted. {refused}".rstrip(), messages.WARNING)
            return None
        form = LiftForm(request.POST if "reason" in request.POST else None)
        if not form.is_valid():
            return self._ask(request, rows, form, refused)
        with transaction.atomic():
            for row in rows:
                record_act(
                    request,
                    kind=self.audit_kind,
                    act=f"Lifted ({row.reason}).",
                    subject=str(row),
                    row=row,
                    reason=form.cleaned_data["reason"],
                )
            Suppression.objects.filter(id__in=[row.id for row in rows]).delete()
        lists = " ".join(f"{line}." for line in _own_lists(rows))
        said = f"{len(rows)} lifted. Their e-mails can be resent now. {refused}".rstrip()
        self.message_user(request, f"{said} {lists}".rstrip())
        return None

    def _ask(
        self, request: HttpRequest, rows: Sequence[Suppression], form: LiftForm, refused: str
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": "Lift suppressions",
            "opts": self.opts,
            "form": form,
            "counts": [
                (number, Suppression.Reason(reason).label)
                for reason, number in Counter(row.reason for row in rows).most_common()
            ],
            "refused": refused,
            "lists": _own_lists(rows),
            "selected": [row.id for row in rows],
            "checkbox": ACTION_CHECKBOX_NAME,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/notifications/suppression/lift.html", context)


def _own_lists(rows: Iterable[Suppression]) -> list[str]:
    """Say of each provider that gave a reason where its own list of addresses is cleared."""
    lists = {name: declaration.own_list for name, declaration in declarations().items()}
    return [
        f"{name} keeps a list of its own, and may refuse or drop e-mails to these addresses until you remove"
        f" them there, too: {lists.get(name) or 'ask its support'}"
        for name in sorted({row.provider for row in rows} - {""})
    ]
