"""The eight e-mails, from an order that is in no table to what the customer reads."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from html.parser import HTMLParser
from typing import Any

import pytest
from django.conf import settings

from tests.kit.words import Order, RenderedEmail, email_context, event_types, render_email

PLACED = dt.datetime(2026, 11, 20, 14, 3, tzinfo=dt.UTC)
CHANGED = dt.datetime(2026, 11, 21, 9, 30, tzinfo=dt.UTC)
MUG = {"sku": "M", "name": "Ceramic mug", "quantity": 2, "unit_amount": 1900}
TOWEL = {"sku": "T", "name": "Tea towel", "quantity": 1, "unit_amount": 2500}
CHANGES: dict[str, dict[str, Any]] = {
    "order.placed": {},
    "order.payment_failed": {},
    "order.paid": {},
    "order.confirmed": {},
    "order.completed": {"tracking_url": "https://track.example.com/1"},
    "order.cancelled": {"was_paid": True, "reason": "Sold out"},
    "order.refunded": {"amount": 6890},
    "order.part_refunded": {"amount": 1900},
}
LANGUAGES = [language for language, _ in settings.LANGUAGES]
VOID = {"meta", "br"}


def mail(
    event_type: str, *, locale: str = "en", change: dict[str, Any] | None = None, **fields
) -> RenderedEmail:
    """Render the e-mail of an order with the given fields; refunds add up by themselves unless given."""
    details = CHANGES[event_type] if change is None else change
    values = {
        "id": uuid.UUID("01932c07-209c-7a51-8f00-0123456789ab"),
        "name": "Anna Schmidt",
        "reference": "A-10234",
        "currency": "EUR",
        "total_amount": 6890,
        "refunded_amount": details.get("amount", 0),
        "items": [MUG, TOWEL],
        "created_at": PLACED,
        "updated_at": CHANGED,
    }
    order = Order(**(values | fields))
    context = email_context(order=order, change={"at": CHANGED, **details})
    return render_email(event_type=event_type, locale=locale, context=context)


def plain(text: str) -> str:
    """No-break spaces as spaces, so that sentences can be compared."""
    return re.sub("[\u00a0\u202f]", " ", text)


def everywhere(email: RenderedEmail, sentence: str) -> bool:
    """Whether both bodies have the sentence."""
    return sentence in plain(email.body_html) and sentence in plain(email.body_text)


class Balance(HTMLParser):
    """Fails where a tag is closed that isn't open; keeps what is left open and all attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_it_covers_every_template():
    assert event_types() == set(CHANGES)


@pytest.mark.parametrize("locale", LANGUAGES)
@pytest.mark.parametrize("event_type", CHANGES)
def test_it_is_sound_html_with_inline_styles_and_nothing_remote(event_type, locale):
    page = Balance()
    html = mail(event_type, locale=locale).body_html
    page.feed(html)
    page.close()
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"img", "link", "style", "script", "form", "iframe"}
    assert not any("class" in attributes for _, attributes in page.tags)
    assert [attributes["lang"] for tag, attributes in page.tags if tag == "html"] == [locale]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    tracking = ["https://track.example.com/1"] if event_type == "order.completed" else []
    assert links == [*tracking, "https://shop.example.com"]
    assert 4_000 < len(html.encode()) < 8_000
    assert max(map(len, html.splitlines())) < 998  # RFC 5322's limit of a line


@pytest.mark.parametrize("locale", LANGUAGES)
@pytest.mark.parametrize("event_type", CHANGES)
def test_it_tells_the_order_the_items_the_total_and_the_shop(event_type, locale):
    email = mail(event_type, locale=locale)
    total = "€68.90" if locale == "en" else "68,90 €"
    for fact in ("A-10234", "Ceramic mug", "Tea towel", total, "Anna Schmidt", "1 Market Street", "2026"):
        assert everywhere(email, fact), fact
    assert "2 × " in email.body_text
    assert "A-10234" in email.subject
    assert "None" not in email.body_html + email.body_text
    assert not re.search(r"[{}%]", email.subject + email.body_text)
    assert "\n\n\n" not in email.body_text


