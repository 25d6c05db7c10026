"""Render an e-mail from plain data: subject, HTML and text, in the recipient's language and number formats.

`render_email` runs in the transaction of the order's change, whose statement inserts the e-mail. So it reads
neither a table nor the network.

An event has an e-mail if the folder templates/emails/<event>/ exists. A file of EMAIL_TEMPLATES_DIR replaces
the file of the same name; notifications.template_checks renders all of them when the process starts. One
Jinja2 template serves all languages: gettext translates its sentences from the catalogues in
notifications/locale. Short labels carry a context, because "Order" and "Paid" alone are ambiguous.
docs/guides/templates.md explains the variables and how to compile a catalogue.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import gettext
import re
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from babel import Locale, UnknownLocaleError
from babel.core import get_global
from babel.dates import format_date
from babel.numbers import NumberPattern, get_territory_currencies
from django.conf import settings
from django.template import engines
from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PrefixLoader,
    StrictUndefined,
    TemplateSyntaxError,
    select_autoescape,
)

from notifications.profiles import Profile, from_settings

CATALOGUES = Path(__file__).parent / "locale"
_TAG = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8}){0,4}")
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_INVISIBLE = re.compile(
    r"[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)  # bidi too
_LETTER_BY_DIGIT = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n")
_INDENT = re.compile(r"\n\s+")
# Django's gettext finds the language again for each sentence, which takes a fifth of an e-mail's rendering.
_catalogue: ContextVar[gettext.NullTranslations] = ContextVar("catalogue")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_SUBJECT_LIMIT = 255
# Digits of the minor unit if not 2, from ISO 4217 list one. Amounts here count ISO's units. Babel has CLDR's
# digits, which say how people write amounts (RSD 0, IQD 0).
_MINOR_DIGITS = {
    code: digits
    for digits, codes in (
        (0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"),
        (3, "BHD IQD JOD KWD LYD OMR TND"),
        (4, "CLF UYW"),
    )
    for code in codes.split()
}


class UnknownEmail(LookupError):
    """The event has no templates."""


class TemplateFailed(Exception):
    """A template raised `__cause__`. The text names the file and the line.

    It leaves out the cause's text, which may quote a customer's data: dead letters and jobs store the reason.
    """

    def __init__(self, *, event_type: str, error: Exception) -> None:
        what = f"{type(error).__name__}{place_of(error)}"
        super().__init__(f"the e-mail of {event_type} cannot be rendered: {what}")


@dataclass(frozen=True, slots=True)
class RenderedEmail:
    """The content of an e-mail. The subject has one line."""

    subject: str
    body_html: str
    body_text: str


def render_email(
    *, event_type: str, locale: str, context: Mapping[str, object], profile: Profile | None = None
) -> RenderedEmail:
    """Render the e-mail of an event in the language of `locale`, or in English without a catalogue for it.

    Without a `profile`, use that of the settings.

    The end of a key of `context` says how its value is shown:

    - an int under `…_amount` as money in minor units of `context["currency"]`;
    - a datetime under `…_at` as its date in UTC;
    - a string under `…_url` unchanged if it is an http(s) URL, else as an empty string;
    - every other string as one line without control characters;
    - a list of mappings by the same rules.

    Raise `UnknownEmail`, or `TemplateFailed`, for example if a template uses a variable that `context` lacks.
    """
    if event_type not in event_types():
        raise UnknownEmail(f"no e-mail templates for the event {event_type!r}")
    reader = _reader(locale)
    currency = str(context.get("currency", ""))
    data = {key: _presentable(key, value, currency=currency, locale=reader) for key, value in context.items()}
    profile = profile or from_settings()
    data |= {
        "lang": f"{reader.language}-{reader.territory}" if reader.territory else reader.language,
        "shop_name": profile.shop_name,
        "shop_address": profile.postal_address,
        "shop_url": _safe_url(profile.url),
        "shop_colour": profile.colour,
        "shop_logo_url": _safe_url(profile.logo_url),
    }
    _catalogue.set(_translations(reader.language))
    try:
        subject = _one_line(_render(f"{event_type}/subject.txt", data))
        data["subject"] = subject = _shortened(subject)
        text = _render(f"{event_type}/body.txt", data)
        html = _render(f"{event_type}/body.html", data)
    except Exception as error:
        raise TemplateFailed(event_type=event_type, error=error) from error
    return RenderedEmail(
        subject=subject,
        body_html=_INDENT.sub("\n", html).strip() + "\n",
        body_text=_BLANK_LINES.sub("\n\n", text).strip() + "\n",
    )


def place_of(error: Exception) -> str:
    """Return " (file, line n)" for the innermost template frame of an error, or ""."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, TemplateSyntaxError):
        places.append((str(error.filename), error.lineno))
    for file, line in reversed(places):
        if file.endswith((".txt", ".html")):
            return f" ({file}, line {line})"
    return ""


def format_amount(*, amount: int, currency: str, locale: str) -> str:
    """Format an amount of money for a locale, or for English if Babel cannot parse the locale.

    `amount` is in minor units of the ISO 4217 currency (cents, yen, fils).

    >>> format_amount(amount=123456, currency="USD", locale="en")
    '$1,234.56'
    """
    return _money(amount, currency, _parsed(locale) or _ENGLISH)


