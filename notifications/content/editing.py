"""Check, save, publish and withdraw the own sentences of e-mails, and compare their versions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import structlog
from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now

from notifications.content import own_text
from notifications.content.own_text import ShopText
from notifications.content.sentences import Sentence, original, read_keys, sentences_of
from notifications.content.shop_texts import TextEntry, entry_of, key_of
from notifications.content.template_files import Key
from notifications.models import EmailText, EmailTextVersion
from runtime.database.transactions import after_commit
from runtime.process import cached_rows

log = structlog.get_logger(__name__)


class Trouble(TypedDict):
    """The changes of a later release, or of another file of the shop, that concern an own text.

    `now` is the present original; "" if no sample has the sentence.
    """

    says: str
    text: str
    original: str
    now: str


class Changed(Exception):
    """Another user changed the draft since it was read."""


class HasMistakes(Exception):
    """Own texts cannot be used. `mistakes` says why, by their keys."""

    def __init__(self, mistakes: Mapping[Key, str]) -> None:
        super().__init__("; ".join(f"{key.msgid or key.context}: {text}" for key, text in mistakes.items()))
        self.mistakes = mistakes


def read_entries(
    entries: Iterable[TextEntry], *, event_type: str, language: str
) -> tuple[dict[Key, ShopText], dict[Key, str]]:
    """Return the own texts that can be used, and for the others why not."""
    sentences, by_key = sentences_of(event_type), read_keys(event_type, language)
    own, mistakes = {}, {}
    for entry in entries:
        key = key_of(entry)
        sentence = by_key.get(key) or Sentence(*key[:3])
        try:
            own[key] = own_text.read(entry["text"], variables=sentences.allowed(sentence))
        except own_text.Mistake as mistake:
            mistakes[key] = str(mistake)
    return own, mistakes


def find_typed_mistakes(texts: Mapping[Key, str]) -> dict[Key, str]:
    """Return what is wrong in typed texts, although a published one would be used."""
    mistakes = {}
    for key, text in texts.items():
        try:
            own_text.refuse_other_variables(text)
        except own_text.Mistake as mistake:
            mistakes[key] = str(mistake)
    return mistakes


def find_doubts(texts: Mapping[Key, str]) -> dict[Key, str]:
    """Return by key what to ask before texts are published."""
    return {key: doubt for key, text in texts.items() if (doubt := own_text.find_doubt(text))}


def compare_words(before: str, after: str) -> list[tuple[str, str]]:
    """Return the pieces of two texts in order, each with "del", "ins", or "" for what both have.

    >>> compare_words("Your order is paid", "Your order was paid")
    [('', 'Your order '), ('del', 'is'), ('ins', 'was'), ('', ' paid')]
    """
    old, new = (re.findall(r"\s+|[^\s]+", text) for text in (before, after))
    pieces = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            pieces.append(("", "".join(old[a:b])))
            continue
        pieces += [(word, "".join(words)) for word, words in (("del", old[a:b]), ("ins", new[c:d])) if words]
    return pieces


def find_troubles(entries: Iterable[TextEntry], *, event_type: str, language: str) -> Sequence[Trouble]:
    """Return what is different now about the published own texts of an e-mail."""
    entries = list(entries)
    present = read_keys(event_type, language)
    _, mistakes = read_entries(entries, event_type=event_type, language=language)
    troubles = []
    for entry in entries:
        key = key_of(entry)
        now = original(key, language) if key in present else ""
        if key in mistakes:
            says = f"Your text is not used, and the original is sent. {mistakes[key]}"
        elif key not in present:
            says = "No sample order has this sentence. Your text is used only if an e-mail still has it."
        elif now != entry["original"]:
            says = "Your text was written for an older original. If it still fits, publish it again."
        else:
            continue
        troubles.append(Trouble(says=says, text=entry["text"], original=entry["original"], now=now))
    return troubles


def make_entries(texts: Mapping[Key, str], *, language: str) -> list[TextEntry]:
    """Return the texts that are not empty as a draft has them. Raise `HasMistakes` for what no table can."""
    entries, mistakes = [], {}
    for key, text in texts.items():
        try:
            text = own_text.clean(text)
        except own_text.NotStorable as mistake:
            mistakes[key] = str(mistake)
            continue
        if text:
            entries.append(entry_of(key, text, original(key, language)))
    if mistakes:
        raise HasMistakes(mistakes)
    return entries


def save_draft(
    *, source: str, event_type: str, language: str, entries: Sequence[TextEntry], username: str, seen_at: str
) -> EmailText:
    """Write the draft of an e-mail's own texts.

    `seen_at` is the time of the draft that the user began with, in ISO 8601, or "" for none. Raise `Changed`
    if it is not that of the stored one.
    """
    with transaction.atomic():
        text = _lock(source, event_type, language, username, seen_at)
        EmailText.objects.filter(id=text.id).update(sentences=entries, edited_by=username, edited_at=Now())
    return EmailText.objects.get(id=text.id)


def publish(
    *,
    source: str,
    event_type: str,
    language: str,
    entries: Sequence[TextEntry],
    username: str,
    seen_at: str,
) -> EmailTextVersion:
    """Make a version of the entries, which also become the draft. Raise `HasMistakes`, or as `save_draft`."""
    _, mistakes = read_entries(entries, event_type=event_type, language=language)
    texts = {key_of(entry): entry["text"] for entry in entries}
    if mistakes := find_typed_mistakes(texts) | mistakes:
        raise HasMistakes(mistakes)
    entries = [entry_of(key, text, original(key, language)) for key, text in texts.items()]
    with transaction.atomic():
        text = _lock(source, event_type, language, username, seen_at)
        last = text.versions.aggregate(last=Max("number"))["last"] or 0
        version = EmailTextVersion.objects.create(
            text=text, number=last + 1, sentences=entries, published_by=username
        )
        EmailText.objects.filter(id=text.id).update(
            sentences=entries, published=version.number, edited_by=username, edited_at=Now()
        )
        _tell("own texts published", text, text_version=version.number, user=username)
    return version


def withdraw(*, source: str, event_type: str, language: str, username: str) -> int | None:
    """Send the originals again, or the own texts of every shop.

    Return the number of the version that was in use, or None if none was.
    """
    with transaction.atomic():
        rows = EmailText.objects.select_for_update()
        text = rows.filter(source=source, event_type=event_type, locale=language).first()
        if text is None or text.published is None:
            return None
        EmailText.objects.filter(id=text.id).update(published=None)
        _tell("own texts withdrawn", text, text_version=text.published, user=username)
    return text.published


def _lock(source: str, event_type: str, language: str, username: str, seen_at: str) -> EmailText:
    """Return the locked row, which may be new. Raise `Changed` if it is not as of `seen_at`."""
    text, is_new = EmailText.objects.select_for_update().get_or_create(
        source=source, event_type=event_type, locale=language, defaults={"edited_by": username}
    )
    if (seen_at != "") if is_new else (text.edited_at.isoformat() != seen_at):
        raise Changed(f"{text.edited_by or 'Another user'} has changed these texts since you opened them.")
    return text


def _tell(event: str, text: EmailText, **fields: object) -> None:
    """Log a change after its commit, and use it in this process at once. Others see it within 10 seconds."""

    def tell() -> None:
        log.info(event, text=str(text), **fields)
        cached_rows.refresh()

    after_commit(tell)
