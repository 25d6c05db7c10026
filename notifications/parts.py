"""Render the three parts of an e-mail with compiled templates, from data that can be shown as it is.

Files and templates of the database both use this module. The process that tries drafts
(notifications.sandboxed.child) uses it without Django, so import neither models nor settings.
"""

from __future__ import annotations

import functools
import gettext
import re
import traceback
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, TemplateSyntaxError

from runtime.texts import one_line

#: The names of the parts, and of their files.
PARTS = ("subject.txt", "body.txt", "body.html")
CATALOGUES = Path(__file__).parent / "locale"
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n")
_INDENT = re.compile(r"\n\s+")
SUBJECT_LIMIT = 255
# Django's gettext finds the language again for each sentence, which takes a fifth of an e-mail's rendering.
_catalogue: ContextVar[gettext.NullTranslations] = ContextVar("catalogue")


@dataclass(frozen=True, slots=True)
class RenderedEmail:
    """The content of an e-mail. The subject has one line."""

    subject: str
    body_html: str
    body_text: str
    #: The published version that it was made from; None for files.
    template_version: uuid.UUID | None = None


class Part(Protocol):
    """Renders one part from the data."""

    def __call__(self, data: Mapping[str, Any], /) -> str: ...


def render_parts(*, part: Callable[[str], Part], language: str, data: Mapping[str, object]) -> RenderedEmail:
    """Render the parts that `part` returns for the names in `PARTS`, with the sentences of a language.

    The bodies also get the `subject`.
    """
    _catalogue.set(_translations(language))
    subject = one_line(part("subject.txt")(data))
    if len(subject) > SUBJECT_LIMIT:
        subject = subject[: SUBJECT_LIMIT - 1].rstrip() + "…"
    data = {**data, "subject": subject}
    text, html = part("body.txt")(data), part("body.html")(data)
    return RenderedEmail(
        subject=subject,
        body_html=_INDENT.sub("\n", html).strip() + "\n",
        body_text=_BLANK_LINES.sub("\n\n", text).strip() + "\n",
    )


def install_sentences(environment: Environment) -> None:
    """Let the templates of an environment translate with the catalogue of `render_parts`."""
    environment.add_extension("jinja2.ext.i18n")
    environment.install_gettext_callables(  # type: ignore[attr-defined]  # the extension adds it
        gettext=lambda *text: _catalogue.get().gettext(*text),
        ngettext=lambda *text: _catalogue.get().ngettext(*text),
        pgettext=lambda *text: _catalogue.get().pgettext(*text),
        npgettext=lambda *text: _catalogue.get().npgettext(*text),
        newstyle=True,  # escapes the values in the sentences of .html files
    )


def place_of(error: Exception) -> str:
    """Return " (file, line n)" for the innermost template frame of an error, or ""."""
    found = find_place(error)
    return f" ({found[0]}, line {found[1]})" if found else ""


def find_place(error: BaseException) -> tuple[str, int] | None:
    """Return the file and the line of the innermost template frame of an error."""
    places = [(frame.filename, frame.lineno or 1) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, TemplateSyntaxError):
        places.append((str(error.filename), error.lineno))
    return next((place for place in reversed(places) if place[0].endswith((".txt", ".html"))), None)


@functools.cache
def _translations(language: str) -> gettext.NullTranslations:
    return gettext.translation("django", CATALOGUES, [language], fallback=True)
