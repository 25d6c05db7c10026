"""Turns plain data into an e-mail: subject, HTML and text, in the reader's language and number formats.

Whoever writes an e-mail intent calls render_email once, in its transaction; so nothing here reads a table or
the network, and warm_up lets a process pay the first-use costs (templates, catalogues, Babel's data) at its
start. What an e-mail is about is not known here: an e-mail exists where templates/emails/<event>/ does.

The sentences are gettext's: with one template for each e-mail instead of one for each language, layout and
wording stay apart, and translators' tools know the format. The catalogues are in locale/; after a change of
one, `pybabel compile --domain django --directory locale` (Babel's, no GNU tools). Tests hold them complete.
Labels carry the context "e-mail": Django's own catalogue has an "Order" too, and means the sorting.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import urlsplit

from babel import Locale, UnknownLocaleError
from babel.core import get_global
from babel.dates import format_date
from babel.numbers import NumberPattern, get_territory_currencies
from django.conf import settings
from django.template import Context, Engine
from django.utils import translation

_TAG = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8}){0,4}")
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_INVISIBLE = re.compile(
    r"[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)  # bidi too
_LETTER_BY_DIGIT = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n")
_INDENT = re.compile(r"\n\s+")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_SUBJECT_LIMIT = 255
# Digits of the minor unit where it is not 2, from ISO 4217 list one. Babel's own digits are CLDR's, which are
# about what people write (RSD 0, IQD 0): amounts here are counted in ISO's units.
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
    """There are no templates for this event."""


@dataclass(frozen=True, slots=True)
class RenderedEmail:
    """An e-mail ready to be stored and sent: a one-line subject and the two bodies."""

    subject: str
    body_html: str
    body_text: str


def render_email(*, event_type: str, locale: str, context: Mapping[str, object]) -> RenderedEmail:
    """This function will render the e-mail of an event for a reader.

    `context` is plain data, and its keys say how a value is shown: an int under `…_amount` is money in minor
    units of `context["currency"]`, a datetime under `…_at` becomes its date in UTC, a string under `…_url`
    stays only if it is an http(s) address; other strings become one line without control characters. Lists
    of mappings are treated alike. A locale without a catalogue gets English. Raises `UnknownEmail`.
    """
    if event_type not in event_types():
        raise UnknownEmail(f"no e-mail templates for the event {event_type!r}")
    reader = _reader(locale)
    currency = str(context.get("currency", ""))
    data = {key: _presentable(key, value, currency=currency, locale=reader) for key, value in context.items()}
    data |= {
        "lang": f"{reader.language}-{reader.territory}" if reader.territory else reader.language,
        "shop_name": settings.SHOP_NAME,
        "shop_address": settings.SHOP_ADDRESS,
        "shop_url": _safe_url(settings.SHOP_URL),
    }
    with translation.override(reader.language):
        subject = _one_line(_render(f"emails/{event_type}/subject.txt", data, html=False))
        data["subject"] = subject = _shortened(subject)
        text = _render(f"emails/{event_type}/body.txt", data, html=False)
        html = _render(f"emails/{event_type}/body.html", data, html=True)
    return RenderedEmail(
        subject=subject,
        body_html=_INDENT.sub("\n", html).strip() + "\n",
        body_text=_BLANK_LINES.sub("\n\n", text).strip() + "\n",
    )


def format_amount(*, amount: int, currency: str, locale: str) -> str:
    """This function will write an amount of money as readers of a locale expect it.

    `amount` is in minor units of the ISO 4217 currency (cents, yen, fils). A locale that Babel cannot parse
    gets English formats.

    >>> format_amount(amount=123456, currency="USD", locale="en")
    '$1,234.56'
    """
    return _money(amount, currency, _parsed(locale) or _ENGLISH)


def is_currency(code: str) -> bool:
    """This function will tell whether a code is an ISO 4217 currency that is legal tender somewhere today."""
    return code in _currencies()


def is_locale(tag: str) -> bool:
    """This function will tell whether a string is a language tag that Babel knows: "en", "de-AT"."""
    return _parsed(tag) is not None


def warm_up() -> None:
    """This function will render every e-mail in every language once, so that no request pays for that."""
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    _currencies()
    for event_type in event_types():
        for language, _ in settings.LANGUAGES:
            context = {"currency": "EUR", "total_amount": 100, "changed_at": moment}
            render_email(event_type=event_type, locale=language, context=context)


@functools.cache
def event_types() -> frozenset[str]:
    """This function will name the events that have an e-mail."""
    folder = settings.BASE_DIR / "templates" / "emails"
    return frozenset(path.parent.name for path in folder.glob("*/subject.txt"))


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
    """The locale if its language has a catalogue, else English in sentences, numbers and dates alike."""
    locale = _parsed(tag)
    return locale if locale and locale.language in dict(settings.LANGUAGES) else _ENGLISH


@functools.cache
def _currencies() -> frozenset[str]:
    territories = get_global("territory_currencies")
    return frozenset(code for territory in territories for code in get_territory_currencies(territory))


@functools.lru_cache(maxsize=1024)
def _money_pattern(locale: Locale, digits: int) -> NumberPattern:
    pattern: NumberPattern = copy.copy(locale.currency_formats["standard"])
    pattern.frac_prec = (digits, digits)
    return pattern


def _money(amount: int, currency: str, locale: Locale) -> str:
    digits = _MINOR_DIGITS.get(currency, 2)
    value = Decimal(amount).scaleb(-digits)
    written = _money_pattern(locale, digits).apply(value, locale, currency=currency, currency_digits=False)
    # CLDR's currencySpacing, which Babel leaves out: "KWD 1.500", not "KWD1.500".
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
            # No line should end between the day and the month.
            return format_date(value.astimezone(dt.UTC).date(), "long", locale).replace(" ", _NO_BREAK, 1)
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
    """The address if a mail may link it, else an empty string: http(s), a host, nothing invisible."""
    if not value.isprintable() or " " in value:
        return ""
    try:
        parts = urlsplit(value)
    except ValueError:
        return ""
    return value if parts.scheme in ("http", "https") and parts.hostname else ""


def _render(name: str, data: Mapping[str, object], *, html: bool) -> str:
    # Escaping follows the kind of file, so that no template can forget it. Babel has localised the numbers.
    context = Context(dict(data), autoescape=html, use_l10n=False, use_tz=False)
    return Engine.get_default().get_template(name).render(context)
