"""The page that corrects an order's address, and what it shares with that of a copy."""

from __future__ import annotations

import uuid

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import reverse

from notifications.content.copies import NotCopied
from notifications.models import EmailNotification
from orders.corrections import correct_address, find_last_email
from orders.models import Order
from orders.transitions import ExternallyOwned
from runtime.audit import record
from runtime.models import AuditRow
from runtime.personal_data import ERASED_ADDRESS, AddressGiven, refuse_addresses
from web.actors import user_actor
from web.admin.address_field import AddressField

COPY_PERMISSION = "notifications.copy_emailnotification"


class ReasonForm(forms.Form):
    """A form whose last field is a reason for the log."""

    reason = forms.CharField(label="Reason, for the log (optional)", max_length=200, required=False)
    field_order: list[str] | None = None

    def clean_reason(self) -> str:
        reason = str(self.cleaned_data["reason"])
        try:
            refuse_addresses(reason)
        except AddressGiven as error:
            raise ValidationError(str(error)) from error
        return reason


class AddressForm(ReasonForm):
    """The order's new address. Without a `last` e-mail that may be copied, it offers no copy."""

    email = AddressField(label="New address")
    send_copy = forms.BooleanField(required=False)
    field_order = ["email", "send_copy", "reason"]

    def __init__(self, *args: object, last: EmailNotification | None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if last is None:
            del self.fields["send_copy"]
        else:
            self.fields["send_copy"].label = f"Send a copy of the last e-mail there, “{last.subject}”"


class AddressPage(admin.ModelAdmin[Order]):
    def address_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Show the form. A POST corrects the address of the order `id`, and sends a copy if ticked."""
        order = get_object_or_404(Order, id=id)
        if not (self.has_view_permission(request, order) and may_correct(request, order)):
            raise PermissionDenied
        may_copy = bool(order.email) and request.user.has_perm(COPY_PERMISSION)
        last = find_last_email(order_id=id) if may_copy else None
        posted = request.POST if request.method == "POST" else None
        form = AddressForm(posted, initial={"email": order.email, "send_copy": True}, last=last)
        if posted is not None and form.is_valid():
            try:
                copy_id = _correct(request, order, form.cleaned_data)
            except (NotCopied, ExternallyOwned) as refusal:
                form.add_error(None, f"Nothing was changed: {refusal}.")
            else:
                sent = " A copy is on its way." if copy_id else ""
                messages.success(request, f"The address is corrected.{sent}")
                return redirect("admin:orders_order_change", id)
        context = {
            **self.admin_site.each_context(request),
            "title": "Correct the address",
            "opts": self.opts,
            "order": order,
            "form": form,
            "back": reverse("admin:orders_order_change", args=[id]),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/orders/order/address.html", context)


def may_correct(request: HttpRequest, order: Order) -> bool:
    """Return whether the user may correct the address. Another system corrects its own orders' addresses."""
    is_elsewhere = bool(order.source and order.email) or order.email == ERASED_ADDRESS
    return not is_elsewhere and request.user.has_perm("orders.correct_address")


def _correct(request: HttpRequest, order: Order, values: dict[str, object]) -> uuid.UUID | None:
    with transaction.atomic():
        copy_id = correct_address(
            order_id=order.id, email=str(values["email"]), is_copy_wanted=bool(values.get("send_copy"))
        )
        act = "Corrected the address."
        if copy_id:
            act += f" Copied the last e-mail as {copy_id}."
        reason = str(values["reason"])
        record(
            act_on_order(order, kind=AuditRow.Kind.ADDRESS, act=act, reason=reason), by=user_actor(request)
        )
    return copy_id


def act_on_order(order: Order, *, kind: AuditRow.Kind, act: str, reason: str = "") -> AuditRow:
    """Return the audit row of an act on an order."""
    return AuditRow(
        kind=kind,
        act=act,
        reason=reason,
        source=order.source,
        order_id=order.id,
        subject_type=Order._meta.label_lower,
        subject_id=str(order.id),
        subject=f"order {order.id}",
    )
