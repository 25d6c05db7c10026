"""The files of the e-mails, and the functions with which they say sentences.

The files are Jinja2 templates, those of `EMAIL_TEMPLATES_DIR` before those of the same name in
templates/emails. A `{% trans %}` of a file says the own text of a shop, or else that of the catalogue.
`{{ p(_("…")) }}` says it as a paragraph. While samples are rendered, these functions note what they say.
"""

from __future__ import annotations

import functools
import gettext
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.template import engines
from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PrefixLoader,
    StrictUndefined,
    pass_context,
    select_autoescape,
)
from jinja2.runtime import Context
from jinja2.utils import missing
from markupsafe import Markup, escape

from notifications.content.own_text import ShopText

CATALOGUES = Path(__file__).parent.parent / "locale"
#: The prefix of a project's file that a shop's file replaces.
OURS = "orderpost"
#: The name of the sentences that all e-mails share, in place of an event.
LAYOUT = "layout"
#: What `Notes` have of a sentence that `p` made a paragraph.
PARAGRAPH = "paragraph"
_STYLE = "margin:0 0 14px"

#: A sentence in each form: its context, msgid and plural.
Name = tuple[str, str, str]
#: The sentences that files said in their order, each with the names of the files, and `PARAGRAPH`.
Notes = dict[Name, set[str]]


class Key(NamedTuple):
    """A sentence of the catalogues. `plural` is "" without a plural. `form` is the form of the language."""

    context: str
    msgid: str
    plural: str = ""
    form: int = 0


@dataclass(frozen=True, slots=True)
class Words:
    """The own texts of an e-mail's shop and language, and the ids of the versions that have them."""

    own: Mapping[Key, ShopText] = field(default_factory=dict)
    versions: tuple[str, ...] = ()


NO_WORDS = Words()


class Said(Markup):
    """A sentence in HTML as one line, and what `p` needs."""

    name: Name = ("", "", "")
    paragraphs: Sequence[Markup] = ()


class _Speech(NamedTuple):
    # Django's gettext finds the language again for each sentence, a fifth of an e-mail's rendering.
    catalogue: gettext.NullTranslations
    own: Mapping[Key, ShopText]
    notes: Notes | None


_speech: ContextVar[_Speech] = ContextVar("speech")


@contextmanager
def speaking(language: str, words: Words, notes: Notes | None = None) -> Iterator[None]:
    """Let the files say the own texts, or else those of the catalogue of a language, and fill `notes`."""
    token = _speech.set(_Speech(translations(language), words.own, notes))
    try:
        yield
    finally:
        _speech.reset(token)


@functools.cache
def translations(language: str) -> gettext.NullTranslations:
    return gettext.translation("django", CATALOGUES, [language], fallback=True)


def plural_rule(catalogue: gettext.NullTranslations) -> Callable[[int], int]:
    """Return the function of a catalogue from a number to the form that it takes."""
    rule: Callable[[int], int] = getattr(catalogue, "plural", lambda number: int(number != 1))
    return rule


@functools.lru_cache(maxsize=4096)  # a fortieth of an e-mail's rendering
def look_up(catalogue: gettext.NullTranslations, name: Name, number: int) -> str:
    """Return a catalogue's sentence as a format string, and "" for a paragraph that only editors write."""
    context, text, plural = name
    if not text:
        return ""
    if plural and context:
        return catalogue.npgettext(context, text, plural, number)
    if plural:
        return catalogue.ngettext(text, plural, number)
    return catalogue.pgettext(context, text) if context else catalogue.gettext(text)


