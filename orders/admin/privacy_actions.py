"""Actions of the list of orders that start jobs to export or erase a customer's data."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from orders.models import Order
from orders.privacy import jobs
from orders.privacy.erasure import NotFinished, check_not_in_flight
from runtime.personal_data import ERASED_ADDRESS
from web.actors import user_actor
from web.admin.rights import describe_missing, shops_of


class PrivacyActions(admin.ModelAdmin[Order]):
    actions = ["export_person", "erase_person"]

    def has_export_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("orders.export_person")

    def has_erase_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("orders.erase_person")

    @admin.action(description="Export this customer's data", permissions=["export"])
    def export_person(self, request: HttpRequest, queryset: QuerySet[Order]) -> HttpResponse | None:
        assert request.user.is_authenticated
        if (email := self._one_address(request, queryset)) is None:
            return None
        if "confirmed" not in request.POST:
            return self._ask(request, "export_person", "Export a customer's data", email)
        job = jobs.start_export(
            email=email, by=user_actor(request), user=request.user, order_id=_first_id(queryset)
        )
        return HttpResponseRedirect(reverse("admin:runtime_bulkjob_change", args=[job.id]))

    @admin.action(description="Erase this customer's data", permissions=["erase"])
    def erase_person(self, request: HttpRequest, queryset: QuerySet[Order]) -> HttpResponse | None:
        assert request.user.is_authenticated
        if (email := self._one_address(request, queryset)) is None:
            return None
        is_forced, refusal = "force" in request.POST, ""
        try:
            if not is_forced:
                check_not_in_flight(email)
        except NotFinished as error:
            refusal = str(error)
        if refusal or "confirmed" not in request.POST:
            return self._ask(request, "erase_person", "Erase a customer's data", email, refusal=refusal)
        job = jobs.start_erasure(
            email=email,
            force=is_forced,
            by=user_actor(request),
            user=request.user,
            order_id=_first_id(queryset),
        )
        return HttpResponseRedirect(reverse("admin:runtime_bulkjob_change", args=[job.id]))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Say to a bound user who can erase a person, which reaches over all shops."""
        is_bound = not shops_of(request).is_unbound and request.user.has_perm(jobs.EXPORT)
        erasures = describe_missing(request, jobs.ERASE) if is_bound else ""
        return super().changelist_view(request, {**(extra_context or {}), "note": erasures})

    def _ask(
        self, request: HttpRequest, action: str, title: str, email: str, *, refusal: str = ""
    ) -> HttpResponse:
        """Ask for a confirmation. The form posts the action again."""
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "action": action,
            "email": email,
            "refusal": refusal,
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME)[:1],
            "checkbox": ACTION_CHECKBOX_NAME,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/orders/order/person.html", context)

    def _one_address(self, request: HttpRequest, queryset: QuerySet[Order]) -> str | None:
        addresses = {email.lower() for email in queryset.order_by().values_list("email", flat=True)[:1000]}
        if len(addresses) == 1 and not addresses & {"", ERASED_ADDRESS}:
            return addresses.pop()
        if len(addresses) > 1:
            text = "Select orders of one customer."
        elif "" in addresses:
            text = "This order has no address. Select another order of its customer."
        else:
            text = "This customer is already erased."
        self.message_user(request, text, messages.WARNING)
        return None


def _first_id(orders: QuerySet[Order]) -> uuid.UUID | None:
    """Return the id of one of the orders, for the audit."""
    return orders.order_by("id").values_list("id", flat=True).first()
