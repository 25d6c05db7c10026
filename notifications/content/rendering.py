"""Render an e-mail from plain data: subject, HTML and text, in the recipient's language and number formats.

`render_email` runs in the transaction of the order's change, while it holds the order's lock. It reads
neither a table nor the network.

An event has an e-mail if the folder templates/emails/<event>/ exists. A file of EMAIL_TEMPLATES_DIR replaces
the file of the same name; `template_checks` renders all of them when the process starts. One
Jinja2 template serves all languages: gettext translates its sentences from the catalogues in
notifications/locale, and a shop's own texts replace them one by one. Short labels have a context, since
"Order" and "Paid" alone are ambiguous. docs/guides/templates.md explains the variables.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple
from urllib.parse import urlsplit

from babel import Locale, UnknownLocaleError
from babel.core import get_global
from babel.dates import format_date
from babel.numbers import NumberPattern, get_territory_currencies
from django.conf import settings

from notifications.content import shop_texts
from notifications.content.profiles import Profile, from_settings
from notifications.content.render_files import RenderedEmail, place_of, render_parts
from notifications.content.template_files import NO_WORDS, Notes, Words, event_types
from runtime.texts import break_links, one_line
from runtime.time_zones import find_zone

#: The form of a language tag of BCP 47, which is also in the API's document. Shops also write underscores.
#: Babel lacks many that browsers send, such as de-US, and no order may be refused for one.
LANGUAGE_TAG = "(?:[A-Za-z]{2,3}|[iIxX][-_][A-Za-z0-9]{1,8})(?:[-_][A-Za-z0-9]{1,8})*"
#: RFC 5646 asks for room for so many characters.
LONGEST_TAG = 35
#: Which currencies are in use is a matter of the release, not of the day on which a process started.
_CURRENCIES_OF = dt.date(2026, 11, 1)
_LETTER_BY_DIGIT = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_NO_BREAK = "\N{NO-BREAK SPACE}"
#: The texts that a shop writes. Customers could advertise by links in the others.
_OF_THE_SHOP = frozenset(["reason"])
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
        self.event_type = event_type


@dataclass(frozen=True, slots=True)
class TemplateData:
    """The data of an e-mail as its reader sees them: texts, numbers, and lists of texts or of mappings."""

    language: str
    data: Mapping[str, object]


def render_email(
    *,
    event_type: str,
    locale: str,
    context: Mapping[str, object],
    profile: Profile | None = None,
    words: Words | None = None,
) -> RenderedEmail:
    """Render the e-mail of an event in the language of `locale` if it has a catalogue.

    Otherwise use that of the profile's default locale, or English.

    The default `profile` is that of the settings, and the default `words` are the published own texts of the
    profile and the language. `localize` describes `context`. Raise `UnknownEmail`, or `TemplateFailed` if a
    file fails, for example because it uses a variable that `context` lacks.
    """
    profile = profile or from_settings()
    localized = localize(locale=locale, context=context, profile=profile)
    if words is None:
        words = shop_texts.find(source=profile.source, event_type=event_type, language=localized.language)
    return render_localized(event_type=event_type, localized=localized, words=words)


def render_localized(
    *, event_type: str, localized: TemplateData, words: Words = NO_WORDS, notes: Notes | None = None
) -> RenderedEmail:
    """Render the e-mail of an event from what `localize` returned. Raise as `render_email` does."""
    if event_type not in event_types():
        raise UnknownEmail(f"no e-mail templates for the event {event_type!r}")
    try:
        return render_parts(
            event_type=event_type,
            language=localized.language,
            data=localized.data,
            words=words,
            notes=notes,
        )
    except Exception as error:
        raise TemplateFailed(event_type=event_type, error=error) from error


def localize(*, locale: str, context: Mapping[str, object], profile: Profile) -> TemplateData:
    """Return the data for the templates. The end of a key of `context` says how its value is shown.

    - an int under `…_amount` as money in minor units of `context["currency"]`;
    - a datetime under `…_at` as its date in the time zone `context["time_zone"]`, or else in the profile's;
    - a string under `…_url` unchanged if it is an http(s) URL, else as an empty string;
    - a `reason`, which is the shop's, as one line without invisible characters;
    - every other string likewise, and so that mail programs link nothing in it;
    - a list of mappings, or of strings, by the same rules.
    """
    reader = _reader(locale, profile.default_locale)
    currency = str(context.get("currency", ""))
    zone = find_zone(str(context.get("time_zone", ""))) or find_zone(profile.time_zone) or dt.UTC
    way = _Way(reader, currency, zone)
    data = {key: _presentable(key, value, way) for key, value in context.items()}
    data |= {
        "lang": f"{reader.language}-{reader.territory}" if reader.territory else reader.language,
        "shop_name": profile.shop_name,
        "shop_address": profile.postal_address,
        "shop_url": _safe_url(profile.url),
        "shop_colour": profile.colour,
        "shop_logo_url": _safe_url(profile.logo_url),
    }
    return TemplateData(reader.language, data)


def format_amount(*, amount: int, currency: str, locale: str) -> str:
    """Format an amount of money for a locale, or for English if Babel lacks its language.

    `amount` is in minor units of the ISO 4217 currency (cents, yen, fils).

    >>> format_amount(amount=123456, currency="USD", locale="en")
    '$1,234.56'
    """
    return _money(amount, currency, _parsed(locale) or _ENGLISH)


def minor_digits(currency: str) -> int:
    """Return the decimals of a currency's minor unit."""
    return _MINOR_DIGITS.get(currency, 2)