def make_environment(*, loader: BaseLoader, **_: Any) -> Environment:
    """Return the Jinja2 environment of the e-mails. Django calls it for the entry "emails" of TEMPLATES.

    `loader` reads the folders of that entry. The name `orderpost/<name>` always means the project's file, so
    that a file that replaces it can extend it.
    """
    ours = PrefixLoader({OURS: FileSystemLoader(our_folder())})
    made = Environment(
        loader=ChoiceLoader([loader, ours]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        auto_reload=False,  # otherwise one e-mail could mix parts from before and after an edit
        extensions=["jinja2.ext.i18n"],
    )
    made.newstyle_gettext = True  # type: ignore[attr-defined]  # gives the values to the functions
    made.globals.update(
        {
            "_": _gettext,  # Jinja2's own looks for gettext at each call
            "gettext": _gettext,
            "ngettext": _ngettext,
            "pgettext": _pgettext,
            "npgettext": _npgettext,
            "own_paragraph": _own_paragraph,
            "p": _p,
        }
    )
    return made


def environment() -> Environment:
    """Return the environment of this process, which caches the templates."""
    jinja: Environment = engines["emails"].env  # type: ignore[attr-defined]  # Django's Jinja2 backend has it
    return jinja


def our_folder() -> Path:
    """Return the folder of the project's templates. A shop's own files are in EMAIL_TEMPLATES_DIR."""
    return Path(settings.BASE_DIR) / "templates" / "emails"


@functools.cache
def event_types() -> frozenset[str]:
    """Return the events that have templates."""
    return frozenset(path.parent.name for path in our_folder().glob("*/subject.txt"))


def _say(context: Context, name: Name, number: int, values: dict[str, Any]) -> str:
    """Return a sentence with its values: a `Said` in HTML if `p` can make more of it than one paragraph."""
    catalogue, own_texts, notes = _speech.get()
    form = plural_rule(catalogue)(number) if name[2] else 0
    is_html = context.eval_ctx.autoescape
    own = own_texts.get((*name, form)) if own_texts else None  # type: ignore[call-overload]  # a Key is such a tuple
    if own is not None and _has_values(context, own, values):
        if not is_html:
            return own.text % values  # type: ignore[no-any-return]
        said = Said(own.line_html % values)
        said.paragraphs = [paragraph % values for paragraph in own.paragraphs]
        return said
    text = look_up(catalogue, name, number)
    if notes is not None:
        notes.setdefault(name, set()).add(str(context.name).rpartition("/")[2])
    if not is_html or not text:
        return text % values
    if notes is None:
        return Markup(text) % values  # noqa: S704 - of our catalogues
    said = Said(Markup(text) % values)  # noqa: S704 - of our catalogues
    said.name = name
    return said


def _has_values(context: Context, own: ShopText, values: dict[str, Any]) -> bool:
    """Add the values of variables that an own text has and its original lacks. Return whether all exist."""
    for name in own.names:
        if name not in values:
            value = context.resolve_or_missing(name)
            if value is missing or value is None or value == "":
                return False
            values[name] = value
    return True


@pass_context
def _gettext(context: Context, text: str, /, **values: Any) -> str:
    return _say(context, ("", text, ""), 0, values)


@pass_context
def _pgettext(context: Context, about: str, text: str, /, **values: Any) -> str:
    return _say(context, (about, text, ""), 0, values)


@pass_context
def _ngettext(context: Context, text: str, plural: str, n: int, /, **values: Any) -> str:
    return _say(context, ("", text, plural), n, {"num": n, **values})


@pass_context
def _npgettext(context: Context, about: str, text: str, plural: str, n: int, /, **values: Any) -> str:
    return _say(context, (about, text, plural), n, {"num": n, **values})


@pass_context
def _own_paragraph(context: Context, place: str, /, _tag: str = "") -> str:
    """Return the paragraph that an editor wrote for a place, or "". Files once gave its tag, too."""
    return _say(context, extra_key(place)[:3], 0, {})


@pass_context
def _p(context: Context, text: str, style: str = _STYLE) -> str:
    """Return a sentence as a paragraph, or as those of its own text. Text that is not HTML stays as it is."""
    if not text or not context.eval_ctx.autoescape:
        return text
    paragraphs: Sequence[str] = [text]
    if isinstance(text, Said):
        paragraphs = text.paragraphs or paragraphs
        if (notes := _speech.get().notes) and text.name in notes:
            notes[text.name].add(PARAGRAPH)
    tag = _tag(style)
    html = f"</p>\n{tag}".join([text if isinstance(text, Markup) else escape(text) for text in paragraphs])
    return Markup(f"{tag}{html}</p>")  # noqa: S704 - both are escaped


@functools.lru_cache(maxsize=64)
def _tag(style: str) -> str:
    return f'<p style="{escape(style)}">'


def extra_key(name: str) -> Key:
    """Return the key of a paragraph that only editors write. No sentence is empty, so none has this key."""
    return Key(name, "")
