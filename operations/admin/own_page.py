"""A user's own page: who they are here, and the address to which test e-mails go."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode

from notifications.services import send_unsaved
from notifications.test_emails import TooManyTestEmails, count_test_email
from runtime.addresses import NotAnAddress, read_address
from runtime.models import AuditRow
from runtime.personal_data import address_hash
from web.actors import user_actor
from web.admin.acts import record_act
from web.admin.page_limits import TURNS
from web.login.own_address import LINK_HOURS, BadLink, NotConfirmed, open_link, own_address, sign_link


def own_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the page. A POST sends a link to an address, and `?link=` opens it."""
    if request.method == "POST":
        return TURNS.answer(request, "link", lambda: _send(site, request))
    if "link" in request.GET:
        try:
            address = open_link(request.user, request.GET["link"], by=user_actor(request))
        except BadLink as error:
            messages.error(request, str(error))
        else:
            messages.success(request, f"Test e-mails go to {address} from now on.")
        return HttpResponseRedirect(request.path)
    return _show(site, request)


def _send(site: AdminSite, request: HttpRequest) -> HttpResponse:
    typed, user = request.POST.get("address", "").strip(), request.user
    try:
        address = read_address(typed)
        with count_test_email(user):
            refusal = _send_link(request, address)
    except (NotAnAddress, TooManyTestEmails) as error:
        return _show(site, request, typed=typed, mistake=str(error))
    with transaction.atomic():
        record_act(
            request,
            kind=AuditRow.Kind.TEST_EMAIL,
            act="Sent a link to an address of their own." if not refusal else "A link was refused.",
            subject=f"user {user.pk}",
            codes={"to": f"hash:{address_hash(address)}"},
        )
    if refusal:
        return _show(site, request, typed=typed, mistake=f"The provider refused the e-mail: {refusal}")
    said = f"A link was sent to {address}. Open it in this browser within {LINK_HOURS} hours."
    messages.success(request, said)
    return HttpResponseRedirect(request.path)


def _send_link(request: HttpRequest, address: str) -> str:
    """Send the link, and return the provider's error, or ""."""
    query = urlencode({"link": sign_link(request.user, address)})
    context = {
        "name": request.user.get_username(),
        "host": request.get_host(),
        "url": request.build_absolute_uri(f"{reverse('admin:own_page')}?{query}"),
        "hours": LINK_HOURS,
    }
    return send_unsaved(
        subject=f"Confirm your address for orderpost at {request.get_host()}",
        html=render_to_string("admin/operations/own_address_email.html", context),
        text=render_to_string("admin/operations/own_address_email.txt", context),
        order_id=uuid.UUID(int=0),
        event_type="own.address",
        source="",
        recipient_email=address,
    )


def _show(site: AdminSite, request: HttpRequest, *, typed: str = "", mistake: str = "") -> HttpResponse:
    try:
        address = own_address(request.user)
    except NotConfirmed:
        address = ""
        typed = typed or getattr(request.user, "email", "")
    context = {
        **site.each_context(request),
        "title": "My account",
        "address": address,
        "typed": typed,
        "mistake": mistake,
    }
    return TemplateResponse(request, "admin/operations/own_page.html", context)
