"""The list of connections, and the page of one: what to do in the shop, its trial, and going live."""

from __future__ import annotations

import datetime as dt
import json
import unicodedata
import uuid
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models.functions import Now
from django.forms.fields import InvalidJSONInput
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from notifications.models import CONTENT, EmailNotification
from orders.models import Order
from runtime.database.ids import parse_uuid
from runtime.database.transactions import after_commit
from runtime.models import AuditRow
from shop_connections import process
from shop_connections.clocks import clock_offset, describe_clock
from shop_connections.compare import repair, try_key
from shop_connections.encryption import KeyMissing, encrypt
from shop_connections.models import TRIAL, ConnectionPost, ConnectionPostQuerySet, ShopConnection
from shop_connections.platforms import PLATFORMS, platform_of
from shop_connections.services import (
    ShopRefusal,
    answer_parents,
    change_state,
    check_source,
    clean_address,
    make_secret,
    mark_of_secret,
    replace_secret,
    take_address,
)
from web.admin.base import (
    EstimatingPaginator,
    ListAdmin,
    answer_with_page,
    describe_distance,
    format_time,
    pill,
    show_time,
)
from web.admin.menu import MenuItem
from web.admin.tiles import bounded, count_each

State = ShopConnection.State
#: How many e-mails of the trial a page shows, and seconds between two refreshes of an open page.
SHOWN_EMAILS, REFRESH_SECONDS = 20, 5
#: How many missing orders, and reasons of unusable posts, a page names.
SHOWN_MISSING, SHOWN_REASONS = 50, 3
#: The form of `datetime-local`.
MINUTE = "%Y-%m-%dT%H:%M"
COLOURS = {State.WAITING: "pending", State.TRIAL: "processing", State.LIVE: "sent", State.OFF: "discarded"}
_PART = "admin/connections/shopconnection/_state.html"


