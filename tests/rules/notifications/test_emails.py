"""The facts in each e-mail, from an order that is in no table to what the customer reads."""

from __future__ import annotations

import datetime as dt
import html
import re
import uuid
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest
from babel.dates import format_date
from babel.numbers import format_currency
from django.conf import settings

from notifications.content.own_text import read
from notifications.content.render_files import RenderedEmail
from notifications.content.sentences import read_keys
from notifications.content.template_files import LAYOUT, Words
from orders.breakdown import fold_items
from tests.kit.words import EMAILS, Order, email_context, event_types, render_email

PLACED = dt.datetime(2026, 11, 20, 14, 3, tzinfo=dt.UTC)
CHANGED = dt.datetime(2026, 11, 21, 9, 30, tzinfo=dt.UTC)
MUG = {"sku": "M", "name": "Ceramic mug", "quantity": 2, "unit_amount": 1900}
TOWEL = {"sku": "T", "name": "Tea towel", "quantity": 1, "unit_amount": 2500}
PARCEL: dict[str, Any] = {
    "parcel_lines": [{"item": 0, "quantity": 1}, {"item": 1, "quantity": 1}],
    "left_lines": [{"item": 0, "quantity": 1}],
    "carrier": "DHL",
    "tracking_number": "00340434",
    "tracking_url": "https://track.example.com/1",
    "shipped_at": dt.datetime(2026, 11, 20, 18, 0, tzinfo=dt.UTC),
}
#: The values of a change that an e-mail shows. Most e-mails show none.
SHOWN: dict[str, dict[str, Any]] = {
    "order.completed": {"tracking_url": "https://track.example.com/1"},
    "order.cancelled": {"was_paid": True, "reason": "Sold out"},
    "order.refunded": {"amount": 6890},
    "order.part_refunded": {"amount": 1900},
    "order.shipped": PARCEL,
    "order.delivered": PARCEL,
}
CHANGES: dict[str, dict[str, Any]] = {name: SHOWN.get(name, {}) for name in EMAILS}
LANGUAGES = [language for language, _ in settings.LANGUAGES]
VOID = {"meta", "br"}
TRACKING, SHOP = "https://track.example.com/1", "https://shop.example.com"
#: An order with all charges and details.
EVERYTHING: dict[str, Any] = {
    "charges": [
        {"kind": "discount", "label": "SPRING", "amount": -1000},
        {"kind": "gift_card", "label": "…77QA", "amount": -500},
        {"kind": "shipping", "amount": 590},
        {"kind": "fee", "label": "Gift wrap", "amount": 300},
        {"kind": "tax", "label": "VAT 19 %", "amount": 1100, "included": True},
    ],
    "details": {
        "delivery_address": ["Anna Schmidt", "Dorotheenstraße 101", "10117 Berlin", "Germany"],
        "billing_address": ["Schmidt & Söhne GmbH", "Unter den Linden 5", "10117 Berlin", "Germany"],
        "delivery_method": "DHL parcel",
        "payment_method": "Visa …4242",
        "customer_note": "Please ring twice, the bell is quiet.",
        "order_url": "https://shop.example.com/orders/42?key=7a",
    },
    "total_amount": 5690,
}
#: The e-mails that have other sentences if the order or its change has other values.
VARIANTS: list[dict[str, Any]] = [
    *({"event_type": name} for name in CHANGES),
    {"event_type": "order.paid", "name": "", "reference": ""},
    {"event_type": "order.completed", "change": {}},
    {"event_type": "order.cancelled", "change": {"was_paid": False}},
    {"event_type": "order.part_refunded", "change": {"amount": 1000}, "refunded_amount": 2900},
    {"event_type": "order.refunded", "change": {"amount": 4990}, "refunded_amount": 6890},
    {"event_type": "order.completed", "change": SHOWN["order.completed"] | {"shipped_before": True}},
    {"event_type": "order.completed", "change": SHOWN["order.completed"] | {"all_shipped": True}},
    {"event_type": "order.shipped", "change": PARCEL | {"left_lines": [], "all_shipped": True}},
    {"event_type": "order.shipped", "change": PARCEL | {"corrected": True}},
    {"event_type": "order.shipped", "change": PARCEL, "refunded_amount": 1900},
    {"event_type": "order.shipped", "change": {"shipped_at": PARCEL["shipped_at"]}},
    *({"event_type": name, **EVERYTHING} for name in CHANGES),
    *(
        {"event_type": name, "total_amount": 0, "items": [TOWEL | {"unit_amount": 0}]}
        for name in ("order.placed", "order.paid")
    ),
]

