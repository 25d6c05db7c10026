"""The editor of e-mail templates: a draft next to its preview with a real order, and its versions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from notifications import editing
from notifications.models import EmailTemplate, EmailTemplateVersion, MailProfile
from notifications.parts import PARTS
from notifications.profiles import find_profile
from notifications.published import parts_of
from notifications.rendering import Shown, show
from notifications.sandboxed.rules import SOURCE_LIMIT
from notifications.sandboxed.trial import Mistake, Tried
from orders.emails import SAMPLE, SAMPLES, email_context, present_change
from orders.events import EMAILS
from orders.models import NEWEST_FIRST, Order
from web.admin.base import TriageAdmin, ago, as_uuid
from web.admin.menu import MenuItem
from web.admin.turns import takes_turn

EDIT = "notifications.edit_templates"
#: The fields of the editor, by the parts that they have.
FIELDS = dict(zip(PARTS, ("subject", "body_text", "body_html"), strict=True))
LABELS = {"subject": "Subject", "body_text": "Text", "body_html": "HTML"}
#: So many orders and versions are offered.
ORDERS, VERSIONS = 10, 50


class KeyForm(forms.Form):
    event_type = forms.ChoiceField(label="Event", choices=[(name, name) for name in EMAILS])
    source = forms.ChoiceField(label="Shop", required=False)
    locale = forms.ChoiceField(
        label="Language", required=False, choices=[("", "every language"), *settings.LANGUAGES]
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sources = MailProfile.objects.exclude(source="").values_list("source", flat=True)
        choices = [("", "every shop"), *((source, source) for source in sources.order_by("source"))]
        self.fields["source"].choices = choices  # type: ignore[attr-defined]


class DraftForm(forms.Form):
    subject = forms.CharField(max_length=SOURCE_LIMIT, required=False, strip=False)
    body_text = forms.CharField(max_length=SOURCE_LIMIT, required=False, strip=False)
    body_html = forms.CharField(max_length=SOURCE_LIMIT, required=False, strip=False)
    order = forms.CharField(max_length=100, required=False)
    language = forms.ChoiceField(choices=settings.LANGUAGES, required=False)

    def parts(self) -> dict[str, str]:
        # Browsers send line breaks as two characters.
        texts = {part: self.cleaned_data[field] for part, field in FIELDS.items()}
        return {part: text.replace("\r\n", "\n") for part, text in texts.items()}


@admin.register(EmailTemplate)
class EmailTemplateAdmin(TriageAdmin[EmailTemplate]):
    menu = MenuItem(28, "Templates")
    ordering = ["event_type", "source", "locale"]
    list_display = ["event_type", "shop", "language", "version", "draft", "edited"]
    empty_text = "Nothing here yet. Add a template to change the text of an e-mail without a deployment."

    class Media:
        js = ("orderpost/editor.js",)

    @admin.display(description="shop", ordering="source")
    def shop(self, row: EmailTemplate) -> str:
        return row.source or "every shop"

    @admin.display(description="language", ordering="locale")
    def language(self, row: EmailTemplate) -> str:
        return row.locale or "every language"

    @admin.display(description="in use")
    def version(self, row: EmailTemplate) -> str:
        return f"version {row.published}" if row.published else "no, the file is"

    @admin.display(description="edited by")
    def draft(self, row: EmailTemplate) -> str:
        return row.edited_by or "–"

    @admin.display(description="edited", ordering="edited_at")
    def edited(self, row: EmailTemplate) -> SafeString | str:
        return ago(row.edited_at)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.preview_view)
        name = "notifications_emailtemplate_preview"
        return [path("<uuid:id>/preview/", view, name=name), *super().get_urls()]

    def has_view_permission(self, request: HttpRequest, obj: EmailTemplate | None = None) -> bool:
        return super().has_view_permission(request, obj) or request.user.has_perm(EDIT)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(EDIT)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for the event, the shop and the language, and open the editor."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = KeyForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            template, is_new = editing.begin(**form.cleaned_data, username=request.user.get_username())
            if is_new:
                self.log_addition(request, template, "Began with the text in use.")
            return HttpResponseRedirect(self._url(template))
        context = {"title": "Add a template", "form": form}
        return self._page(request, "add", context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show the editor. A POST saves, previews, publishes, restores or withdraws."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if (id := as_uuid(object_id)) is None:
            raise Http404
        template = get_object_or_404(EmailTemplate, id=id)
        if request.method != "POST":
            return self._editor(request, template, request.GET, parts_of(self._chosen(request, template)))
        if not request.user.has_perm(EDIT):
            raise PermissionDenied
        return self._act(request, template)

    @takes_turn("preview", is_newest_wanted=True)
    def preview_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Answer with the preview of a text that is not saved, for the script of the editor."""
        if request.method != "POST" or not request.user.has_perm(EDIT):
            raise PermissionDenied
        template = get_object_or_404(EmailTemplate, id=id)
        form = DraftForm(request.POST)
        if not form.is_valid():
            return JsonResponse({"mistakes": _mistakes_of(form)})
        seen = _data(request, template, form.cleaned_data)
        tried = editing.preview(parts=form.parts(), shown=seen.shown, samples=SAMPLES)
        return JsonResponse({"mail": _shown_mail(tried), "mistakes": _plain(tried.mistakes)})

    def _act(self, request: HttpRequest, template: EmailTemplate) -> HttpResponse:
        """Do what the pressed button says, and show the editor again."""
        act, username = request.POST.get("act", ""), request.user.get_username()
        seen_at = request.POST.get("seen_at", "")
        said = ""
        if act == "withdraw":
            number = editing.withdraw(id=template.id, username=username)
            said = "No version was in use."
            if number is not None:
                said = "Withdrawn. The file is in use, or a template for more shops or languages."
                self.log_change(request, template, f"Withdrew version {number}.")
        elif act == "restore":
            return self._restore(request, template)
        else:
            form = DraftForm(request.POST)
            if not form.is_valid():
                parts = {part: request.POST.get(field, "")[:SOURCE_LIMIT] for part, field in FIELDS.items()}
                return self._editor(request, template, request.POST, parts, _mistakes_of(form), seen_at)
            parts = form.parts()
            if act not in ("save", "publish"):
                return self._editor(request, template, request.POST, parts, seen_at=seen_at)
            try:
                template = self._save(request, template, parts)
                if act == "publish":
                    version = editing.publish(
                        id=template.id,
                        username=username,
                        samples=SAMPLES,
                        seen_at=template.edited_at.isoformat(),
                    )
                    said = f"Version {version.number} is published. New e-mails have it within 10 seconds."
                    self.log_change(request, template, f"Published version {version.number}.")
                else:
                    said = "The draft is saved. Customers still get the published version."
            except editing.HasMistakes as error:
                self.message_user(request, "The draft is saved, but not published.", messages.ERROR)
                return self._editor(request, template, request.POST, parts, _plain(error.mistakes))
            except editing.Changed as error:
                text = f"{error} Copy your text, and open it again."
                self.message_user(request, text, messages.ERROR)
                return self._editor(request, template, request.POST, parts, seen_at=seen_at)
        self.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(self._url(template, request.POST))

    def _save(self, request: HttpRequest, template: EmailTemplate, parts: Mapping[str, str]) -> EmailTemplate:
        """Save a draft that differs from the stored one."""
        seen_at = request.POST.get("seen_at", "")
        if parts == parts_of(template) and seen_at == template.edited_at.isoformat():
            return template
        saved = editing.save_draft(
            id=template.id, parts=parts, username=request.user.get_username(), seen_at=seen_at
        )
        self.log_change(request, saved, "Saved the draft.")
        return saved

    def _restore(self, request: HttpRequest, template: EmailTemplate) -> HttpResponse:
        number = get_object_or_404(template.versions, number=_number(request.POST)).number
        try:
            version = editing.publish(
                id=template.id,
                username=request.user.get_username(),
                samples=SAMPLES,
                seen_at=request.POST.get("seen_at", template.edited_at.isoformat()),
                restored_from=number,
            )
        except (editing.HasMistakes, editing.Changed) as error:
            self.message_user(request, f"Version {number} was not restored. {error}", messages.ERROR)
        else:
            said = f"Restored version {number} as version {version.number}."
            self.log_change(request, template, said)
            self.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(self._url(template))

    def _chosen(self, request: HttpRequest, template: EmailTemplate) -> EmailTemplate | EmailTemplateVersion:
        """Return the version that the address names, or the draft."""
        if "version" not in request.GET:
            return template
        return get_object_or_404(template.versions, number=_number(request.GET, "version"))

    def _editor(
        self,
        request: HttpRequest,
        template: EmailTemplate,
        given: Mapping[str, Any],
        parts: Mapping[str, str],
        mistakes: Sequence[Mapping[str, Any]] = (),
        seen_at: str = "",
    ) -> HttpResponse:
        """Show texts and their preview. Mistakes of a check take the place of the preview's.

        `seen_at` is the time of the draft that the texts began as, if that is not the stored one.
        """
        seen = _data(request, template, given)
        tried = editing.preview(parts=parts, shown=seen.shown, samples=SAMPLES)
        number = _number(request.GET, "version")
        context = {
            "title": f"Template {template}",
            "template": template,
            "texts": [(field, LABELS[field], part, parts[part]) for part, field in FIELDS.items()],
            "limit": SOURCE_LIMIT,
            "mail": _shown_mail(tried),
            "mistakes": mistakes or _plain(tried.mistakes),
            "seen_at": seen_at or template.edited_at.isoformat(),
            "may_edit": request.user.has_perm(EDIT) and not number,
            "may_restore": request.user.has_perm(EDIT),
            "number": number,
            "versions": [
                (version, ago(version.published_at))
                for version in template.versions.order_by("-number").defer(*FIELDS.values())[:VERSIONS]
            ],
            "orders": _offered(request, template),
            "order": (seen.order.reference or str(seen.order.id)) if seen.order else "",
            "language": seen.shown.language,
            "languages": settings.LANGUAGES,
            "variables": list(_variables(seen.shown.data)),
        }
        return self._page(request, "editor", context)

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            **context,
        }
        return TemplateResponse(request, f"admin/notifications/emailtemplate/{name}.html", context)

    def _url(self, template: EmailTemplate, given: Mapping[str, Any] | None = None) -> str:
        url = reverse("admin:notifications_emailtemplate_change", args=[template.id])
        query = {name: str(given[name]) for name in ("order", "language") if given and given.get(name)}
        return f"{url}?{urlencode(query)}" if query else url