class Statuses(forms.JSONField):
    """A JSON text that PostgreSQL can store and a page can show: without NUL and halves of characters."""

    def to_python(self, value: Any) -> Any:
        if not _is_text(read := super().to_python(value)):
            raise forms.ValidationError("A text has a character that cannot be stored, such as \\u0000.")
        return read

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what the page shows again: the typed text, if what it means cannot be shown."""
        read = super().bound_data(data, initial)
        return read if _is_text(read) else InvalidJSONInput(data)


def _is_text(value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return "\\u0000" not in text and not any(unicodedata.category(character) == "Cs" for character in text)


class ShopForm(forms.ModelForm[ShopConnection]):
    """The fields of a connection. Secrets go in, and never come out again."""

    new_api_key = forms.CharField(
        required=False,
        max_length=200,
        label="Key of the shop's API",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text="Optional: finds orders whose posts were lost. Empty keeps the stored one.",
    )
    new_api_secret = forms.CharField(
        required=False,
        max_length=200,
        label="Secret of the shop's API",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    class Meta:
        model = ShopConnection
        field_classes = {"statuses": Statuses}
        fields = ["source", "platform", "address", "statuses"]
        labels = {"source": "Name", "address": "Address of the shop", "statuses": "Statuses of plug-ins"}
        help_texts = {
            "source": "The shop's orders have it as their source, and it stays: my-shop.",
            "address": "Such as https://shop.example.com.",
            "statuses": "What a status means here, or an empty text to ignore it:"
            ' {"packed": "confirmed", "internal": ""}.',
        }

    def clean_source(self) -> str:
        source = str(self.cleaned_data["source"])
        if self.instance._state.adding:
            _check(check_source, source)
        return source

    def clean_address(self) -> str:
        return str(_check(clean_address, str(self.cleaned_data["address"])))

    def clean_statuses(self) -> dict[str, str]:
        statuses = self.cleaned_data["statuses"] or {}
        allowed = ["", *Order.Status.values]
        is_mapping = isinstance(statuses, dict) and all(value in allowed for value in statuses.values())
        if not is_mapping:
            raise forms.ValidationError(
                f"Each value must be one of {', '.join(Order.Status.values)}, or an empty text."
            )
        read = platform_of(self.instance).read_status
        if unknown := [word for word in statuses if not read(word)]:
            raise forms.ValidationError(f"{unknown[0]!r} is no status of the shop.")
        return {read(word): status for word, status in statuses.items()}

    def clean(self) -> dict[str, Any]:
        super().clean()  # has the name checked, which must be unique
        if bool(self.cleaned_data.get("new_api_key")) != bool(self.cleaned_data.get("new_api_secret")):
            self.add_error("new_api_secret", "Enter both the key and the secret, or neither.")
        elif self._has_another_host() and not self.cleaned_data.get("new_api_key"):
            self.add_error("new_api_key", "The stored key goes to no other host. Enter the key of this one.")
        if not settings.CONNECTION_KEY:
            raise forms.ValidationError(
                "Set CONNECTION_KEY for all processes first: it encrypts the secrets of connections."
            )
        return self.cleaned_data

    def _has_another_host(self) -> bool:
        """Return whether the stored key would go to another host than that for which it was entered."""
        if not self.instance.api_key or "address" not in self.cleaned_data:
            return False
        before, now = urlsplit(self.instance.address), urlsplit(self.cleaned_data["address"])
        return (before.scheme, before.netloc.lower()) != (now.scheme, now.netloc.lower())


def _check(check: Any, value: str) -> Any:
    try:
        return check(value)
    except ShopRefusal as refusal:
        raise forms.ValidationError(str(refusal)) from refusal


@admin.register(ShopConnection)
class ShopConnectionAdmin(ListAdmin[ShopConnection]):
    audit_kind = AuditRow.Kind.CONNECTION
    form = ShopForm
    paginator = EstimatingPaginator
    change_form_template = "admin/connections/shopconnection/change_form.html"
    menu = MenuItem(36, "Connections")
    empty_text = "Nothing here yet. Add a connection to take a shop's own webhooks."
    list_display = ["source", "platform", "shown_state", "last_post", "live_from"]
    ordering = ["source"]

    @admin.display(description="state", ordering="state")
    def shown_state(self, shop: ShopConnection) -> SafeString:
        return pill(COLOURS[State(shop.state)], shop.get_state_display())

    @admin.display(description="last post")
    def last_post(self, shop: ShopConnection) -> SafeString | str:
        return show_time(shop.last_post_at)

    @admin.display(description="live from")
    def live_from(self, shop: ShopConnection) -> SafeString | str:
        return show_time(shop.live_at)

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "connections_shopconnection_act"
        return [path("<uuid:id>/act/", view(self.act_view), name=name), *super().get_urls()]

    def get_readonly_fields(
        self, request: HttpRequest, obj: ShopConnection | None = None
    ) -> list[str] | tuple[str, ...]:
        return () if obj is None else ("source", "platform")

    def audited(self, row: ShopConnection) -> dict[str, Any]:
        return {"source": row.source}

    def has_delete_permission(self, request: HttpRequest, obj: ShopConnection | None = None) -> bool:
        return False  # one that is off stays for its orders

    def save_model(self, request: HttpRequest, obj: ShopConnection, form: Any, change: bool) -> None:
        """Write only what the form has, since a post or another person may change the rest meanwhile."""
        written = ["address", "statuses", "updated_at"]
        if key := form.cleaned_data["new_api_key"]:
            obj.api_key, obj.api_secret = encrypt(key), encrypt(form.cleaned_data["new_api_secret"])
            written += ["api_key", "api_secret"]
            after_commit(partial(_try_key, request, obj))  # a slow shop must not hold the transaction
        if not change:
            secret = make_secret(obj)
            obj.save()
            _show_secret(request, secret)
            return
        obj.updated_at = Now()
        obj.save(update_fields=written)

    def response_add(
        self, request: HttpRequest, obj: ShopConnection, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Go on with the page that says what to do in the shop, and shows the secret."""
        return self._with_secret(request, obj.id)

    def _with_secret(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        url = reverse("admin:connections_shopconnection_change", args=[id])
        return answer_with_page(
            request, url=url, view=lambda page: self.change_view(page, str(id), form_url=url)
        )

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show the page. For `?part=1`, answer only with the part that the page refreshes."""
        id = parse_uuid(object_id)
        unknown = ShopConnection.objects.filter(id=id).exclude(platform__in=PLATFORMS).first() if id else None
        if unknown is not None:
            messages.warning(request, f"This release does not know the platform of {unknown}.")
            return HttpResponseRedirect(reverse("admin:connections_shopconnection_changelist"))
        if "part" not in request.GET or id is None:
            return super().change_view(request, object_id, form_url, extra_context)
        shop = ShopConnection.objects.filter(id=id).first()
        if shop is None:
            raise Http404
        if not self.has_view_permission(request, shop):
            raise PermissionDenied
        return TemplateResponse(request, _PART, self._read(request, shop))

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: ShopConnection | None = None,
    ) -> HttpResponse:
        if obj is not None:
            context |= {"refresh_seconds": REFRESH_SECONDS, **self._read(request, obj)}
            context |= {
                "address": request.build_absolute_uri(reverse("connect", args=[obj.source])),
                "guide": f"admin/connections/shopconnection/_{obj.platform}.html",
                "turn_off": _to_turn_off(obj),
                "seen_secret": mark_of_secret(obj),
                "missing_orders": list(
                    ConnectionPost.objects.filter(source=obj.source)
                    .missing()
                    .order_by("id")
                    .defer("body")[:SHOWN_MISSING]
                ),
                **(_trial_emails(obj) if _may_view_emails(request) else {"emails": None}),
                "default_live_at": (timezone.now() + dt.timedelta(minutes=10)).strftime(MINUTE),
            }
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _read(self, request: HttpRequest, shop: ShopConnection) -> dict[str, Any]:
        """Return what the page says of the state of a connection."""
        posts = ConnectionPost.objects.filter(source=shop.source)
        last = posts.defer("body").exclude(done_at=None).exclude(reference="").order_by("-done_at").first()
        return {
            "original": shop,
            "pill": self.shown_state(shop),
            "last": last,
            "last_at": show_time(last.done_at) if last else "",
            "ago": describe_distance(last.received_at) if last else "",
            "is_future": bool(shop.live_at and shop.live_at > timezone.now()),
            "live_at": format_time(shop.live_at) if shop.live_at else "",
            "unusable": posts.unusable().count(),
            "reasons": _reasons(posts) if request.user.has_perm("connections.view_connectionpost") else [],
            "waiting": posts.waiting().count(),
            "is_readable": shop.is_readable(),
            "missing": posts.missing().count(),
            "checked_at": format_time(shop.checked_at) if shop.checked_at else "",
            "catching_up": shop.is_catching_up(timezone.now()),
            "foreign": process.list_foreign(shop),
            "clock": describe_clock(clock_offset(shop)),
            "may_change": self.has_change_permission(request, shop),
        }

    def act_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Go live, return to the trial, turn off, or make another secret, and return to the page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_change_permission(request):
            raise PermissionDenied
        shop = ShopConnection.objects.filter(id=id).first()
        action = request.POST.get("action", "")
        if shop is None:
            raise Http404
        try:
            with transaction.atomic():
                said = self._act(request, shop, action)
                self.log_change(request, shop, said)
        except (ShopRefusal, KeyMissing) as refusal:
            messages.error(request, f"Nothing was changed. {refusal}")
        else:
            messages.success(request, said)
            if action == "secret":
                return self._with_secret(request, id)
        return HttpResponseRedirect(reverse("admin:connections_shopconnection_change", args=[id]))

    def _act(self, request: HttpRequest, shop: ShopConnection, action: str) -> str:
        if action == "secret":
            _show_secret(request, replace_secret(id=shop.id, seen=request.POST.get("seen", "")))
            return "Made another secret."
        if action == "repair":
            if shop.state == State.OFF:
                raise ShopRefusal("The connection is off, and nothing of it is processed.")
            count = repair(source=shop.source)
            after_commit(process.wake)
            return f"Process {count} missing orders."
        if action in ("own", "vendors"):
            answer_parents(id=shop.id, are=action)
            vendors = "vendors' parts, of which only parcels and refunds are told"
            return f"Orders below another one are {'orders of their own' if action == 'own' else vendors}."
        if action in ("address", "copy"):
            address = request.POST.get("address", "")
            count = take_address(id=shop.id, address=address, is_copy=action == "copy")
            after_commit(process.wake)
            how = "are left out, as those of a copy" if action == "copy" else "are the shop's, too"
            return f"Posts from {address} {how}. Process {count} of them."
        if action not in (State.LIVE, State.TRIAL, State.OFF):
            raise Http404
        changed = change_state(id=shop.id, to=action, live_at=_time(request.POST.get("live_at", "")))
        if changed.live_at is not None:
            return f"Live from {format_time(changed.live_at)} UTC."
        return {State.OFF: "Turned off."}.get(State(changed.state), "Back in its trial.")


def _try_key(request: HttpRequest, shop: ShopConnection) -> None:
    """Say if the shop refuses its new key. The key stays, because the shop may only be down."""
    if problem := try_key(shop):
        messages.warning(request, f"The API key is saved, but the shop's orders cannot be read. {problem}")


def _show_secret(request: HttpRequest, secret: str) -> None:
    messages.warning(request, f"Copy the webhook's secret now, because it is shown only once: {secret}")


def _time(text: str) -> dt.datetime | None:
    """Return the time of a form in UTC, or None if it is empty. Raise `ShopRefusal`."""
    try:
        return dt.datetime.strptime(text, MINUTE).replace(tzinfo=dt.UTC) if text else None
    except ValueError as error:
        raise ShopRefusal("The time must be like 2026-12-01T09:30.") from error


def _reasons(posts: ConnectionPostQuerySet) -> list[str]:
    """Return why the newest posts cannot be used, each reason once."""
    newest = posts.unusable().order_by("-id").values_list("reason", flat=True)[:SHOWN_MISSING]
    return list(dict.fromkeys(newest))[:SHOWN_REASONS]


def _may_view_emails(request: HttpRequest) -> bool:
    return request.user.has_perm("notifications.view_emailnotification")


def _trial_emails(shop: ShopConnection) -> dict[str, Any]:
    """Return the newest e-mails that were written and not sent, and of how many if there are more."""
    rows = EmailNotification.objects.filter(
        source=shop.source, shop_copy_of=None, status=TRIAL.status, ended_by=TRIAL.ended_by
    ).defer(*CONTENT[1:])
    (count,) = count_each([rows])
    shown = list(rows.order_by("-id")[:SHOWN_EMAILS])
    return {"emails": shown, "emails_of": bounded(count) if count > len(shown) else ""}


def _to_turn_off(shop: ShopConnection) -> list[tuple[str, str]]:
    """Return the shop's own e-mails that ours replace, each with the first event of ours."""
    named: dict[str, str] = {}
    for event in settings.NOTIFY_ON:
        if own := platform_of(shop).platform_emails.get(event):
            named[own] = ", ".join(filter(None, (named.get(own), event)))
    return list(named.items())
