"""Rendering: what is shown how, in which language, and what hostile values turn into. No database."""

from __future__ import annotations

import datetime as dt
import re
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import babel.numbers
import pytest
from django.conf import settings

from notifications.content.rendering import (
    TemplateFailed,
    UnknownEmail,
    currencies,
    format_amount,
    is_currency,
    is_locale,
    was_currency,
)
from tests.kit.waiting import PATIENCE
from tests.kit.words import SAMPLE, event_types, render_email

NBSP = "\N{NO-BREAK SPACE}"
HOSTILE = (
    "<script>alert(1)</script>{{ shop_name }}{% now 'Y' %}%(name)s"
    "\r\nBcc: victim@example.com\x00\u202egpj.exe"
)

WALES = "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"


def paid(*, locale="en", **context):
    """Render the e-mail of a paid order."""
    data = {"name": "Anna", "changed_at": dt.datetime(2026, 11, 21, tzinfo=dt.UTC)}
    return render_email(event_type="order.paid", locale=locale, context={**SAMPLE, **data, **context})


@pytest.mark.parametrize(
    ("amount", "currency", "locale", "written"),
    [
        (123456, "USD", "en", "$1,234.56"),
        (123456, "EUR", "de", f"1.234,56{NBSP}€"),
        (123456, "EUR", "de-AT", f"€{NBSP}1.234,56"),
        (123456, "EUR", "fr", f"1\u202f234,56{NBSP}€"),
        (123456, "EUR", "es", f"1.234,56{NBSP}€"),
        (123456, "JPY", "en", "¥123,456"),
        (123456, "KWD", "en", f"KWD{NBSP}123.456"),
        (5, "KWD", "de", f"0,005{NBSP}KWD"),
        (10**12, "USD", "en", "$10,000,000,000.00"),
        (123456, "USD", "nonsense!", "$1,234.56"),
    ],
)
def test_it_writes_an_amount_as_the_locale_does(amount, currency, locale, written):
    assert format_amount(amount=amount, currency=currency, locale=locale) == written


@pytest.mark.parametrize(
    ("currency", "written"), [("RSD", "1,234.56"), ("IQD", "123.456"), ("ISK", "123,456")]
)
def test_it_counts_minor_units_as_iso_4217_does_and_not_as_cldr(currency, written):
    assert format_amount(amount=123456, currency=currency, locale="en") == f"{currency}{NBSP}{written}"


def test_it_knows_the_currencies_that_are_legal_tender_today():
    codes = ["EUR", "KWD", "CHF", "DEM", "XXX", "XTS", "XAU", "eur", "EURO", "", "€"]
    assert [code for code in codes if is_currency(code)] == ["EUR", "KWD", "CHF"]


def test_it_knows_the_same_currencies_on_every_day(monkeypatch):
    class NoDay(dt.date):
        @classmethod
        def today(cls):
            raise AssertionError("it asks for the day on which this process runs")

    monkeypatch.setattr(babel.numbers, "datetime", types.SimpleNamespace(**vars(dt) | {"date": NoDay}))
    before = currencies()
    currencies.cache_clear()
    assert currencies() == before and {"EUR", "HRK"} & before == {"EUR"}
    assert was_currency("HRK") and not was_currency("QQQ")


def test_it_knows_language_tags_by_their_form():
    tags = ["en", "de-AT", "pt_BR", "zh-Hant-TW", "es-419", "de-US", "xx"]
    others = ["", "english", "../de", "de\n", "de-AT@euro", "de AT", "d\x00", "a" * 500]
    assert [tag for tag in tags + others if is_locale(tag)] == tags


@pytest.mark.parametrize(
    ("locale", "lang", "greeting", "date"),
    [
        ("en", "en", "Hello Anna,", f"November{NBSP}21, 2026"),
        ("en-GB", "en-GB", "Hello Anna,", f"21{NBSP}November 2026"),
        ("de-AT", "de-AT", "Guten Tag Anna,", f"21.{NBSP}November 2026"),
        ("fr_CA", "fr-CA", "Bonjour Anna,", f"21{NBSP}novembre 2026"),
        ("de-US", "de", "Guten Tag Anna,", f"21.{NBSP}November 2026"),
        ("xx", "en", "Hello Anna,", f"November{NBSP}21, 2026"),
        ("es-MX", "es-MX", "Hola, Anna:", f"21{NBSP}de noviembre de 2026"),
        ("pt-BR", "en", "Hello Anna,", f"November{NBSP}21, 2026"),
        ("no such thing", "en", "Hello Anna,", f"November{NBSP}21, 2026"),
    ],
)
def test_it_speaks_the_readers_language_and_else_english(locale, lang, greeting, date):
    mail = paid(locale=locale)
    assert f'<html lang="{lang}"' in mail.body_html
    for body in (mail.body_html, mail.body_text):
        assert greeting in body
        assert date in body


@pytest.mark.parametrize("event_type", ["order.lost", "../emails/order.paid"])
def test_it_refuses_an_event_without_templates(event_type):
    with pytest.raises(UnknownEmail, match=re.escape(event_type)):
        render_email(event_type=event_type, locale="en", context={})