def _number(given: Mapping[str, Any], name: str = "number") -> int:
    """Return a version's number, or 0 for anything else."""
    text = str(given.get(name, ""))
    return int(text) if text.isdecimal() and len(text) < 10 else 0


class _Seen:
    """The data of a preview, and the order that they come from, or None for a sample."""

    def __init__(self, shown: Shown, order: Order | None) -> None:
        self.shown, self.order = shown, order


def _data(request: HttpRequest, template: EmailTemplate, given: Mapping[str, Any]) -> _Seen:
    """Return the data of the chosen order, else of the shop's newest, or a sample."""
    order = _find_order(request, template, str(given.get("order", "")))
    context = email_context(order=order, change=present_change(order)) if order else SAMPLE
    language = str(given.get("language", ""))
    if language not in dict(settings.LANGUAGES):
        language = template.locale or (order.locale if order else "en")
    profile = find_profile(template.source or (order.source if order else ""))
    return _Seen(show(locale=language, context=context, profile=profile), order)


def _find_order(request: HttpRequest, template: EmailTemplate, term: str) -> Order | None:
    if not request.user.has_perm("orders.view_order"):
        return None
    term = term.strip()
    if not term:
        return next(iter(_offered(request, template)), None)
    rows = Order.objects.filter(source=template.source) if template.source else Order.objects.all()
    wanted = as_uuid(term)
    rows = rows.filter(id=wanted) if wanted else rows.filter(reference=term)
    return rows.order_by(*NEWEST_FIRST).first()


