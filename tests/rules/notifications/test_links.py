"""Texts of customers: mail programs link nothing in them, and the shop's own links stay. No database."""

from __future__ import annotations

import re
from email.utils import parseaddr
from html import unescape

import pytest
from django.utils.html import urlize
from hypothesis import example, given, settings
from hypothesis import strategies as st

from notifications.content.render_files import RenderedEmail
from notifications.models import EmailNotification
from notifications.providers.base import build_message
from runtime.texts import break_links
from tests.kit.words import SAMPLE, event_types, new_id, render_email

_TOP = "(?:com|net|org|de|io|uk|example|xn--p1ai|рф|中国)"
#: What mail programs link, from their sources where those are public.
PROGRAMS = {
    "a scheme (all)": re.compile(r"\b[a-z][a-z0-9+.-]*:[\\/]+\S", re.IGNORECASE),
    "a scheme without slashes (Apple, Thunderbird)": re.compile(r"\b(?:mailto|tel|sms):\S", re.IGNORECASE),
    "www and ftp (Outlook, Thunderbird)": re.compile(r"\b(?:www|ftp)\d*\.\S", re.IGNORECASE),
    "an address (all)": re.compile(r"[^\s@]@[^\s@]+\.\w"),
    "a bare domain (Gmail, Apple, Outlook's web)": re.compile(rf"[\w-]\.{_TOP}\b", re.IGNORECASE),
    # Android's Patterns.WEB_URL takes U+00A0 to U+D7FF for letters of a label, joiners, too.
    "a bare domain (Android)": re.compile(rf"[\w\u00a0-\ud7ff-]\.{_TOP}(?!\w)", re.IGNORECASE),
    "a domain with the dots of Chinese and Japanese": re.compile(rf"\w[。．｡]{_TOP}\b", re.IGNORECASE),
    "an IPv4 address (Android)": re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}"),
    "a share (Outlook)": re.compile(r"\\\\\S"),
}
ATTACKS = (
    "Win 5000 EUR: http://evil.example/x",
    "Win HTTPS://EVIL.EXAMPLE",
    "http:/evil.example http:\\\\evil.example \\\\evil\\x",
    "www.evil.example www2.evil.de ftp.evil.org",
    "evil.com evil.co.uk/x e-vil.рф 邪悪。中国 evil．com evil.xn--p1ai",
    "write to a@evil.com or a.b@evil.example",
    "mailto:a@evil.com tel:+491234567 sms:123",
    "1.2.3.4/x http://1.2.3.4",
    "http:\u200c//evil.com http:\u00ad//evil.com http\u200d://evil.com",
    "ev\u200bil.com http:\u2060//evil.com",
)


def linked(text: str) -> list[str]:
    return [name for name, program in PROGRAMS.items() if program.search(text)] + re.findall(
        r'href="[^"]*"', urlize(text)
    )


def seen(html: str) -> str:
    """Return what a mail program scans: texts outside tags."""
    return unescape(re.sub(r"<(style|title|a)\b.*?</\1>|<[^>]*>", "\n", html, flags=re.DOTALL))


def render(event_type: str, **context: object) -> RenderedEmail:
    return render_email(event_type=event_type, locale="en", context={**SAMPLE, **context})


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_programs_would_link_it(attack):
    assert linked(re.sub("[\u200b-\u200d\u00ad\u2060]", "", attack))


@pytest.mark.parametrize("event_type", sorted(event_types()))
@pytest.mark.parametrize("field", ["name", "reference", "item"])
def test_no_text_of_a_customer_is_linked(event_type, field):
    for attack in ATTACKS:
        item = {"name": attack, "quantity": 1, "unit_amount": 1, "line_amount": 1}
        clean = {"tracking_url": "", "reason": ""}
        mail = render(event_type, **clean, **({"items": [item]} if field == "item" else {field: attack}))
        own = render(event_type, **clean)
        for part, ours in (
            (mail.subject, own.subject),
            (mail.body_text, own.body_text),
            (seen(mail.body_html), seen(own.body_html)),
        ):
            assert linked(part) == linked(ours), part
        assert mail.body_html.count("href=") == own.body_html.count("href=")


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_name_in_a_header_is_linked(attack):
    mail = EmailNotification(
        id=new_id(), order_id=new_id(), recipient_email="a@b.test", to_name=attack, from_email="s@shop.test"
    )
    (to,) = build_message(mail, None).to
    assert not linked(parseaddr(to)[0])


@pytest.mark.parametrize("text", ["Sold out, see https://shop.example/x", "Write to help@shop.example"])
def test_the_shops_own_reason_and_link_stay(text):
    mail = render("order.cancelled", reason=text)
    assert text in mail.body_text and text in mail.body_html
    url = "https://parcels.example.com/42"
    mail = render("order.completed", tracking_url=url)
    assert url in mail.body_text and f'href="{url}"' in mail.body_html


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Anna Schmidt",
            "Dr. Oetker",
            "J.R.R. Tolkien",
            "A-10234",
            "2026.10.234",
            "1.5 l",
            "Size: M",
            "50/50",
        ),
        *("Ann @home", "M@rie", "AC/DC", "No. 5", "Hello... you", "C:", "12:30", "¿Qué?", "علی‌رضا", "v1.2.3"),
    ],
)
def test_it_leaves_ordinary_text_as_it_is(text):
    assert break_links(text) == text


@pytest.mark.parametrize("text", ["Node.js Handbook", "St.Pauli", "Booking.com voucher", "Dr.Müller"])
def test_a_dot_between_words_looks_as_before(text):
    assert break_links(text).replace("\u200c", "") == text


@settings(max_examples=300)
@example("1@1.\u00ada")
@example("a@b.\u200dcom")
@given(st.text("aB1.:/\\@。 wwwcomhttp\u200c\u200d\u00ad-_", max_size=30))
def test_a_text_that_was_broken_has_nothing_left_to_break(text):
    broken = break_links(text)
    assert break_links(broken) == broken
    assert not linked(broken)
