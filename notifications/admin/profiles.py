"""The admin of mail profiles, with a preview of what the form has."""

from __future__ import annotations

import uuid
from typing import Any, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from notifications.admin.email_preview import framed
from notifications.content import sample_orders
from notifications.content.profiles import profile_of
from notifications.content.rendering import render_email
from notifications.content.template_files import event_types
from notifications.models import MailProfile
from notifications.profile_form import COLUMNS, ProfileForm, account_fields, as_document, warn_of_sender
from notifications.profile_history import NotPutBack, history_of, put_back, record_profile
from notifications.provider_tests import default_event
from runtime.database.ids import new_id, parse_uuid
from runtime.models import AuditRow
from web.actors import user_actor
from web.admin.base import EstimatingPaginator, ListAdmin
from web.admin.menu import MenuItem
from web.admin.page_limits import limit_page
from web.admin.rights import shops_of

#: The history of a profile shows so many changes, the newest.
SHOWN_CHANGES = 200


@admin.register(MailProfile)
class MailProfileAdmin(ListAdmin[MailProfile]):
    form = ProfileForm
    paginator = EstimatingPaginator
    change_form_template = "admin/notifications/mailprofile/change_form.html"
    menu = MenuItem(35, "Profiles")
    empty_text = "Nothing here yet. All e-mails have the sender and the shop of the settings."
    list_display = ["__str__", "shop_name", "from_email", "copy_to", "tint"]
    ordering = ["source"]
    fieldsets = [
        (None, {"fields": COLUMNS}),
        ("Accounts of the providers", {"fields": [name for name, _, _ in account_fields()]}),
    ]

    @admin.display(description="colour")
    def tint(self, row: MailProfile) -> SafeString | str:
        return (
            format_html('<span style="color:{}">■</span> {}', row.colour, row.colour) if row.colour else "–"
        )

    def get_urls(self) -> list[URLPattern]:
        name = "notifications_mailprofile"
        preview = self.admin_site.admin_view(self.preview_view)
        return [
            path("preview/", preview, name=f"{name}_preview_new"),
            path("<uuid:id>/preview/", preview, name=f"{name}_preview"),
            *super().get_urls(),
        ]

    def get_form(
        self, request: HttpRequest, obj: MailProfile | None = None, change: bool = False, **kwargs: Any
    ) -> type[ProfileForm]:
        """Let the form know the shops to which the user is bound."""
        form = cast(type[ProfileForm], super().get_form(request, obj, change, **kwargs))
        form.shops = shops_of(request)  # Django makes a class for each request
        return form

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> MailProfile | None:
        """Lock the row before a change: the second of two at the same moment sees the first."""
        profile = super().get_object(request, object_id, from_field)
        if profile is None or request.method != "POST":
            return profile
        return MailProfile.objects.select_for_update().filter(id=profile.id).first()

    def save_model(self, request: HttpRequest, obj: MailProfile, form: Any, change: bool) -> None:
        """Save the profile, and record from what to what it changed."""
        stored = MailProfile.objects.filter(id=obj.id).first()
        obj.updated_at = Now()
        super().save_model(request, obj, form, change)
        record_profile(
            obj,
            before=as_document(stored) if stored else None,
            act="Changed." if stored else "Added.",
            by=user_actor(request),
        )
        if "from_email" in form.changed_data and (warning := warn_of_sender(obj.from_email)):
            messages.warning(request, warning)
        if form.logo_warning:
            messages.warning(request, f"{form.logo_warning} Look whether the preview shows it.")

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Leave it to `save_model`, which knows the values of before."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Leave it to `save_model`, which knows the values of before."""

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[MailProfile]) -> Any:
        for row in queryset:
            by, before = user_actor(request), as_document(row)
            record_profile(row, before=before, act="Deleted.", by=by, is_deleted=True)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List the changes of a profile. A POST undoes one and all later ones."""
        profile = get_object_or_404(MailProfile, id=parse_uuid(object_id))
        if not self.has_view_permission(request, profile):
            raise PermissionDenied
        may_change = self.has_change_permission(request, profile)
        if request.method == "POST":
            if not may_change:
                raise PermissionDenied
            self._put_back(request, profile)
            return HttpResponseRedirect(request.path)
        rows = list(shops_of(request).only(history_of(profile))[:SHOWN_CHANGES])
        context = {
            **self.admin_site.each_context(request),
            "title": f"History of {profile}",
            "opts": self.opts,
            # Before the first change of all values there was no profile.
            "rows": [(row, bool((row.changes or {}).get("shop_name", ["some"])[0])) for row in rows],
            "may_change": may_change,
            "back": reverse("admin:notifications_mailprofile_change", args=[profile.id]),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/notifications/mailprofile/history.html", context)

    def _put_back(self, request: HttpRequest, profile: MailProfile) -> None:
        id = parse_uuid(request.POST.get("row", ""))
        try:
            with transaction.atomic():
                shops = shops_of(request)
                put_back(profile_id=profile.id, row_id=id or new_id(), by=user_actor(request), shops=shops)
        except AuditRow.DoesNotExist as error:
            raise Http404 from error
        except NotPutBack as refusal:
            self.message_user(request, f"Nothing was changed. {refusal}", messages.ERROR)
        else:
            self.message_user(request, "The profile is as it was before.", messages.SUCCESS)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: MailProfile | None = None,
    ) -> HttpResponse:
        """Add the preview. It posts the form, and shows what is not saved yet."""
        name = "admin:notifications_mailprofile_preview"
        context |= {
            "preview_url": reverse(name, args=[obj.id]) if obj else reverse(f"{name}_new"),
            "shows_saved": obj is not None,
            "events": sorted(event_types()),
            "default_event": default_event(),
        }
        return super().render_change_form(request, context, add, change, form_url, obj)

    @limit_page("preview", is_newest_wanted=True)
    def preview_view(self, request: HttpRequest, id: uuid.UUID | None = None) -> HttpResponse:
        """Answer with an e-mail of a sample order as the posted form would make it, or as it is saved."""
        row = MailProfile() if id is None else get_object_or_404(MailProfile, id=id)
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        event = request.POST.get("preview_event", "")
        event = event if event in event_types() else default_event()
        scheme = "dark" if request.POST.get("preview_dark") else "light"
        if request.method == "POST":
            form = ProfileForm(request.POST, instance=row)
            form.is_logo_fetched = False
            form.shops = shops_of(request)
            if not form.is_valid():
                return framed(_listed(form, scheme))
            row = form.instance
        profile = profile_of(row)
        email = render_email(
            event_type=event,
            locale=profile.default_locale or "en",
            context=sample_orders.order_for(event),
            profile=profile,
        )
        html = f"{email.body_html}<style>:root{{color-scheme:{scheme}!important}}</style>"
        return framed(html, image=profile.logo_url)


def _listed(form: ProfileForm, scheme: str) -> SafeString:
    """Return a page that says why there is no preview: the errors of a form."""
    errors = (
        (form[name].label if name in form.fields else "", error)
        for name, some in form.errors.items()
        for error in some
    )
    return format_html(
        '<meta charset="utf-8"><style>:root{{color-scheme:{}}}body{{font:16px sans-serif}}</style>'
        "<p><b>No preview: correct these fields first.</b></p><ul>{}</ul>",
        scheme,
        format_html_join("", "<li><b>{}</b>: {}</li>", errors),
    )
