"""The page that shows the e-mails of an order with the texts of now, and can send them to the user."""

from __future__ import annotations

import uuid

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse

from notifications.admin.email_preview import framed
from notifications.content.profiles import find_profile
from notifications.content.render_files import RenderedEmail
from notifications.content.rendering import TemplateFailed, render_email
from notifications.services import send_preview
from notifications.test_emails import TooManyTestEmails, count_test_email
from orders.emails import language_of, preview_context
from orders.events import EMAILS
from orders.models import Order
from orders.parcels import shown_in_preview
from runtime.models import AuditRow
from runtime.personal_data import address_hash
from web.admin.acts import record_act
from web.admin.page_limits import TURNS, limit_page
from web.login.own_address import NotConfirmed, own_address


class TemplateForm(forms.Form):
    event = forms.ChoiceField(choices=[(name, name) for name in EMAILS])
    locale = forms.ChoiceField(choices=settings.LANGUAGES, label="Language")


class PreviewPages(admin.ModelAdmin[Order]):
    def preview_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Render an e-mail of the order with the texts of now. A POST sends it to the user."""
        is_read = request.method != "POST"
        return TURNS.answer(request, "preview", lambda: self._preview(request, id), is_newest_wanted=is_read)

    def _preview(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        order, form, email = self._rendered(request, id)
        if request.method == "POST" and email is not None:
            if not request.user.has_perm("notifications.copy_emailnotification"):
                raise PermissionDenied
            send_to_user(
                request,
                email=email,
                order_id=order.id,
                event_type=form.cleaned_data["event"],
                source=order.source,
                locale=form.cleaned_data["locale"],
                row=order,
                subject=f"order {order.id}",
            )
        context = {
            **self.admin_site.each_context(request),
            "title": f"E-mails of order {order}",
            "opts": self.opts,
            "order": order,
            "form": form,
            "email": email,
            "choice": form.cleaned_data if email else {},
            **_own_address(request),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/orders/order/emails.html", context)

    @limit_page("preview", is_newest_wanted=True)
    def preview_body(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Answer with the HTML part, which the page shows in a frame."""
        order, _, email = self._rendered(request, id)
        if email is None:
            raise Http404
        return framed(email.body_html, image=find_profile(order.source).logo_url)

    def _rendered(
        self, request: HttpRequest, id: uuid.UUID
    ) -> tuple[Order, TemplateForm, RenderedEmail | None]:
        if not self.has_view_permission(request):
            raise PermissionDenied
        order = get_object_or_404(Order, id=id)
        language = language_of(order)
        defaults = {"event": settings.NOTIFY_ON[0] if settings.NOTIFY_ON else EMAILS[0], "locale": language}
        params = request.POST if request.method == "POST" else request.GET
        form = TemplateForm({**defaults, **{key: params[key] for key in defaults if key in params}})
        if not form.is_valid():
            return order, form, None
        event, locale = form.cleaned_data["event"], form.cleaned_data["locale"]
        locale = order.locale if locale == language else locale  # such as de-AT
        try:
            profile = find_profile(order.source)
            shipment = shown_in_preview(event, order)
            context = preview_context(order=order, event_type=event, shipment=shipment)
            email = render_email(event_type=event, locale=locale, context=context, profile=profile)
            return order, form, email
        except TemplateFailed as error:
            form.add_error(None, f"{error}: {error.__cause__}")
            return order, form, None


def _own_address(request: HttpRequest) -> dict[str, str]:
    """Return the address of the user, or why an e-mail cannot be sent there."""
    try:
        return {"address": own_address(request.user)}
    except NotConfirmed as error:
        return {"why_no_address": str(error)}


def send_to_user(
    request: HttpRequest,
    *,
    email: RenderedEmail,
    order_id: uuid.UUID | None,
    event_type: str,
    source: str,
    locale: str,
    row: Model | None,
    subject: str,
) -> None:
    """Send a preview to the user's own address, record it, and say how it went.

    `source` is the shop's that sends it. `row` and `subject` name the page in the audit.
    """
    try:
        address = own_address(request.user)
        with count_test_email(request.user):
            refusal = send_preview(
                email=email,
                order_id=order_id or uuid.UUID(int=0),
                event_type=event_type,
                source=source,
                recipient_email=address,
            )
    except (NotConfirmed, TooManyTestEmails) as error:
        messages.error(request, str(error))
        return
    with transaction.atomic():
        record_act(
            request,
            kind=AuditRow.Kind.TEST_EMAIL,
            act="Sent a preview to their own address." if not refusal else "A preview was refused.",
            subject=subject,
            row=row,
            order_id=order_id,
            source=source,
            codes={"event": event_type, "locale": locale, "to": f"hash:{address_hash(address)}"},
        )
    if refusal:
        messages.error(request, f"The provider refused the e-mail: {refusal}")
    else:
        messages.success(request, f"Sent to {address}.")
