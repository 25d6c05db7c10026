"""The pages on which an editor changes the sentences of e-mails, next to a preview with a real order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode

from notifications.admin.email_preview import allow_origin
from notifications.content import editing, shop_texts
from notifications.content.editing import Trouble
from notifications.content.own_text import LIMIT
from notifications.content.profiles import Profile, find_profile, from_settings
from notifications.content.render_files import RenderedEmail
from notifications.content.rendering import render_email
from notifications.content.sentences import (
    EXTRAS,
    Sentence,
    example_numbers,
    example_values,
    in_words,
    original,
    read_keys,
    sentences_of,
)
from notifications.content.shop_texts import TextEntry, key_of
from notifications.content.template_files import LAYOUT, Key
from notifications.models import EmailText, EmailTextVersion, MailProfile, text_name
from notifications.provider_tests import default_event
from orders.admin.previews import send_to_user
from orders.emails import preview_context, sample_for
from orders.events import EMAILS, EVENTS
from orders.models import NEWEST_FIRST, Order
from orders.parcels import shown_in_preview
from runtime.database.ids import parse_uuid
from runtime.models import AuditRow
from web.admin.base import TriageAdmin, show_time
from web.admin.menu import MenuItem
from web.admin.page_limits import TURNS, limit_page
from web.admin.rights import require_unbound, shops_of

EDIT = "notifications.edit_texts"
#: So many orders and versions are offered.
ORDERS, VERSIONS = 10, 50
#: The label of a sentence that no sample order has.
NOT_IN_SAMPLES = "Not in the samples"
#: The words for the sentences that all e-mails share.
ALL_EMAILS = "all e-mails"
_URL = "admin:notifications_emailtext"


def title_of(event_type: str) -> str:
    """Return an e-mail in words, or its name if a deployment has it and we do not."""
    if event_type == LAYOUT:
        return ALL_EMAILS
    return (EVENTS[event_type].title if event_type in EVENTS else "") or event_type


@dataclass(frozen=True, slots=True)
class TextsPage:
    """Which sentences a page shows: of an e-mail, or of all e-mails, in a language, for a shop."""

    event_type: str
    language: str
    source: str

    @property
    def keys(self) -> dict[str, str]:
        return {"event_type": self.event_type, "language": self.language, "source": self.source}

    def url(self, name: str = "page", **query: str) -> str:
        url = reverse(f"{_URL}_{name}", args=[self.event_type, self.language])
        query = {name: value for name, value in {"source": self.source, **query}.items() if value}
        return f"{url}?{urlencode(query)}" if query else url

    @property
    def title(self) -> str:
        """The e-mail in words."""
        return title_of(self.event_type)

    def row(self) -> EmailText | None:
        rows = EmailText.objects.filter(event_type=self.event_type, locale=self.language)
        return rows.filter(source=self.source).first()

    def __str__(self) -> str:
        return text_name(source=self.source, event_type=self.event_type, locale=self.language)


@dataclass(slots=True)
class Field:
    """The field of one sentence."""

    key: Key
    label: str
    when: str
    present: str
    is_paragraph: bool
    variables: Sequence[tuple[str, str]]  # names and words
    text: str = ""
    mistake: str = ""
    is_first_mistake: bool = False
    name: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # The name of a sentence and not its place: a deployment may change the order of sentences.
        self.name = f"text-{hashlib.sha256(repr(tuple(self.key)).encode()).hexdigest()[:16]}"


@admin.register(EmailText)
class EmailTextAdmin(TriageAdmin[EmailText]):
    audit_kind = AuditRow.Kind.TEXT
    menu = MenuItem(30, "Texts")
    ordering = ["event_type", "source", "locale"]

    class Media:
        js = ("orderpost/texts.js",)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("edit/<str:event_type>/<str:language>/", view(self.page_view), name=f"{_URL[6:]}_page"),
            path(
                "edit/<str:event_type>/<str:language>/preview/",
                view(self.preview_view),
                name=f"{_URL[6:]}_preview",
            ),
            *super().get_urls(),
        ]

    def audited(self, row: EmailText) -> dict[str, Any]:
        return {"source": row.source or None}  # texts without a shop are those of every shop

    def has_view_permission(self, request: HttpRequest, obj: EmailText | None = None) -> bool:
        return super().has_view_permission(request, obj) or request.user.has_perm(EDIT)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List every e-mail with its present subject in a language, for a shop."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        source, language = _source(request, request.GET.get("source", "")), request.GET.get("language", "")
        language = language if language in dict(settings.LANGUAGES) else "en"
        rows = {row.event_type: row for row in EmailText.objects.filter(source=source, locale=language)}
        profile = _profile(request, source)
        lines = []
        for event_type in (*EMAILS, LAYOUT):
            page = TextsPage(event_type, language, source)
            subject = ""
            if event_type != LAYOUT:
                context = sample_for(event_type)
                email = render_email(event_type=event_type, locale=language, context=context, profile=profile)
                subject = email.subject
            row = rows.get(event_type)
            lines.append((page, subject, row, _troubles(row), show_time(row.edited_at) if row else ""))
        context = {"title": "Texts", "lines": lines, "layout": LAYOUT}
        return self._render(request, "list", context | _choices(request, source, language))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Lead to the page of a row, for the links of the audit log and of e-mails."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        text = get_object_or_404(EmailText, id=parse_uuid(object_id))
        page = TextsPage(text.event_type, text.locale, text.source)
        return HttpResponseRedirect(page.url(version=request.GET.get("version", "")))

    def page_view(self, request: HttpRequest, event_type: str, language: str) -> HttpResponse:
        """Show the sentences. A POST saves, publishes, restores, withdraws, previews, or sends a test."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        page = _page(request, event_type, language)
        if request.method == "POST":
            if not request.user.has_perm(EDIT):
                raise PermissionDenied
            if not page.source:  # for every shop
                require_unbound(request)
            if request.POST.get("act") == "send":  # a provider may take seconds
                return TURNS.answer(
                    request, "preview", lambda: self._act(request, page), is_newest_wanted=False
                )
            return self._act(request, page)
        row = page.row()
        number = _number(request.GET.get("version", ""))
        entries: Iterable[TextEntry] = row.sentences if row else ()
        if "version" in request.GET:
            entries = get_object_or_404(EmailTextVersion, text=row, number=number).sentences
        texts = {key_of(entry): entry["text"] for entry in entries}
        return self._show(request, page, row, texts, number=number)

    @limit_page("preview", is_newest_wanted=True)
    def preview_view(self, request: HttpRequest, event_type: str, language: str) -> HttpResponse:
        """Answer with the preview of texts that are not saved, for the script of the page."""
        if request.method != "POST" or not request.user.has_perm(EDIT):
            raise PermissionDenied
        page = _page(request, event_type, language)
        if not page.source:
            require_unbound(request)
        fields = make_fields(page, _typed(request, page), {})
        email, _, mistakes = _preview(request, page, fields)
        mistakes = editing.find_typed_mistakes({field.key: field.text for field in fields}) | dict(mistakes)
        names = {field.name: mistakes.get(field.key, "") for field in fields}
        answer = {"subject": email.subject, "html": email.body_html, "text": email.body_text}
        return JsonResponse({**answer, "mistakes": names})

    def _act(self, request: HttpRequest, page: TextsPage) -> HttpResponse:
        """Do what the pressed button says."""
        act, username = request.POST.get("act", ""), request.user.get_username()
        seen_at, row = request.POST.get("seen_at", ""), page.row()
        if act == "withdraw":
            said = "No version was in use."
            with transaction.atomic():
                number = editing.withdraw(**page.keys, username=username)
                if row is not None and number is not None:
                    said = "Withdrawn. Customers get the original texts, or those for every shop."
                    self.log_change(request, row, f"Withdrew version {number}.")
            return self._done(request, page, said)
        texts = _typed(request, page)
        if act == "restore":
            version = get_object_or_404(
                EmailTextVersion, text=row, number=_number(request.POST.get("number", ""))
            )
            texts = {key_of(entry): entry["text"] for entry in version.sentences}
        mistakes: Mapping[Key, str] = {}
        doubts: Mapping[Key, str] = {}
        try:
            entries = editing.make_entries(texts, language=page.language)
            if act == "restore":
                self._save(request, page, row, entries, seen_at)
                said = f"Version {version.number} is in the draft. Customers get it when you publish it."
                return self._done(request, page, said)
            doubts = editing.find_doubts(texts) if act == "publish" else {}
            if doubts and request.POST.get("sure") != _digest(doubts):
                said = "It is not published yet. Read the questions at the texts, and publish all the same."
                self.message_user(request, said, messages.WARNING)
            elif act == "publish":
                was = row.published if row else None
                try:
                    with transaction.atomic():
                        version = editing.publish(
                            **page.keys, entries=entries, username=username, seen_at=seen_at
                        )
                        logged = f"Published version {version.number} (was {was or 'the original'})."
                        self.log_change(request, version.text, logged)
                except editing.HasMistakes:
                    self._save(request, page, row, entries, seen_at)
                    self.message_user(request, "The draft is saved, but not published.", messages.ERROR)
                    row = page.row()
                    seen_at = row.edited_at.isoformat() if row else ""
                    raise
                said = f"Version {version.number} is published. New e-mails have it within 10 seconds."
                return self._done(request, page, said)
            if act == "save":
                self._save(request, page, row, entries, seen_at)
                return self._done(request, page, "The draft is saved. Customers get it when you publish it.")
        except editing.HasMistakes as error:
            mistakes = error.mistakes
        except editing.Changed as error:
            self.message_user(request, f"{error} Copy your texts, and open the page again.", messages.ERROR)
        if act == "send" and not mistakes:
            self._send(request, page, texts)
        shown = {**doubts, **mistakes}
        sure = _digest(doubts) if doubts and not mistakes else ""
        return self._show(request, page, row, texts, mistakes=shown, seen_at=seen_at, sure=sure)

    def _save(
        self,
        request: HttpRequest,
        page: TextsPage,
        row: EmailText | None,
        entries: list[TextEntry],
        seen_at: str,
    ) -> None:
        if row and row.sentences == entries and row.edited_at.isoformat() == seen_at:
            return
        username = request.user.get_username()
        with transaction.atomic():
            saved = editing.save_draft(**page.keys, entries=entries, username=username, seen_at=seen_at)
            self.log_change(request, saved, "Saved the draft.")

    def _send(self, request: HttpRequest, page: TextsPage, texts: Mapping[Key, str]) -> None:
        email, order, mistakes = _preview(request, page, make_fields(page, texts, {}))
        if mistakes:
            self.message_user(request, "Nothing was sent. Correct the texts first.", messages.ERROR)
            return
        event_type = _event(request, page)
        source = page.source or (order.source if order else "")
        send_to_user(
            request,
            email=email,
            order_id=order.id if order else None,
            event_type=event_type,
            source=source,
            locale=page.language,
            row=page.row(),
            subject=f"texts of {page}",
        )

    def _done(self, request: HttpRequest, page: TextsPage, said: str) -> HttpResponse:
        self.message_user(request, said, messages.SUCCESS)
        kept = {name: request.POST.get(name, "")[:100] for name in ("order", "event")}
        return HttpResponseRedirect(page.url(**kept))

    def _show(
        self,
        request: HttpRequest,
        page: TextsPage,
        row: EmailText | None,
        texts: Mapping[Key, str],
        *,
        mistakes: Mapping[Key, str] | None = None,
        seen_at: str | None = None,
        number: int = 0,
        sure: str = "",
    ) -> HttpResponse:
        """Show texts and their preview. `seen_at` is the time of the draft that they began as.

        With `sure`, the button publishes in spite of the questions that have this digest.
        """
        fields = make_fields(page, texts, mistakes or {})
        email, order, render_mistakes = _preview(request, page, fields)
        for field in fields:
            field.mistake = field.mistake or render_mistakes.get(field.key, "")
        may_edit = request.user.has_perm(EDIT) and (bool(page.source) or shops_of(request).is_unbound)
        if seen_at is None:
            seen_at = row.edited_at.isoformat() if row else ""
        wrong = [field for field in fields if field.mistake]
        if wrong and request.method == "POST":
            wrong[0].is_first_mistake = True  # the page goes there
        is_layout = page.event_type == LAYOUT
        context = {
            "title": f"Texts of {f'“{page.title}”' if page.title != ALL_EMAILS else ALL_EMAILS}",
            "page": page,
            "row": row,
            "fields": fields,
            "limit": LIMIT,
            "email": email,
            "seen_at": seen_at,
            "may_edit": may_edit and not number,
            "may_restore": may_edit,
            "number": number,
            "versions": _versions(row, fields),
            "sure": sure,
            "troubles": _troubles(row),
            "lacks_extras": not is_layout and len(sentences_of(page.event_type).extras) < len(EXTRAS),
            "events": [(name, title_of(name)) for name in EMAILS] if is_layout else (),
            "variables": _variables(page, fields),
            "event": _event(request, page),
            "orders": _offered(request, page),
            "order": (order.reference or str(order.id)) if order else "",
            "preview_url": page.url("preview"),
        }
        allow_origin(request, _profile(request, page.source or (order.source if order else "")).logo_url)
        return self._render(request, "page", context | _choices(request, page.source, page.language))

    def _render(self, request: HttpRequest, name: str, context: Mapping[str, Any]) -> HttpResponse:
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/notifications/emailtext/{name}.html", {**shared, **context})


