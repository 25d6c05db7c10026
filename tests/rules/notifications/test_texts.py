"""Each e-mail's words in each language, as `texts` has them.

An e-mail that should say something else is changed in its template or catalogue and in these files.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.words import RenderedEmail
from tests.rules.notifications.test_emails import CHANGES, LANGUAGES, mail, plain

TEXTS = Path(__file__).with_name("texts")
WHOLE = "order.part_refunded"  # has each line that an e-mail can have below its message
EMAILS: dict[str, dict[str, Any]] = {name: {"event_type": name} for name in CHANGES} | {
    "order.paid, without name and reference": {"event_type": "order.paid", "name": "", "reference": ""},
    "order.completed, without tracking": {"event_type": "order.completed", "change": {}},
    "order.cancelled, unpaid": {"event_type": "order.cancelled", "change": {"was_paid": False}},
    "order.part_refunded, again": {
        "event_type": "order.part_refunded",
        "change": {"amount": 1000},
        "refunded_amount": 2900,
    },
    "order.refunded, the rest": {
        "event_type": "order.refunded",
        "change": {"amount": 4990},
        "refunded_amount": 6890,
    },
}


def written(language: str) -> dict[str, str]:
    """Return the texts of a language's file by their names."""
    parts = re.split(r"^== (.+)\n", (TEXTS / f"{language}.txt").read_text(), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def message(email: RenderedEmail) -> str:
    """Return the text up to the order, its items and the shop."""
    return plain(email.body_text).partition("\n\n- ")[0].rpartition("\n\n")[0]


def words(email: RenderedEmail, *, whole: bool) -> str:
    """Return what a reader sees: the subject, what only the HTML says, and the message or the whole text."""
    seen = [f"Subject: {plain(email.subject)}"]
    for name, tag in (("Preheader", "div"), ("Badge", "span"), ("Heading", "h1")):
        found = re.search(rf"<{tag}[^>]*>([^<]*)", email.body_html)
        assert found
        text = plain(html.unescape(found[1])).rstrip("\u2007\u034f ")  # the filler behind the preheader
        seen.append(f"{name}: {text}")
    body = plain(email.body_text).rstrip("\n") if whole else message(email)
    return "\n".join([*seen, "", body])


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", EMAILS)
def test_it_says_these_words(name, language):
    email = mail(**EMAILS[name], locale=language)
    assert words(email, whole=name == WHOLE) == written(language)[name]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_left_over(language):
    assert list(written(language)) == list(EMAILS)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", EMAILS)
def test_it_says_the_same_in_both_bodies(name, language):
    email = mail(**EMAILS[name], locale=language)
    page = plain(html.unescape(email.body_html))
    sentences = [line.removesuffix(":").rstrip() for line in message(email).splitlines() if line]
    assert sentences and [sentence for sentence in sentences if sentence not in page] == []
