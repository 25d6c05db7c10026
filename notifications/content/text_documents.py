"""The published own texts of a shop as plain data, as `manage.py profiles` prints and loads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.db.models import F

from notifications.content import editing
from notifications.content.sentences import EXTRAS, read_keys
from notifications.content.shop_texts import TextEntry, key_of
from notifications.content.template_files import LAYOUT, Key, event_types, extra_key
from notifications.models import EmailText, EmailTextVersion, text_name
from runtime.audit import Actor, record
from runtime.models import AuditRow

#: The name in the audit of versions that a file made.
LOADED = "profiles load"


def as_texts(source: str) -> dict[str, Any]:
    """Return the published texts of a shop by event and language, those of every shop for an empty source."""
    texts: dict[str, Any] = {}
    rows = EmailTextVersion.objects.filter(text__source=source, number=F("text__published"))
    for row in rows.select_related("text").order_by("text__event_type", "text__locale"):
        if row.sentences:
            items = [_as_item(entry) for entry in row.sentences]
            texts.setdefault(row.text.event_type, {})[row.text.locale] = items
    return texts


def load_texts(source: str, texts: Any, *, by: Actor) -> Iterator[str]:
    """Publish the texts of a document, withdraw all others of the shop, and yield what was done.

    Raise `ValueError` with what is wrong. The caller's transaction then changes nothing.
    """
    rows = {(row.event_type, row.locale): row for row in EmailText.objects.filter(source=source)}
    wanted = dict(_read(texts))
    for (event_type, language), entries in wanted.items():
        name = text_name(source=source, event_type=event_type, locale=language)
        row = rows.get((event_type, language))
        if row is not None and row.published is not None:
            published = row.versions.get(number=row.published).sentences
            if _texts_of(published) == _texts_of(entries):
                continue
        try:
            version = editing.publish(
                source=source,
                event_type=event_type,
                language=language,
                entries=entries,
                username=LOADED,
                seen_at=row.edited_at.isoformat() if row else "",
            )
        except editing.HasMistakes as error:
            raise ValueError(f"{event_type}, {language}: {error}") from None
        was = row.published if row and row.published else "the original"
        record(_act(version.text, f"Published version {version.number} (was {was})."), by=by)
        yield f"{name}: version {version.number} published"
    for (event_type, language), row in rows.items():
        if row.published is not None and (event_type, language) not in wanted:
            editing.withdraw(source=source, event_type=event_type, language=language, username=LOADED)
            record(_act(row, f"Withdrew version {row.published}."), by=by)
            yield f"{row}: withdrawn"


def _act(text: EmailText, act: str) -> AuditRow:
    return AuditRow(
        kind=AuditRow.Kind.TEXT,
        act=act,
        source=text.source or None,
        subject_type=text._meta.label_lower,
        subject_id=str(text.id),
        subject=str(text),
    )


def _texts_of(entries: list[TextEntry]) -> dict[Key, str]:
    return {key_of(entry): entry["text"] for entry in entries}


def _as_item(entry: TextEntry) -> dict[str, Any]:
    if not entry["msgid"]:
        return {"place": entry["context"], "text": entry["text"]}
    named = {"context": entry["context"], "sentence": entry["msgid"], "plural": entry["plural"]}
    form = {"form": entry["form"]} if entry["plural"] else {}
    return {name: value for name, value in named.items() if value} | form | {"text": entry["text"]}


def _read(texts: Any) -> Iterator[tuple[tuple[str, str], list[TextEntry]]]:
    for event_type, languages in _mapping(texts, "texts").items():
        if event_type not in {*event_types(), LAYOUT}:
            right = ", ".join(sorted({*event_types(), LAYOUT}))
            raise ValueError(f"{event_type} has no e-mail. Use {right}.")
        for language, items in _mapping(languages, event_type).items():
            if language not in dict(settings.LANGUAGES):
                right = ", ".join(dict(settings.LANGUAGES))
                raise ValueError(f"{event_type}: {language} is no language. Use {right}.")
            if not isinstance(items, list):
                raise ValueError(f"{event_type}, {language}: write a list of sentences.")
            keys = read_keys(event_type, language)
            text_by_key = {}
            for item in items:
                key, text = _read_item(item, f"{event_type}, {language}")
                if key not in keys:
                    raise ValueError(f"{event_type}, {language}: it has no {key.msgid or key.context!r}.")
                text_by_key[key] = text
            try:
                yield (event_type, language), editing.make_entries(text_by_key, language=language)
            except editing.HasMistakes as error:
                raise ValueError(f"{event_type}, {language}: {error}") from None


def _read_item(item: Any, where: str) -> tuple[Key, str]:
    item = dict(_mapping(item, where))
    text, form = item.pop("text", None), item.pop("form", 0)
    place, context, msgid = item.pop("place", None), item.pop("context", ""), item.pop("sentence", "")
    key = Key(context, msgid, item.pop("plural", ""), form)
    if place is not None:
        key = extra_key(place)
    texts = (key.context, key.msgid, key.plural, text)
    if item or not isinstance(form, int) or not all(isinstance(member, str) for member in texts):
        raise ValueError(
            f"{where}: each sentence has a text, and a sentence with its context, plural and form, or a place"
            f" ({', '.join(EXTRAS)})."
        )
    return key, text


def _mapping(value: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: write names and values, as `profiles print` does.")
    return value