def make_fields(page: TextsPage, texts: Mapping[Key, str], mistakes: Mapping[Key, str]) -> list[Field]:
    """Return a field for each sentence, and for each text whose sentence no sample has."""
    sentences, present_keys = sentences_of(page.event_type), read_keys(page.event_type, page.language)
    shared = shop_texts.versions.get().get(shop_texts.cache_key(page.event_type, page.language, ""))
    for_all = shared.entries if shared and page.source else {}
    fields = []
    for key, sentence in present_keys.items():
        present = for_all[key]["text"] if key in for_all else original(key, page.language)
        variables = [*sentence.variables, *sorted(sentences.variables.difference(sentence.variables))]
        label, when = _label(key, sentence, page.language), sentence.when
        is_long = sentence.is_paragraph or not sentence.samples
        words = [(name, in_words(name)) for name in variables]
        fields.append(Field(key, label, when, present, is_long, words))
    for key in texts.keys() - present_keys.keys():
        if texts[key]:
            present = "No sample order has this sentence. Empty the field to remove your text."
            fields.append(Field(key, NOT_IN_SAMPLES, "", present, True, ()))
    for field in fields:
        field.text, field.mistake = texts.get(field.key, ""), mistakes.get(field.key, "")
    return fields


def _variables(page: TextsPage, fields: Iterable[Field]) -> list[tuple[str, str, str]]:
    """Return the name, the words and an example of each variable of the fields."""
    examples = example_values(page.event_type, page.language, find_profile(page.source))
    names = dict(pair for field in fields for pair in field.variables)
    return [(name, words, examples.get(name, "")) for name, words in names.items()]


