"""The files of the e-mails, and the sentences that they say while one is rendered.

The files are Jinja2 templates, those of `EMAIL_TEMPLATES_DIR` before those of the same name in
templates/emails. A `{% trans %}` of a file says the own text of a shop, or else that of the catalogue.
Own texts have paragraphs and markup only where `Files` finds that a file has a paragraph.
"""

from __future__ import annotations

import functools
import gettext
import re
from collections.abc import Callable, Iterator, Mapping
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
    nodes,
    pass_context,
    select_autoescape,
)
from jinja2.runtime import Context
from jinja2.utils import missing
from markupsafe import Markup

from notifications.content.own_text import ShopText

CATALOGUES = Path(__file__).parent.parent / "locale"
#: The prefix of a project's file that a shop's file replaces.
OURS = "orderpost"
#: The functions that `{% trans %}` calls.
SENTENCES = frozenset(["gettext", "ngettext", "npgettext", "pgettext"])
#: The function of a file that shows a paragraph which only editors write.
EXTRA = "own_paragraph"
#: The keyword that `Files` adds to a sentence: the tag of its paragraph, or `IN_TEXT` in the text of an
#: e-mail. A sentence elsewhere is one line.
PLACE, IN_TEXT = "_place", "text"
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)\b[^>]*>")
_VOID = frozenset(["br", "col", "hr", "img", "wbr"])


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

# Django's gettext finds the language again for each sentence, which takes a fifth of an e-mail's rendering.
_catalogue: ContextVar[gettext.NullTranslations] = ContextVar("catalogue")
_own: ContextVar[Mapping[Key, ShopText]] = ContextVar("own")


@contextmanager
def speaking(language: str, words: Words) -> Iterator[None]:
    """Let the files say the own texts, or else those of the catalogue of a language."""
    catalogue = _catalogue.set(translations(language))
    own = _own.set(words.own)
    try:
        yield
    finally:
        _catalogue.reset(catalogue)
        _own.reset(own)


@functools.cache
def translations(language: str) -> gettext.NullTranslations:
    return gettext.translation("django", CATALOGUES, [language], fallback=True)


def plural_rule(catalogue: gettext.NullTranslations) -> Callable[[int], int]:
    """Return the function of a catalogue from a number to the form that it takes."""
    rule: Callable[[int], int] = getattr(catalogue, "plural", lambda number: int(number != 1))
    return rule


class Files(Environment):
    """Notes the place of each sentence of a file when it is read."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        is_html = bool(name and name.endswith(".html"))
        if is_html or (name and not name.endswith("subject.txt")):
            _note_places(tree, is_html=is_html)
            tree.set_environment(self)
        return tree


def _note_places(tree: nodes.Template, *, is_html: bool) -> None:
    paragraph, depth = "", 0  # of elements within the paragraph, such as a link
    for node in tree.find_all((nodes.TemplateData, nodes.Call)):
        if isinstance(node, nodes.TemplateData):
            for closing, tag in ((match[1], match) for match in _TAG.finditer(node.data)):
                if tag[2].lower() == "p":
                    paragraph, depth = "" if closing else tag[0], 0
                elif tag[2].lower() not in _VOID:
                    depth += -1 if closing else 1
        elif isinstance(node, nodes.Call) and called(node) in SENTENCES:
            place = (paragraph if depth == 0 else "") if is_html else IN_TEXT
            if place:
                const = nodes.Const(place.replace("%", "%%"), lineno=node.lineno)
                node.kwargs.append(nodes.Keyword(PLACE, const, lineno=node.lineno))


def called(node: nodes.Call) -> str:
    """Return the name of the function that a node calls, or ""."""
    return node.node.name if isinstance(node.node, nodes.Name) else ""


def make_environment(*, loader: BaseLoader, **_: Any) -> Environment:
    """Return the Jinja2 environment of the e-mails. Django calls it for the entry "emails" of TEMPLATES.

    `loader` reads the folders of that entry. The name `orderpost/<name>` always means the project's file, so
    that a file that replaces it can extend it.
    """
    ours = PrefixLoader({OURS: FileSystemLoader(our_folder())})
    made = Files(
        loader=ChoiceLoader([loader, ours]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        auto_reload=False,  # otherwise one e-mail could mix parts from before and after an edit
        extensions=["jinja2.ext.i18n"],
    )
    made.newstyle_gettext = True  # type: ignore[attr-defined]  # gives the values to the functions
    made.globals.update(
        {
            "gettext": _gettext,
            "ngettext": _ngettext,
            "pgettext": _pgettext,
            "npgettext": _npgettext,
            EXTRA: _own_paragraph,
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


def _say(context: Context, key: tuple[str, str, str, int], place: str, values: dict[str, Any]) -> str | None:
    """Return the own text of a sentence, or None to say the catalogue's."""
    own = _own.get().get(key)  # type: ignore[call-overload]  # a Key is such a tuple
    if own is None:
        return None
    for name in own.names:
        if name not in values:
            # An own text may use variables that the original lacks. They have values, or else it is not used.
            value = context.resolve_or_missing(name)
            if value is missing or value is None or value == "":
                return None
            values[name] = value
    said: str = own.at(place, is_html=context.eval_ctx.autoescape) % values
    return said


def _original(context: Context, text: str, values: dict[str, Any]) -> str:
    return (Markup(text) if context.eval_ctx.autoescape else text) % values  # noqa: S704 - of our catalogues


@pass_context
def _gettext(context: Context, text: str, /, *, _place: str = "", **values: Any) -> str:
    said = _say(context, ("", text, "", 0), _place, values)
    return _original(context, _catalogue.get().gettext(text), values) if said is None else said


@pass_context
def _pgettext(context: Context, about: str, text: str, /, *, _place: str = "", **values: Any) -> str:
    said = _say(context, (about, text, "", 0), _place, values)
    return _original(context, _catalogue.get().pgettext(about, text), values) if said is None else said


@pass_context
def _ngettext(context: Context, text: str, plural: str, n: int, /, *, _place: str = "", **values: Any) -> str:
    values.setdefault("num", n)
    catalogue = _catalogue.get()
    said = _say(context, ("", text, plural, plural_rule(catalogue)(n)), _place, values)
    return _original(context, catalogue.ngettext(text, plural, n), values) if said is None else said


@pass_context
def _npgettext(
    context: Context, about: str, text: str, plural: str, n: int, /, *, _place: str = "", **values: Any
) -> str:
    values.setdefault("num", n)
    catalogue = _catalogue.get()
    said = _say(context, (about, text, plural, plural_rule(catalogue)(n)), _place, values)
    return _original(context, catalogue.npgettext(about, text, plural, n), values) if said is None else said


@pass_context
def _own_paragraph(context: Context, name: str, /, place: str = IN_TEXT) -> str:
    """Return the paragraph `name` that an editor wrote, or "". In HTML, `place` is its tag."""
    said = _say(context, extra_key(name), place.replace("%", "%%"), {})
    if said is None:
        return ""
    if not context.eval_ctx.autoescape:
        return said
    return Markup(place) + said + Markup("</p>")  # noqa: S704 - the file's tag


def extra_key(name: str) -> Key:
    """Return the key of a paragraph that only editors write. No sentence is empty, so none has this key."""
    return Key(name, "")