@functools.cache
def currencies(*, since: dt.date = _CURRENCIES_OF) -> frozenset[str]:
    """Return the ISO 4217 currencies that were legal tender of some territory `since` a day."""
    return frozenset(
        code
        for territory in get_global("territory_currencies")
        for code in get_territory_currencies(territory, since, _CURRENCIES_OF)
    )


def is_currency(code: str) -> bool:
    """Tell whether an ISO 4217 currency is in use: legal tender of some territory."""
    return code in currencies()


def was_currency(code: str) -> bool:
    """Tell whether an ISO 4217 currency is or was in use, such as HRK."""
    return code in currencies(since=dt.date.min)


def is_locale(tag: str) -> bool:
    """Tell whether a text has the form of a language tag, such as "en" or "de-AT"."""
    return len(tag) <= LONGEST_TAG and re.fullmatch(LANGUAGE_TAG, tag) is not None


def email_language(locale: str, *, profile: Profile) -> str:
    """Return the code of the language in which `render_email` writes."""
    return _reader(locale, profile.default_locale).language


@functools.lru_cache(maxsize=1024)
def nearest_locale(text: str) -> str | None:
    """Return the longest language tag that a text begins with and that Babel can format, or None.

    >>> nearest_locale("en_US.UTF-8"), nearest_locale("sl_SL")
    ('en_US', 'sl')
    """
    match = re.match(rf"{LANGUAGE_TAG}(?![A-Za-z0-9])", text)
    tag = match[0] if match else ""
    while tag:
        if len(tag) <= LONGEST_TAG:
            with contextlib.suppress(ValueError, UnknownLocaleError):
                Locale.parse(tag.replace("-", "_"))
                return tag
        tag = re.sub("(^|[-_])[^-_]*$", "", tag)
    return None


_ENGLISH = Locale("en")


@functools.lru_cache(maxsize=1024)
def _parsed(tag: str) -> Locale | None:
    """Return Babel's nearest locale of a tag."""
    near = nearest_locale(tag) if is_locale(tag) else None
    return Locale.parse(near.replace("-", "_")) if near else None


@functools.lru_cache(maxsize=1024)
def _reader(tag: str, default: str = "") -> Locale:
    """Return the locale of the first tag whose language has a catalogue, else English.

    Both sentences and numbers are written for it.
    """
    locales = filter(None, map(_parsed, (tag, default)))
    return next((locale for locale in locales if locale.language in dict(settings.LANGUAGES)), _ENGLISH)


@functools.lru_cache(maxsize=1024)
def _money_pattern(locale: Locale, digits: int) -> NumberPattern:
    pattern: NumberPattern = copy.copy(locale.currency_formats["standard"])
    pattern.frac_prec = (digits, digits)
    return pattern


@functools.lru_cache(maxsize=1024)
def _date(day: dt.date, locale: Locale) -> str:
    # A no-break space keeps the day and the month on one line.
    return format_date(day, "long", locale).replace(" ", _NO_BREAK, 1)


def write_date(when: dt.datetime, *, locale: str) -> str:
    """Return a day in UTC as the e-mails of a language write it."""
    return _date(when.astimezone(dt.UTC).date(), _reader(locale))


def name_country(code: str, *, locale: str) -> str:
    """Return a country's name as the e-mails of a language write it, or the code if it has none."""
    return str(_reader(locale).territories.get(code, code))


@functools.lru_cache(maxsize=8192)  # prices repeat, also within one e-mail
def _money(amount: int, currency: str, locale: Locale) -> str:
    digits = minor_digits(currency)
    value = Decimal(amount).scaleb(-digits)
    written = _money_pattern(locale, digits).apply(value, locale, currency=currency, currency_digits=False)
    # Babel omits CLDR's currencySpacing: "KWD 1.500", not "KWD1.500".
    return _LETTER_BY_DIGIT.sub(_NO_BREAK, written)


class _Way(NamedTuple):
    """The form in which an e-mail writes its values."""

    locale: Locale
    currency: str
    zone: dt.tzinfo


def _presentable(key: str, value: object, way: _Way) -> object:
    match value:
        case "":
            return value
        case str():
            if key.endswith("_url"):
                return _safe_url(value)
            return one_line(value) if key in _OF_THE_SHOP else break_links(one_line(value))
        case bool():
            return value
        case int() if key.endswith("_amount"):
            return _money(value, way.currency, way.locale)
        case dt.datetime() if key.endswith("_at"):
            return _date(value.astimezone(way.zone).date(), way.locale)
        case list():
            return [
                {k: _presentable(k, v, way) for k, v in entry.items()}
                if isinstance(entry, Mapping)
                else _presentable(key, entry, way)
                for entry in value
            ]
        case _:
            return value


def _safe_url(value: str) -> str:
    """Return `value` if it is an http(s) URL with a host and no invisible characters, else ""."""
    if not value.isprintable() or " " in value:
        return ""
    try:
        parts = urlsplit(value)
    except ValueError:
        return ""
    return value if parts.scheme in ("http", "https") and parts.hostname else ""
