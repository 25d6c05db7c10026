"""The page that sends a copy of an ended e-mail, to a corrected address if wanted."""

from __future__ import annotations

import uuid

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse

from notifications.copies import NotCopied
from notifications.models import EmailNotification
from orders.corrections import send_copy
from orders.models import Order
from runtime.personal_data import AddressGiven, refuse_addresses
from web.admin.address_field import AddressField


class CopyForm(forms.Form):
    """The copy's address. `may_correct`: whether the user may correct the order's address, too."""

    recipient_email = AddressField(label="Send it to")
    update_order = forms.BooleanField(
        label="Correct the order's address, so that later e-mails go there, too", required=False
    )
    reason = forms.CharField(label="Reason, for the log (optional)", max_length=200, required=False)

    def __init__(self, *args: object, may_correct: bool, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if not may_correct:
            del self.fields["update_order"]

    def clean_reason(self) -> str:
        reason = str(self.cleaned_data["reason"])
        try:
            refuse_addresses(reason)
        except AddressGiven as error:
            raise ValidationError(str(error)) from error
        return reason


class CopyPage(admin.ModelAdmin[Order]):
    def copy_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Show the form. A POST sends a copy of the e-mail `id`."""
        user = request.user
        # The page shows the recipient.
        if not user.has_perms(
            ["notifications.view_emailnotification", "notifications.copy_emailnotification"]
        ):
            raise PermissionDenied
        email = get_object_or_404(EmailNotification.objects.defer("body", "body_text"), id=id)
        shops = Order.objects.filter(id=email.order_id).exclude(source="").exclude(email="")
        is_customers = email.shop_copy_of is None
        may_correct = is_customers and not shops.exists() and user.has_perm("orders.correct_address")
        posted = request.POST if request.method == "POST" else None
        initial = {"recipient_email": email.recipient_email, "update_order": True}
        form = CopyForm(posted, initial=initial, may_correct=may_correct)
        if posted is not None and form.is_valid():
            try:
                with transaction.atomic():
                    copy_id = _send(request, email, form.cleaned_data)
            except NotCopied as refusal:
                form.add_error(None, f"No copy is sent: {refusal}.")
            except (Order.DoesNotExist, EmailNotification.DoesNotExist) as error:
                raise Http404 from error
            else:
                self.message_user(request, "A copy is on its way.", messages.SUCCESS)
                page = reverse("admin:notifications_emailnotification_change", args=[copy_id])
                return HttpResponseRedirect(page)
        context = {
            **self.admin_site.each_context(request),
            "title": "Send a copy",
            "opts": EmailNotification._meta,
            "email": email,
            "form": form,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/orders/order/copy.html", context)


def _send(request: HttpRequest, email: EmailNotification, values: dict[str, object]) -> uuid.UUID:
    """Send the copy. Log the act for both e-mails, and for the order if its address was corrected."""
    address = str(values["recipient_email"])
    correct = bool(values.get("update_order")) and address != email.recipient_email
    copy_id = send_copy(notification_id=email.id, recipient_email=address, update_order=correct)
    reason = f" {values['reason']}".rstrip()
    _log(request, email, CHANGE, f"Copied: {copy_id}.{reason}")
    _log(request, EmailNotification(id=copy_id), ADDITION, f"Sent as a copy of {email.id}.{reason}")
    if correct:
        _log(request, Order(id=email.order_id), CHANGE, f"Corrected the address.{reason}")
    return copy_id


def _log(request: HttpRequest, row: models.Model, flag: int, message: str) -> None:
    name = "E-mail" if isinstance(row, EmailNotification) else "Order"
    LogEntry.objects.create(
        user_id=request.user.pk or 0,
        content_type=ContentType.objects.get_for_model(type(row)),
        object_id=str(row.pk),
        object_repr=f"{name} {row.pk}",
        action_flag=flag,
        change_message=message,
    )
