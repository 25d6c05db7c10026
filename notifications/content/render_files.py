"""The three parts of an e-mail, and how they are rendered from data that can be shown as it is."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import TemplateSyntaxError

from notifications.content.template_files import Notes, Words, environment, speaking
from runtime.texts import one_line

#: The names of the parts, and of their files.
PARTS = ("subject.txt", "body.html", "body.txt")
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n")
_INDENT = re.compile(r"\n\s+")
SUBJECT_LIMIT = 255


@dataclass(frozen=True, slots=True)
class RenderedEmail:
    """The content of an e-mail. The subject has one line."""

    subject: str
    body_html: str
    body_text: str
    #: The ids of the versions of own texts that it was made from.
    text_versions: Sequence[str] = ()


def render_parts(
    *, event_type: str, language: str, data: Mapping[str, object], words: Words, notes: Notes | None = None
) -> RenderedEmail:
    """Render the files of an event with the sentences of a language. The bodies also get the `subject`."""

    def part(name: str, data: Mapping[str, object]) -> str:
        return environment().get_template(f"{event_type}/{name}").render(data)

    with speaking(language, words, notes):
        subject = one_line(part("subject.txt", data))
        if len(subject) > SUBJECT_LIMIT:
            subject = subject[: SUBJECT_LIMIT - 1].rstrip() + "…"
        data = {**data, "subject": subject}
        html, text = part("body.html", data), part("body.txt", data)
    return RenderedEmail(
        subject=subject,
        body_html=_INDENT.sub("\n", html).strip() + "\n",
        body_text=_BLANK_LINES.sub("\n\n", text).strip() + "\n",
        text_versions=words.versions,
    )


def place_of(error: Exception) -> str:
    """Return " (file, line n)" for the innermost template frame of an error, or ""."""
    places = [(frame.filename, frame.lineno or 1) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, TemplateSyntaxError):
        places.append((str(error.filename), error.lineno))
    return next(
        (f" ({file}, line {line})" for file, line in reversed(places) if file.endswith((".txt", ".html"))), ""
    )