def _label(key: Key, sentence: Sentence, language: str) -> str:
    if not key.msgid:
        return EXTRAS[key.context]
    if not sentence.samples:
        return NOT_IN_SAMPLES
    label = "Subject" if sentence.is_subject else "Paragraph" if sentence.is_paragraph else "Heading or label"
    return f"{label}, for {example_numbers(key, language)}" if key.plural else label


def _typed(request: HttpRequest, page: TextsPage) -> dict[Key, str]:
    """Return the texts of the posted fields."""
    row = page.row()
    stored = {key_of(entry): entry["text"] for entry in (row.sentences if row else ())}
    fields = make_fields(page, stored, {})
    return {field.key: request.POST.get(field.name, "").strip() for field in fields}


def _preview(
    request: HttpRequest, page: TextsPage, fields: Iterable[Field]
) -> tuple[RenderedEmail, Order | None, Mapping[Key, str]]:
    """Render an e-mail with the texts of the fields, and return also its order and what is wrong in them."""
    params = request.POST if request.method == "POST" else request.GET
    order = _find_order(request, page, params.get("order", ""))
    event_type = _event(request, page)
    entries = [shop_texts.entry_of(field.key, field.text, "") for field in fields if field.text]
    own, mistakes = editing.read_entries(entries, event_type=page.event_type, language=page.language)
    words = shop_texts.merge(
        source=page.source,
        event_type=event_type,
        language=page.language,
        draft={(page.source, page.event_type): own},
    )
    context = sample_for(event_type)
    if order is not None:
        shipment = shown_in_preview(event_type, order)
        context = preview_context(order=order, event_type=event_type, shipment=shipment)
    email = render_email(
        event_type=event_type,
        locale=page.language,
        context=context,
        profile=_profile(request, page.source or (order.source if order else "")),
        words=words,
    )
    return email, order, mistakes


