"""The form on an order's page that lifts the suppression of an e-mail's address, and resends the e-mail."""

from __future__ import annotations

import uuid

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import reverse

from notifications.admin.email_state import may_lift
from notifications.bulk_actions import RESEND
from notifications.log import act_on_email
from notifications.models import CONTENT, EmailNotification, Suppression
from orders.models import Order
from runtime.audit import record
from runtime.database.ids import parse_uuid
from runtime.models import AuditRow
from runtime.personal_data import AddressGiven, address_hash, refuse_addresses
from web.actors import user_actor


class LiftPage(admin.ModelAdmin[Order]):
    def lift_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Lift the suppression of the posted `email`, and resend it, both with the posted `reason`."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not request.user.has_perms(["notifications.view_emailnotification", RESEND.permission]):
            raise PermissionDenied
        if (email_id := parse_uuid(request.POST.get("email", ""))) is None:
            raise Http404
        emails = EmailNotification.objects.defer(*CONTENT[1:]).filter(id=email_id, order_id=id)
        email = emails.first()
        if email is None or not self.get_queryset(request).filter(id=id).exists():
            raise Http404
        reason = " ".join(request.POST.get("reason", "")[:200].split())
        page = HttpResponseRedirect(reverse("admin:orders_order_change", args=[id]))
        try:
            refuse_addresses(reason)
        except AddressGiven as error:
            messages.error(request, f"Nothing was changed. {error}")
            return page
        if not reason:
            messages.error(request, "Nothing was changed. Say why: the log keeps it.")
            return page
        with transaction.atomic():
            rows = Suppression.objects.filter(address_hash=address_hash(email.recipient_email))
            row = rows.select_for_update().first()
            if row is None:
                messages.warning(request, "The address is not suppressed any more. Resend the e-mail.")
                return page
            if not may_lift(request, row):
                raise PermissionDenied
            act = act_on_email(
                email, kind=AuditRow.Kind.SUPPRESSION, act=f"Lifted ({row.reason}).", reason=reason
            )
            row.delete()
            result = RESEND.change_one([email.id])
            for resent in result.acts:
                resent.reason = reason
            record(act, *result.acts, by=user_actor(request))
        said = f"The address is not suppressed any more. “{email.subject}”"
        for refusal in result.refusals:
            messages.warning(request, f"{said} is not {RESEND.will_be}: {refusal}.")
        if result.acts:
            own_list = f" {row.provider} may keep a list of its own." if row.provider else ""
            messages.success(request, f"{said} is {RESEND.will_be}.{own_list}")
        return page