def is_currency(code: str) -> bool:
    """Tell whether some territory uses the ISO 4217 currency as legal tender today."""
    return code in _currencies()


def is_locale(tag: str) -> bool:
    """Tell whether Babel knows a language tag, such as "en" or "de-AT"."""
    return _parsed(tag) is not None


@functools.cache
def event_types() -> frozenset[str]:
    """Return the events that have templates."""
    return frozenset(path.parent.name for path in our_folder().glob("*/subject.txt"))


def our_folder() -> Path:
    """Return the folder of the project's templates. A shop's own files are in EMAIL_TEMPLATES_DIR."""
    return Path(settings.BASE_DIR) / "templates" / "emails"


def make_environment(*, loader: BaseLoader, **_: Any) -> Environment:
    """Return the Jinja2 environment of the e-mails. Django calls it for the entry "emails" of TEMPLATES.

    `loader` reads the folders of that entry. The name `orderpost/<name>` always means the project's file, so
    that a file that replaces it can extend it.
    """
    ours = PrefixLoader({"orderpost": FileSystemLoader(our_folder())})
    environment = Environment(
        loader=ChoiceLoader([loader, ours]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        auto_reload=False,  # otherwise one e-mail could mix parts from before and after an edit
        extensions=["jinja2.ext.i18n"],
    )
    environment.install_gettext_callables(  # type: ignore[attr-defined]  # the extension adds it
        gettext=lambda *text: _catalogue.get().gettext(*text),
        ngettext=lambda *text: _catalogue.get().ngettext(*text),
        pgettext=lambda *text: _catalogue.get().pgettext(*text),
        npgettext=lambda *text: _catalogue.get().npgettext(*text),
        newstyle=True,  # escapes the values in the sentences of .html files
    )
    return environment


def environment() -> Environment:
    """Return the environment of this process, which caches the templates."""
    found: Environment = engines["emails"].env  # type: ignore[attr-defined]  # Django's Jinja2 backend has it
    return found


_ENGLISH = Locale("en")


@functools.lru_cache(maxsize=1024)
def _parsed(tag: str) -> Locale | None:
    if not _TAG.fullmatch(tag):
        return None
    try:
        return Locale.parse(tag.replace("-", "_"))
    except (ValueError, UnknownLocaleError):
        return None


@functools.lru_cache(maxsize=1024)
def _reader(tag: str) -> Locale:
    """Return the locale if its language has a catalogue, else English, for both sentences and numbers."""
    locale = _parsed(tag)
    return locale if locale and locale.language in dict(settings.LANGUAGES) else _ENGLISH


@functools.cache
def _translations(language: str) -> gettext.NullTranslations:
    return gettext.translation("django", CATALOGUES, [language], fallback=True)


@functools.cache
def _currencies() -> frozenset[str]:
    territories = get_global("territory_currencies")
    return frozenset(code for territory in territories for code in get_territory_currencies(territory))


@functools.lru_cache(maxsize=1024)
def _money_pattern(locale: Locale, digits: int) -> NumberPattern:
    pattern: NumberPattern = copy.copy(locale.currency_formats["standard"])
    pattern.frac_prec = (digits, digits)
    return pattern


@functools.lru_cache(maxsize=1024)
def _date(day: dt.date, locale: Locale) -> str:
    return format_date(day, "long", locale)


@functools.lru_cache(maxsize=8192)  # prices repeat, also within one e-mail
def _money(amount: int, currency: str, locale: Locale) -> str:
    digits = _MINOR_DIGITS.get(currency, 2)
    value = Decimal(amount).scaleb(-digits)
    written = _money_pattern(locale, digits).apply(value, locale, currency=currency, currency_digits=False)
    # Babel omits CLDR's currencySpacing: "KWD 1.500", not "KWD1.500".
    return _LETTER_BY_DIGIT.sub(_NO_BREAK, written)


def _presentable(key: str, value: object, *, currency: str, locale: Locale) -> object:
    match value:
        case str():
            return _safe_url(value) if key.endswith("_url") else _one_line(value)
        case bool():
            return value
        case int() if key.endswith("_amount"):
            return _money(value, currency, locale)
        case dt.datetime() if key.endswith("_at"):
            # A no-break space keeps the day and the month on one line.
            return _date(value.astimezone(dt.UTC).date(), locale).replace(" ", _NO_BREAK, 1)
        case list():
            return [
                {k: _presentable(k, v, currency=currency, locale=locale) for k, v in entry.items()}
                for entry in value
            ]
        case _:
            return value


def _one_line(value: str) -> str:
    if not value.isprintable():
        value = _INVISIBLE.sub("", _BREAKS.sub(" ", value))
    return " ".join(value.split())


def _shortened(value: str) -> str:
    return value if len(value) <= _SUBJECT_LIMIT else value[: _SUBJECT_LIMIT - 1].rstrip() + "…"


def _safe_url(value: str) -> str:
    """Return `value` if it is an http(s) URL with a host and no invisible characters, else ""."""
    if not value.isprintable() or " " in value:
        return ""
    try:
        parts = urlsplit(value)
    except ValueError:
        return ""
    return value if parts.scheme in ("http", "https") and parts.hostname else ""


def _render(name: str, data: Mapping[str, object]) -> str:
    return environment().get_template(name).render(data)