def _versions(row: EmailText | None, fields: Sequence[Field]) -> list[dict[str, Any]]:
    """Return the newest versions, each with the words that it changed in the one before it."""
    rows = list(row.versions.order_by("-number")[: VERSIONS + 1]) if row else []
    labels = {field.key: field.label for field in fields}
    shown = []
    for place, version in enumerate(rows[:VERSIONS]):
        texts = {key_of(entry): entry["text"] for entry in version.sentences}
        before = (
            {key_of(entry): entry["text"] for entry in rows[place + 1].sentences} if rows[place + 1 :] else {}
        )
        changes = [
            (labels.get(key, NOT_IN_SAMPLES), editing.compare_words(before.get(key, ""), texts.get(key, "")))
            for key in {**before, **texts}
            if before.get(key) != texts.get(key)
        ]
        shown.append({"row": version, "when": show_time(version.published_at), "changes": changes})
    return shown


def _digest(doubts: Mapping[Key, str]) -> str:
    return hashlib.sha256(repr(sorted(doubts.items())).encode()).hexdigest()[:16]


def _event(request: HttpRequest, page: TextsPage) -> str:
    """Return the event whose e-mail a page previews."""
    if page.event_type != LAYOUT:
        return page.event_type
    params = request.POST if request.method == "POST" else request.GET
    return params["event"] if params.get("event") in EMAILS else default_event()


