"""Actions of the list of orders that export or erase a customer's data."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse

from orders.models import Order
from orders.privacy import erasure, person_export
from orders.privacy.persons import count_person
from outbox.admin.shared.acts import record_act
from outbox.database.postgres.connection import PoolerFound
from outbox.privacy import ERASED_ADDRESS, address_hash
from outbox.retention.partitions.locks import AlreadyRunning

#: A message names at most so many archives.
SHOWN = 5
BUSY = "A rollover is running, or another erasure. Nothing was erased: ask again when it is done."
REFUSED = "The customer's data was not erased, or not all of it."


class PrivacyActions(admin.ModelAdmin[Order]):
    actions = ["export_person", "erase_person"]

    def has_export_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("orders.export_person")

    def has_erase_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("orders.erase_person")

    @admin.action(description="Export this customer's data", permissions=["export"])
    def export_person(self, request: HttpRequest, queryset: QuerySet[Order]) -> HttpResponse | None:
        """Answer with a JSON file of one customer's data without that of archives, which takes minutes."""
        if (email := self._one_address(request, queryset)) is None:
            return None
        document = person_export.export_person(email=email, report=_ignore, archives=False)
        left_out = len(document["archives_left_out"])
        self._record(request, queryset, email, "Exported the customer's data.", left_out=left_out)
        return JsonResponse(
            document,
            json_dumps_params={"indent": 2, "ensure_ascii": False},
            headers={"Content-Disposition": 'attachment; filename="customer.json"'},
        )

    @admin.action(description="Erase this customer's data", permissions=["erase"])
    def erase_person(self, request: HttpRequest, queryset: QuerySet[Order]) -> HttpResponse | None:
        if (email := self._one_address(request, queryset)) is None:
            return None
        if "confirmed" not in request.POST:
            context = {
                **self.admin_site.each_context(request),
                "title": "Erase a customer's data",
                "opts": self.opts,
                "email": email,
                "count": count_person(email=email),
                "selected": request.POST.getlist(ACTION_CHECKBOX_NAME)[:1],
                "checkbox": ACTION_CHECKBOX_NAME,
                "media": self.media,
            }
            return TemplateResponse(request, "admin/orders/order/erase.html", context)
        forced = "on" if "force" in request.POST else "off"
        try:
            done = erasure.erase_person(email=email, force=forced == "on", report=_ignore, wait=False)
        except AlreadyRunning as error:
            self._record(request, queryset, email, REFUSED, reason=type(error).__name__, force=forced)
            self.message_user(request, BUSY, messages.ERROR)
            return None
        except (erasure.InFlight, erasure.StillSending, PoolerFound) as error:
            # One that has to wait for a send has erased the rest.
            self._record(request, queryset, email, REFUSED, reason=type(error).__name__, force=forced)
            self.message_user(request, str(error), messages.ERROR)
            return None
        rows = ",".join(f"{table}:{count}" for table, count in sorted(done.counts.items()) if count)
        self._record(
            request, queryset, email, "Erased the customer's data.", force=forced, rows=rows or "none"
        )
        changed = ", ".join(f"{count} in {table}" for table, count in done.counts.items() if count)
        left = f" Archives to be rewritten next month: {_some(done.archives)}." if done.archives else ""
        self.message_user(request, f"Erased: {changed or 'nothing was left'}.{left}")
        return None

    def _one_address(self, request: HttpRequest, queryset: QuerySet[Order]) -> str | None:
        addresses = {email.lower() for email in queryset.order_by().values_list("email", flat=True)[:1000]}
        if len(addresses) == 1 and ERASED_ADDRESS not in addresses:
            return addresses.pop()
        text = "Select orders of one customer." if len(addresses) > 1 else "This customer is already erased."
        self.message_user(request, text, messages.WARNING)
        return None

    def _record(
        self, request: HttpRequest, queryset: QuerySet[Order], email: str, said: str, **codes: object
    ) -> None:
        for id in queryset.order_by("id").values_list("id", flat=True)[:1]:
            person = f"hash:{address_hash(email)}"
            record_act(request, model=Order, id=id, which=f"Order {id}", said=said, person=person, **codes)


def _ignore(step: str, **facts: object) -> None:
    """Report no progress: a request has no terminal."""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