IDS = [f"{values['event_type']}-{number}" for number, values in enumerate(VARIANTS)]


def mail(
    event_type: str,
    *,
    locale: str = "en",
    change: dict[str, Any] | None = None,
    words: Words | None = None,
    **fields,
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
    context = email_context(order=order, event_type=event_type, change={"at": CHANGED, **details})
    return render_email(event_type=event_type, locale=locale, context=context, words=words)


def plain(text: str) -> str:
    """Return a text with spaces instead of no-break spaces."""
    return re.sub("[\u00a0\u202f]", " ", text)


def both(email: RenderedEmail) -> list[str]:
    """Return what a reader sees of the text and of the HTML."""
    return [plain(email.body_text), plain(html.unescape(email.body_html))]


def everywhere(email: RenderedEmail, *facts: str) -> bool:
    """Whether both bodies have all facts."""
    return all(fact in body for fact in facts for body in both(email))


def message(email: RenderedEmail) -> list[str]:
    """Return the lines of the text above the order, its items and the shop, without those of a parcel."""
    text = plain(email.body_text).partition("\n\n- ")[0].rpartition("\n\n")[0]
    return [line.removesuffix(":").rstrip() for line in text.splitlines() if line and line[:2] != "- "]


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


def test_these_are_all_emails():
    assert event_types() == set(EMAILS) >= set(SHOWN)


@pytest.mark.parametrize("locale", LANGUAGES)
@pytest.mark.parametrize("event_type", CHANGES)
def test_it_is_sound_html_with_inline_styles_and_nothing_remote(event_type, locale):
    page = Balance()
    body = mail(event_type, locale=locale).body_html
    page.feed(body)
    page.close()
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"img", "link", "style", "script", "form", "iframe"}
    assert not any("class" in attributes for _, attributes in page.tags)
    assert [attributes["lang"] for tag, attributes in page.tags if tag == "html"] == [locale]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    is_tracked = event_type in ("order.completed", "order.shipped")
    assert links == ([TRACKING, SHOP] if is_tracked else [SHOP])
    assert len(body.encode()) < 8_000
    assert max(map(len, body.splitlines())) < 998  # RFC 5322's limit of a line


@pytest.mark.parametrize("locale", LANGUAGES)
@pytest.mark.parametrize("event_type", CHANGES)
def test_it_tells_the_order_the_items_the_total_and_the_shop(event_type, locale):
    email = mail(event_type, locale=locale)
    total = plain(format_currency(Decimal("68.90"), "EUR", locale=locale))
    assert everywhere(email, "A-10234", "Ceramic mug", "Tea towel", total, "Anna Schmidt")
    assert everywhere(email, "1 Market Street", "2026", SHOP)
    assert "2 × " in email.body_text
    assert "A-10234" in email.subject


@pytest.mark.parametrize("locale", LANGUAGES)
@pytest.mark.parametrize("values", VARIANTS, ids=IDS)
def test_it_says_the_same_in_both_bodies_and_nothing_is_missing(values, locale):
    email = mail(**values, locale=locale)
    text, page = both(email)
    assert message(email) and [line for line in message(email) if line not in page] == []
    assert "None" not in text + page
    assert not re.search(r"[{}%]", email.subject + text.replace("VAT 19 %", ""))
    assert "\n\n\n" not in text


@pytest.mark.parametrize("event_type", CHANGES)
def test_it_is_another_text_in_each_language(event_type):
    texts = [mail(event_type, locale=locale) for locale in LANGUAGES]
    assert len({text.subject for text in texts}) == len(LANGUAGES)
    assert len({text.body_text for text in texts}) == len(LANGUAGES)


