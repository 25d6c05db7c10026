"""The published own sentences of the database, as each process knows them.

`find` reads no table (see `cached_rows`). A process reads the markup of a version once. If this release or
the shop's files have no use for an own text, the original is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

import structlog
from django.db.models import F

from notifications.content import own_text
from notifications.content.own_text import ShopText
from notifications.content.template_files import LAYOUT, NO_WORDS, Key, Words
from notifications.models import EmailText, EmailTextVersion
from runtime.process.cached_rows import CachedRows, version_of

log = structlog.get_logger(__name__)


class TextEntry(TypedDict):
    """An own text as a draft or a version stores it, with the release's sentence that it replaces."""

    context: str
    msgid: str
    plural: str
    form: int
    text: str
    original: str


@dataclass(frozen=True, slots=True)
class Version:
    """A published version."""

    id: str
    entries: Mapping[Key, TextEntry]
    own: Mapping[Key, ShopText]


def entry_of(key: Key, text: str, original: str) -> TextEntry:
    return TextEntry(
        context=key.context,
        msgid=key.msgid,
        plural=key.plural,
        form=key.form,
        text=text,
        original=original,
    )


def key_of(entry: TextEntry) -> Key:
    return Key(entry["context"], entry["msgid"], entry["plural"], entry["form"])


class Published(dict[str, Version]):
    """The versions in use by `cache_key`, and the own texts of each shop's e-mails that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.merged: dict[tuple[str, str, str], Words] = {}


def find(*, source: str, event_type: str, language: str) -> Words:
    """Return the own texts of a shop's e-mail in a language."""
    cached = versions.get()
    if not cached:
        return NO_WORDS
    assert isinstance(cached, Published)
    name = (source, event_type, language)
    if (words := cached.merged.get(name)) is None:
        words = merge(source=source, event_type=event_type, language=language)
        cached.merged[name] = words
    return words


def merge(
    *,
    source: str,
    event_type: str,
    language: str,
    draft: Mapping[tuple[str, str], Mapping[Key, ShopText]] | None = None,
) -> Words:
    """Return the own texts of an e-mail: those of every shop below those of its profile.

    `draft` has own texts to try in place of published ones, by source and event.
    """
    cached = versions.get()
    own: dict[Key, ShopText] = {}
    ids = []
    for document in (LAYOUT, event_type):
        for shop in dict.fromkeys(("", source)):
            version = cached.get(cache_key(document, language, shop))
            if draft and (shop, document) in draft:
                own |= draft[shop, document]
            elif version is not None and version.own:
                own |= version.own
                ids.append(version.id)
    return Words(own, tuple(ids))


def _read(entries: Iterable[TextEntry]) -> Mapping[Key, ShopText]:
    """Return the own texts that can be read. Rendering skips one whose variable has no value."""
    own = {}
    for entry in entries:
        with contextlib.suppress(own_text.Mistake):
            own[key_of(entry)] = own_text.read(entry["text"])
    return own


def _load() -> Published:
    cached = Published()
    rows = EmailTextVersion.objects.filter(number=F("text__published")).select_related("text")
    for row in rows:
        text = row.text
        try:
            own = _read(row.sentences)
            entries = {key_of(entry): entry for entry in row.sentences}
        except Exception:  # a bad row must not keep the others from this process
            log.exception("own texts not used", text=str(text), text_version=row.number)
            continue
        cached[cache_key(text.event_type, text.locale, text.source)] = Version(str(row.id), entries, own)
    return cached


def cache_key(event_type: str, language: str, source: str) -> str:
    return f"{event_type}:{language}:{source}"  # neither of the first two has a colon


versions: CachedRows[Version] = CachedRows(
    version=version_of(EmailText._meta.db_table, where="published IS NOT NULL"), load=_load
)