@pytest.mark.parametrize("event_type", CHANGES)
def test_it_is_another_text_in_each_language(event_type):
    texts = [mail(event_type, locale=locale) for locale in LANGUAGES]
    assert len({text.subject for text in texts}) == len(LANGUAGES)
    assert len({text.body_text for text in texts}) == len(LANGUAGES)


def test_it_says_when_the_payment_came():
    sentence = "On November 21, 2026 we received your payment of €68.90 for your order A-10234."
    assert everywhere(mail("order.paid"), sentence)


def test_it_names_an_order_without_reference_by_the_end_of_its_id():
    assert mail("order.paid", reference="").subject == "Payment received for your order 456789AB"


def test_it_greets_without_a_name():
    email = mail("order.paid", name="", locale="de")
    assert everywhere(email, "Guten Tag,")


def test_it_does_without_items():
    email = mail("order.paid", items=[])
    assert everywhere(email, "€68.90")
    assert "×" not in email.body_text
    assert "Shipping" not in email.body_text


def test_it_shows_twenty_items_and_counts_the_rest():
    items = [{"sku": str(n), "name": f"Item no. {n}.", "quantity": 1, "unit_amount": 1} for n in range(1, 24)]
    email = mail("order.paid", items=items)
    assert everywhere(email, "Item no. 20.")
    assert everywhere(email, "and 3 more items")
    assert "Item no. 21." not in email.body_html + email.body_text
    assert everywhere(mail("order.paid", items=items[:21], locale="de"), "und ein weiterer Artikel")
    assert "more item" not in mail("order.paid", items=items[:20]).body_text


def test_it_explains_what_the_total_has_beyond_the_items():
    assert "Shipping, taxes and other charges: €5.90" in mail("order.paid").body_text
    assert "Shipping" not in mail("order.paid", total_amount=6300).body_text
    assert "Shipping" not in mail("order.paid", total_amount=6000).body_text


def test_it_says_complete_where_nothing_can_be_tracked():
    email = mail("order.completed", change={})
    assert email.subject == "Your order A-10234 is complete"
    assert everywhere(email, "Your order was completed on November 21, 2026.")


def test_it_promises_a_refund_only_for_what_was_paid():
    promise = "We will refund this amount"
    assert everywhere(mail("order.cancelled"), promise)
    unpaid = mail("order.cancelled", change={"was_paid": False})
    assert promise not in unpaid.body_text
    assert everywhere(unpaid, "so there is nothing for you to pay.")


def test_it_gives_the_reason_of_a_cancellation_if_there_is_one():
    assert everywhere(mail("order.cancelled"), "Reason: Sold out")
    assert "Reason" not in mail("order.cancelled", change={"was_paid": True}).body_text


def test_it_says_what_a_first_part_refund_leaves():
    email = mail("order.part_refunded")
    assert everywhere(email, "we refunded €19.00 of the €68.90 for your order A-10234.")
    assert everywhere(email, "€49.90 has not been refunded.")
    assert "so far" not in email.body_text


def test_it_adds_up_the_part_refunds():
    email = mail("order.part_refunded", change={"amount": 1000}, refunded_amount=2900)
    assert email.subject == "Partial refund for your order A-10234: €10.00"
    assert everywhere(
        email, "In all, we have refunded €29.00 of €68.90 so far. €39.90 has not been refunded."
    )


def test_it_tells_a_refund_at_once_from_one_that_completes_others():
    at_once = mail("order.refunded")
    assert everywhere(at_once, "we refunded the full amount of your order A-10234: €68.90.")
    last = mail("order.refunded", change={"amount": 4990}, refunded_amount=6890)
    assert everywhere(last, "we refunded €49.90 for your order A-10234. Together with the refunds before")
    assert "Not refunded" not in at_once.body_text + last.body_text