@pytest.mark.parametrize("event_type", ["order.paid", "order.confirmed", "order.completed", "order.refunded"])
def test_it_says_when_it_happened(event_type):
    assert everywhere(mail(event_type), "November 21, 2026")


def test_it_names_an_order_without_reference_by_the_end_of_its_id():
    assert "456789AB" in mail("order.paid", reference="").subject


def test_it_greets_without_a_name():
    assert everywhere(mail("order.paid", name="", locale="de"), "Guten Tag,")


def test_it_does_without_items():
    email = mail("order.paid", items=[])
    assert everywhere(email, "€68.90")
    assert "×" not in email.body_text
    assert "Shipping" not in email.body_text


def test_it_shows_twenty_items_and_counts_the_rest():
    items = [{"sku": str(n), "name": f"Item no. {n}.", "quantity": 1, "unit_amount": 1} for n in range(1, 24)]
    email = mail("order.paid", items=items)
    assert everywhere(email, "Item no. 20.", "and 3 more items")
    assert "Item no. 21." not in email.body_html + email.body_text
    assert everywhere(mail("order.paid", items=items[:21], locale="de"), "und ein weiterer Artikel")
    assert "more item" not in mail("order.paid", items=items[:20]).body_text


def test_it_explains_what_the_total_has_beyond_the_items():
    assert "Shipping, taxes and other charges: €5.90" in mail("order.paid").body_text
    assert "Shipping" not in mail("order.paid", total_amount=6300).body_text
    assert "Shipping" not in mail("order.paid", total_amount=6000).body_text


class TestDetails:
    WITH_ALL = ("order.placed", "order.paid", "order.confirmed", "order.completed")

    @pytest.mark.parametrize("event_type", CHANGES)
    def test_the_emails_about_the_order_itself_show_them(self, event_type):
        email = mail(event_type, **EVERYTHING)
        details = EVERYTHING["details"]
        is_shown = event_type in self.WITH_ALL
        for body in both(email):
            for name in ("payment_method", "delivery_method", "customer_note", "order_url"):
                assert (details[name] in body) is is_shown, name
            assert ("Unter den Linden 5" in body) is is_shown
            assert ("Dorotheenstraße 101" in body) is (is_shown or event_type == "order.shipped")

    def test_text_and_page_have_them_in_one_order(self):
        email = mail("order.paid", **EVERYTHING)
        text, page = both(email)
        words = ["Delivery address", "Billing address", "DHL parcel", "Visa", "Your note", "View your order"]
        for body in (text, page):
            places = [body.index(word) for word in words]
            assert places == sorted(places)
        assert "Delivery address:\nAnna Schmidt\nDorotheenstraße 101\n10117 Berlin\nGermany\n\n" in text
        assert "Delivery: DHL parcel\nPayment: Visa …4242\n\n" in text
        assert "View your order:\nhttps://shop.example.com/orders/42?key=7a\n" in text

    def test_one_address_for_both_is_shown_once(self):
        address = EVERYTHING["details"]["delivery_address"]
        details = {"delivery_address": address, "billing_address": list(address)}
        email = mail("order.paid", details=details)
        assert everywhere(email, "Delivery and billing address")
        assert [body.count("Dorotheenstraße") for body in both(email)] == [1, 1]

    @pytest.mark.parametrize("locale", LANGUAGES)
    def test_with_everything_it_stays_a_small_sound_page(self, locale):
        items = [MUG | {"name": "W" * 60} for _ in range(30)]
        body = mail("order.completed", locale=locale, **EVERYTHING | {"items": items}).body_html
        page = Balance()
        page.feed(body)
        assert page.open == []
        assert len(body.encode()) < 24_000  # programs clip an e-mail at 100 kB
        assert max(map(len, body.splitlines())) < 998

    def test_a_free_order_says_that_nothing_was_to_pay(self):
        for event_type in CHANGES:
            if event_type not in ("order.part_refunded", "order.payment_failed"):
                email = mail(event_type, total_amount=0, items=[], refunded_amount=0)
                assert everywhere(email, "There was nothing to pay."), event_type
        paid = mail("order.paid", total_amount=0, items=[])
        assert "payment" not in (paid.subject + paid.body_text).lower()
        assert paid.subject == "Thank you for your order A-10234"