def test_it_takes_the_date_in_utc():
    late = dt.datetime(2026, 11, 21, 22, 0, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    assert f"November{NBSP}22, 2026" in paid(changed_at=late).body_text


@pytest.mark.parametrize("event_type", sorted(event_types()))
@pytest.mark.parametrize("field", ["name", "reference", "reason", "item"])
def test_it_makes_a_hostile_value_harmless(event_type, field):
    item = {"name": HOSTILE, "quantity": 1, "unit_amount": 1, "line_amount": 1}
    hostile = {"items": [item]} if field == "item" else {field: HOSTILE}
    mail = render_email(event_type=event_type, locale="de", context={**SAMPLE, **hostile})
    assert "<script" not in mail.body_html
    for part in (mail.subject, mail.body_html, mail.body_text):
        assert not {"\r", "\x00", "\u202e"} & set(part)
    assert not any(line.startswith("Bcc:") for line in mail.body_text.splitlines())
    assert "\n" not in mail.subject
    shown = field != "reason" or event_type == "order.cancelled"
    # The value is data: what looks like a template or a placeholder stays as it was written.
    victim = "victim@example.com gpj.exe" if field == "reason" else "victim@ example.\u200ccom gpj.\u200cexe"
    assert ("{{ shop_name }}{% now 'Y' %}%(name)s Bcc: " + victim in mail.body_text) is shown


def test_it_keeps_the_subject_on_one_line():
    for separator in ["\r\n", "\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\t", "\x1c"]:
        assert paid(reference=f"A{separator}{separator}1").subject.endswith(" A 1"), repr(separator)


def test_it_cuts_a_subject_at_255_characters():
    subject = paid(reference="x" * 400).subject
    assert len(subject) == 255
    assert subject.endswith("x…")


def test_it_drops_a_lone_surrogate_so_that_the_mail_can_be_encoded():
    paid(name="A\ud800B").body_html.encode()


def test_it_leaves_ordinary_text_as_it_is():
    assert "Zoë O’Néill 👩‍🚀 & Søn," in paid(name="Zoë O’Néill 👩‍🚀 & Søn").body_text
    assert "Zoë O’Néill 👩‍🚀 &amp; Søn," in paid(name="Zoë O’Néill 👩‍🚀 & Søn").body_html


@pytest.mark.parametrize(
    "name", ["علی‌رضا", "👨‍👩‍👧", WALES, "葛\U000e0100城", "Donau\u00addampf", "김\u3164수"]
)
def test_it_keeps_what_words_and_emoji_need(name):
    mail = paid(name=name)
    assert f"Hello {name}," in mail.body_text and f"Hello {name}," in mail.body_html


@pytest.mark.parametrize("name", [*"\u3164\u2800\u00ad\u115f\ufe0f\u200d\u200b\u034f\uffa0", "\u3164 \u200c"])
def test_it_greets_nobody_by_a_name_without_a_visible_character(name):
    mail = paid(name=name)
    assert "Hello,\n" in mail.body_text and "Hello,</p>" in mail.body_html


def test_it_drops_tags_that_are_no_flag():
    assert "Hello Ann," in paid(name="Ann\U000e0049\U000e0067").body_text


def completed(url):
    parcel = {"carrier": "", "tracking_number": "", "tracking_url": url}
    context = {**SAMPLE, "tracking_url": url, "parcels": [parcel]}
    return render_email(event_type="order.completed", locale="en", context=context)


@pytest.mark.parametrize(
    "url", ["https://t.example.com/p?a=1&b=2", "http://t.example.com", "HTTPS://T.EXAMPLE.COM/1"]
)
def test_it_links_a_web_address(url):
    mail = completed(url)
    assert f'<a href="{url.replace("&", "&amp;")}"' in mail.body_html
    assert f"\n{url}\n" in mail.body_text


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "//t.example.com",
        "https:///nowhere",
        "ftp://t.example.com",
        "https://t.example.com/\r\nBcc: x@example.com",
        "https://t.example.com/ x",
        "https://t.example.com/\u202e",
        "https://[t.example.com",
    ],
)
def test_it_never_shows_any_other_address(url):
    mail = completed(url)
    assert "Track your parcel" not in mail.body_html + mail.body_text
    assert url not in mail.body_html + mail.body_text


def test_it_escapes_an_address_that_breaks_out_of_its_attribute():
    assert 'onclick="' not in completed('https://t.example.com/"onclick="alert(1)').body_html


def test_it_escapes_a_value_in_a_translated_sentence_of_the_html_alone():
    mail = paid(locale="fr", name="<d'Artagnan>")
    assert "Bonjour &lt;d&#39;Artagnan&gt;," in mail.body_html
    assert "Bonjour <d'Artagnan>," in mail.body_text


def test_it_refuses_a_context_without_a_variable_of_the_template():
    context = {key: value for key, value in SAMPLE.items() if key != "total_amount"}
    with pytest.raises(
        TemplateFailed, match=r"UndefinedError .*/order\.paid/body\.html, line \d+\)$"
    ) as caught:
        render_email(event_type="order.paid", locale="en", context=context)
    assert "total_amount" in str(caught.value.__cause__)


def test_threads_that_render_at_once_keep_their_languages():
    languages = [language for language, _ in settings.LANGUAGES]
    inside = threading.Barrier(len(languages))

    class Name:
        """Have every thread reach the middle of an e-mail before one goes on."""

        def __str__(self) -> str:
            inside.wait(PATIENCE)
            return "Anna"

    with ThreadPoolExecutor(len(languages)) as pool:
        emails = list(pool.map(lambda language: paid(locale=language, name=Name()), languages))
    assert emails == [paid(locale=language, name="Anna") for language in languages]
