"""The catalogues: whole, compiled, and no larger than the templates."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from django.conf import settings
from jinja2.ext import extract_from_ast

from tests.kit.words import environment

TEMPLATES = settings.BASE_DIR / "templates" / "emails"
LANGUAGES = [language for language, _ in settings.LANGUAGES if language != "en"]


def folder(language: str) -> Path:
    return settings.BASE_DIR / "locale" / language / "LC_MESSAGES"


def catalogue(language: str) -> Catalog:
    with (folder(language) / "django.po").open("rb") as file:
        return read_po(file, locale=language)


def messages_of(path: Path) -> Iterator[tuple[str | None, str]]:
    """Yield (context, msgid) of each translatable string of a template."""
    tree = environment().parse(path.read_text())
    for _, function, strings in extract_from_ast(tree, babel_style=False):
        assert isinstance(strings, tuple)
        context, message = strings[:2] if "pgettext" in function else (None, strings[0])
        yield context, str(message)


def all_messages() -> set[tuple[str | None, str]]:
    files = [path for path in TEMPLATES.rglob("*") if path.is_file()]
    return {message for path in files for message in messages_of(path)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_has_the_strings_of_the_templates_and_no_others(language):
    known = {
        (entry.context, entry.id if isinstance(entry.id, str) else entry.id[0])
        for entry in catalogue(language)
        if entry.id
    }
    assert known == all_messages()
    assert len(known) > 40  # the templates were found


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_leaves_nothing_untranslated_or_fuzzy(language):
    for entry in catalogue(language):
        texts = entry.string if isinstance(entry.string, tuple) else (entry.string,)
        assert all(texts), entry.id
        assert not (entry.id and entry.fuzzy), entry.id


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_keeps_every_placeholder(language):
    def placeholders(text: str) -> list[str]:
        return sorted(re.findall(r"%\(\w+\)s", text))

    for entry in catalogue(language):
        if not entry.id:
            continue  # the header
        # Of a plural the last form; the singular spells its number out.
        before = entry.id if isinstance(entry.id, str) else entry.id[-1]
        after = entry.string if isinstance(entry.string, str) else (entry.string or ("",))[-1]
        assert placeholders(before) == placeholders(after), before


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_compiled(language):
    compiled = io.BytesIO()
    write_mo(compiled, catalogue(language))
    assert (folder(language) / "django.mo").read_bytes() == compiled.getvalue(), "run pybabel compile"


def test_it_is_right_for_swiss_readers_too():
    assert not [entry.id for entry in catalogue("de") if "ß" in str(entry.string)]