def test_it_promises_no_parcel_where_nothing_can_be_tracked():
    assert "on its way" in mail("order.completed").subject
    email = mail("order.completed", change={})
    assert "on its way" not in email.subject + email.body_text and SHOP in email.body_text


def test_it_says_once_that_the_parcel_is_on_its_way():
    link = SHOWN["order.completed"]
    rest = mail("order.completed", change=link | {"shipped_before": True})
    assert rest.subject == "The rest of your order A-10234 is on its way"
    assert everywhere(rest, "The rest of your order was dispatched on November 21, 2026", TRACKING)
    end = mail("order.completed", change=link | {"all_shipped": True})
    assert end.subject == "Your order A-10234 is complete"
    assert everywhere(end, "Your order was completed on", TRACKING)
    assert "on its way" not in (end.body_html + end.body_text).lower()


class TestAParcel:
    def test_it_names_what_is_in_it_what_follows_and_where_to_follow_it(self):
        email = mail("order.shipped")
        assert email.subject == "Part of your order A-10234 is on its way"
        assert everywhere(email, "Your parcel was dispatched on November 20, 2026")
        assert everywhere(email, "Carrier: DHL", "Tracking number: 00340434", TRACKING)
        assert everywhere(email, "In this parcel", "Not dispatched yet", "the rest of your order separately")
        text = plain(email.body_text)
        assert "In this parcel:\n- 1 × Ceramic mug\n- 1 × Tea towel\n\n" in text
        assert "Not dispatched yet:\n- 1 × Ceramic mug\n\nWe will send you" in text

    def test_the_last_one_says_that_nothing_follows(self):
        email = mail("order.shipped", change=PARCEL | {"left_lines": [], "all_shipped": True})
        assert email.subject == "Your parcel for order A-10234 is on its way"
        assert everywhere(email, "Everything you ordered has now been dispatched.")
        assert "Not dispatched yet" not in email.body_text + email.body_html

    def test_it_promises_no_rest_once_something_was_refunded(self):
        email = mail("order.shipped", refunded_amount=1900)
        assert everywhere(email, "Not dispatched yet")
        assert "We will send" not in email.body_text + email.body_html

    def test_without_its_lines_it_lists_and_promises_nothing(self):
        email = mail("order.shipped", change={"shipped_at": PARCEL["shipped_at"]})
        said = email.body_text + email.body_html
        assert not re.search("In this parcel|Not dispatched|Everything you|Carrier|Tracking|Track your", said)
        assert everywhere(email, "Your parcel was dispatched on November 20, 2026")

    def test_a_corrected_number_is_told_as_one(self):
        email = mail("order.shipped", change=PARCEL | {"corrected": True})
        assert email.subject == "Corrected tracking details for your order A-10234"
        assert everywhere(email, "corrected the tracking details", "Tracking number: 00340434", TRACKING)
        assert "and is on its way" not in email.body_text + email.body_html

    def test_a_delivered_one_says_what_was_in_it_and_when(self):
        email = mail("order.delivered")
        assert email.subject == "Your parcel for order A-10234 has been delivered"
        said = "dispatched on November 20, 2026 was delivered on November 21, 2026"
        assert everywhere(email, said, "In this parcel", "Ceramic mug")
        assert TRACKING not in email.body_text + email.body_html

    def test_it_shows_twenty_lines_and_counts_the_rest(self):
        items = [{"sku": str(n), "name": f"Item {n}.", "quantity": 1, "unit_amount": 1} for n in range(50)]
        lines = [{"item": n, "quantity": 1} for n in range(23)]
        change = PARCEL | {"parcel_lines": lines, "left_lines": [{"item": 30, "quantity": 1}] * 21}
        email = mail("order.shipped", items=items, change=change)
        text = plain(email.body_text).partition("Order:")[0]
        assert text.count("- 1 × ") == 40
        assert everywhere(email, "and 3 more items", "and one more item")

    @pytest.mark.parametrize(
        ("locale", "more"), [("en", "and 51 more items"), ("de", "und 51 weitere Artikel")]
    )
    def test_an_item_that_stands_for_many_lines_is_told_in_the_language(self, locale, more):
        items = list(fold_items([MUG] * 250))
        rest = [{"item": 199, "quantity": 1}]
        for lines, shown in (([{"item": 0, "quantity": 1}, *rest], 1), (rest, 0)):
            email = mail("order.shipped", locale=locale, items=items, change=PARCEL | {"left_lines": lines})
            text = plain(email.body_text).partition("\nOrder:")[0]
            assert everywhere(email, more) and "further items" not in email.body_text + email.body_html
            assert text.count("× Ceramic mug") == 2 + shown  # the parcel has two
            assert ("Part of your order" in email.subject) == (locale == "en")
            delivered = mail("order.delivered", locale=locale, items=items, change={"parcel_lines": lines})
            assert everywhere(delivered, more)

    def test_it_skips_a_line_that_the_order_does_not_have(self):
        email = mail("order.shipped", change=PARCEL | {"parcel_lines": [{"item": 7, "quantity": 1}]})
        assert "In this parcel" not in email.body_text