def _offered(request: HttpRequest, template: EmailTemplate) -> list[Order]:
    """Return the newest orders of the template's shop."""
    if not request.user.has_perm("orders.view_order"):
        return []
    rows = Order.objects.filter(source=template.source) if template.source else Order.objects.all()
    return list(rows.order_by(*NEWEST_FIRST)[:ORDERS])


def _variables(data: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each variable and its value in the preview. A list shows the names of its entries' values."""
    for name, value in [*data.items(), ("subject", "the rendered subject, in the two bodies")]:
        if isinstance(value, list):
            names = ", ".join(f"item.{key}" for key in SAMPLE[name][0])  # type: ignore[index]
            yield name, f"{len(value)} lines with {names}"
        else:
            yield name, "–" if value in (None, "") else str(value)[:80]


def _shown_mail(tried: Tried) -> dict[str, str] | None:
    if tried.mail is None:
        return None
    return {"subject": tried.mail.subject, "html": tried.mail.body_html, "text": tried.mail.body_text}


def _plain(mistakes: Sequence[Mistake]) -> list[dict[str, Any]]:
    return [{"part": one.part, "line": one.line, "text": one.text, "says": str(one)} for one in mistakes]


def _mistakes_of(form: forms.Form) -> list[dict[str, Any]]:
    """Return the errors of a form as mistakes of a draft."""
    texts = [f"{LABELS.get(name, name)}: {text}" for name, some in form.errors.items() for text in some]
    return _plain([Mistake("", 0, text) for text in texts])