def _page(request: HttpRequest, event_type: str, language: str) -> TextsPage:
    source = request.GET.get("source", "")
    if event_type not in (*EMAILS, LAYOUT) or language not in dict(settings.LANGUAGES):
        raise Http404
    if source != _source(request, source):
        raise Http404
    return TextsPage(event_type, language, source)


def _profile(request: HttpRequest, source: str) -> Profile:
    """Return the profile of a source, or that of the settings if the user may not see it."""
    return find_profile(source) if shops_of(request).has(source) else from_settings()


def _source(request: HttpRequest, text: str) -> str:
    """Return the source if it is that of a profile that the user may see, else "" for every shop."""
    return text if text and text in _sources(request) else ""


def _sources(request: HttpRequest) -> list[str]:
    profiles = shops_of(request).only(MailProfile.objects.exclude(source=""))
    return list(profiles.order_by("source").values_list("source", flat=True))


def _choices(request: HttpRequest, source: str, language: str) -> dict[str, Any]:
    shops = [("", "every shop"), *((name, name) for name in _sources(request))]
    return {"sources": shops, "source": source, "languages": settings.LANGUAGES, "language": language}


def _troubles(row: EmailText | None) -> Sequence[Trouble]:
    if row is None or row.published is None:
        return ()
    version = row.versions.get(number=row.published)
    return editing.find_troubles(version.sentences, event_type=row.event_type, language=row.locale)


def _number(text: str) -> int:
    """Return a version's number, or 0 for anything else."""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _find_order(request: HttpRequest, page: TextsPage, term: str) -> Order | None:
    """Return the order of a reference or an id, else the shop's newest, if the user may see orders."""
    term = term.strip()
    if not term or not term.isprintable() or not request.user.has_perm("orders.view_order"):
        return next(iter(_offered(request, page)), None)
    wanted = parse_uuid(term)
    rows = _orders(request, page)
    rows = rows.filter(id=wanted) if wanted else rows.filter(reference=term[:100])
    return next(iter(rows.order_by(*NEWEST_FIRST)[:1]), None)


def _offered(request: HttpRequest, page: TextsPage) -> list[Order]:
    """Return the newest orders of the page's shop."""
    if not request.user.has_perm("orders.view_order"):
        return []
    return list(_orders(request, page).order_by(*NEWEST_FIRST)[:ORDERS])


def _orders(request: HttpRequest, page: TextsPage) -> QuerySet[Order]:
    rows = Order.objects.filter(source=page.source) if page.source else Order.objects.all()
    return shops_of(request).only(rows)