def test_it_promises_a_refund_only_for_what_was_paid():
    promise = "We will refund this amount"
    assert everywhere(mail("order.cancelled"), promise)
    unpaid = mail("order.cancelled", change={"was_paid": False})
    assert promise not in unpaid.body_text + unpaid.body_html


def test_it_gives_the_reason_of_a_cancellation_if_there_is_one():
    assert everywhere(mail("order.cancelled"), "Reason: Sold out")
    assert "Reason" not in mail("order.cancelled", change={"was_paid": True}).body_text


@pytest.mark.parametrize(
    ("amount", "refunded", "said"),
    [
        (1900, 1900, ["€19.00", "€49.90"]),
        (1000, 2900, ["€10.00", "€29.00", "€39.90"]),
        (6890, 6890, ["€68.90"]),
        (4990, 6890, ["€49.90", "€68.90"]),
    ],
)
def test_it_says_what_was_refunded_now_and_in_all_and_what_is_left(amount, refunded, said):
    event_type = "order.refunded" if refunded == 6890 else "order.part_refunded"
    email = mail(event_type, change={"amount": amount}, refunded_amount=refunded)
    assert everywhere(email, *said)
    assert ("Not refunded" in email.body_text) is (refunded < 6890)
    assert ("so far" in email.body_text) is (amount < refunded < 6890)


#: The day of `CHANGED`, as each language writes it. Babel knows it of languages that are added.
DAYS = {locale: format_date(CHANGED, "long", locale=locale) for locale in LANGUAGES} | {
    "en": "November 21, 2026",
    "de": "21. November 2026",
    "fr": "21 novembre 2026",
    "es": "21 de noviembre de 2026",
}


def dates_of(email: RenderedEmail) -> list[str]:
    """Return the first line of the text, and the line below the heading of the HTML."""
    below = re.search(r"</h1>\s*<p[^>]*>([^<]*)</p>", email.body_html)
    assert below
    return [plain(email.body_text.splitlines()[0]), plain(below[1])]


@pytest.mark.parametrize("locale", LANGUAGES)
@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_it_begins_with_the_date_of_its_change(variant, locale):
    assert dates_of(mail(locale=locale, **variant)) == [DAYS[locale]] * 2


@pytest.mark.parametrize("locale", LANGUAGES)
@pytest.mark.parametrize("event_type", CHANGES)
def test_own_texts_of_all_its_sentences_keep_the_date(event_type, locale):
    own = read("x")
    keys = [*read_keys(event_type, locale), *read_keys(LAYOUT, locale)]
    words = Words(dict.fromkeys(keys, own))
    email = mail(event_type, locale=locale, words=words)
    assert email.subject == "x" and ">x</h1>" in email.body_html
    assert dates_of(email) == [DAYS[locale]] * 2
