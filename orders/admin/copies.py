"""The page that sends a copy of an ended e-mail, to a corrected address if wanted."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse

from notifications.content.copies import NotCopied
from notifications.log import act_on_email
from notifications.models import EmailNotification
from orders.admin.addresses import COPY_PERMISSION, ReasonForm
from orders.corrections import send_copy
from orders.models import Order
from runtime.audit import record
from runtime.models import AuditRow
from web.actors import user_actor
from web.admin.address_field import AddressField


class CopyForm(ReasonForm):
    """The copy's address. `may_correct`: whether the user may correct the order's address, too."""

    recipient_email = AddressField(label="Send it to")
    update_order = forms.BooleanField(
        label="Correct the order's address, so that later e-mails go there, too", required=False
    )
    field_order = ["recipient_email", "update_order", "reason"]

    def __init__(self, *args: object, may_correct: bool, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if not may_correct:
            del self.fields["update_order"]


class CopyPage(admin.ModelAdmin[Order]):
    models_of_ids: Mapping[str, type[models.Model]] = {"email_id": EmailNotification}

    def copy_view(self, request: HttpRequest, email_id: uuid.UUID) -> HttpResponse:
        """Show the form. A POST sends a copy of the e-mail."""
        user = request.user
        # The page shows the recipient.
        if not user.has_perms(["notifications.view_emailnotification", COPY_PERMISSION]):
            raise PermissionDenied
        email = get_object_or_404(EmailNotification.objects.defer("body", "body_text"), id=email_id)
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
            "order_address": Order.objects.filter(id=email.order_id).values_list("email", flat=True).first(),
            "form": form,
            "back": reverse("admin:notifications_emailnotification_change", args=[email_id]),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/orders/order/copy.html", context)


def _send(request: HttpRequest, email: EmailNotification, values: dict[str, object]) -> uuid.UUID:
    """Send the copy, and record it as one act, also if the order's address was corrected."""
    address = str(values["recipient_email"])
    correct = bool(values.get("update_order")) and address != email.recipient_email
    copy_id = send_copy(notification_id=email.id, recipient_email=address, update_order=correct)
    said = f"Copied as {copy_id}." + (" Corrected the order's address." if correct else "")
    act = act_on_email(email, kind=AuditRow.Kind.COPY, act=said, reason=str(values["reason"]))
    record(act, by=user_actor(request))
    return copy_id
