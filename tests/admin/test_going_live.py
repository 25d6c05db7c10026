"""The last page before a connection goes live, whose e-mails stay on in the shop, and what statuses mean."""

from __future__ import annotations

import datetime as dt
import html
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from notifications.models import MailProfile
from runtime import conditions
from shop_connections.changes import UnknownStatus
from shop_connections.encryption import encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_waiting
from tests.admin.test_connections import act, operator, page
from tests.kit.acts import acts
from tests.kit.admin import POSTS, SHOPS, statements_of
from tests.kit.plain_shop import KEY, body_of, connect, plain_shop, post
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, Order

__all__ = ["operator", "plain_shop"]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
HOUR = dt.timedelta(hours=1)


@pytest.fixture(autouse=True)
def _settings(settings: Any) -> None:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.SHOP_NAME = [KEY], False, "Leaf & Cup"


def give_profile(**fields: str) -> None:
    values = {"source": "shop-w", "shop_name": "Teeladen", "from_email": "laden@example.com"}
    MailProfile.objects.create(postal_address="Hauptstr. 1, Berlin", **values | fields)


def last_page(client: Client, shop: ShopConnection) -> str:
    return re.sub(r"\s+", " ", client.get(f"{SHOPS}{shop.id}/live/").content.decode())


def go(client: Client, shop: ShopConnection, *stay_on: str, action: str = "live", **fields: str) -> str:
    """Press a button of the last page. Return the messages."""
    data = {"action": action, "attachments": "1", "stay_on": [*stay_on], **fields}
    answer = client.post(f"{SHOPS}{shop.id}/live/", data, follow=True)
    shop.refresh_from_db()
    return " ".join(str(message) for message in answer.context["messages"])


@pytest.mark.parametrize(
    ("query", "today"), [({}, 16), ({"part": "1"}, 13)], ids=["the page", "what is refreshed"]
)
def test_its_page_takes_at_most_two_statements_more_than_before_this(operator, plain_shop, query, today):
    for number in range(3):
        post(body_of(f"A-{number}", "placed", "paid"))
    post(body_of("B-1", "placed", fault="its status is unknown"))
    process_waiting(seconds=60)
    ConnectionPost.objects.create(source="shop-w", body="{}", state="missing", reference="M-1")
    path = f"{SHOPS}{plain_shop.id}/change/"
    of_binding = 1  # reads to which shops the user is bound, on each page of the admin
    assert len(statements_of(operator, path, **query)) <= today + of_binding + 2
    for many in range(20):
        post(body_of(f"C-{many}", "placed", "paid", fault="odd"))
    process_waiting(seconds=60)
    assert len(statements_of(operator, path, **query)) <= today + of_binding + 2
    assert len(statements_of(operator, SHOPS)) <= 10
    row = ConnectionPost.objects.first()
    assert len(statements_of(operator, f"{POSTS}{row.id}/change/")) <= 9


class TestTheMoment:
    def test_it_is_in_the_zone_of_the_browser_which_is_named(self, operator, plain_shop):
        give_profile(default_locale="de")
        ShopConnection.objects.update(last_post_at=timezone.now())
        operator.cookies["zone"] = "Europe/Berlin"
        text = last_page(operator, plain_shop)
        assert "<b>Teeladen</b> from <b>laden@example.com</b>, in <b>German</b>" in text
        assert "Go live at (Europe/Berlin)</label>" in text
        year = timezone.now().year + 1
        said = go(operator, plain_shop, live_at=f"{year}-07-01T09:30")
        assert said == f"Live from {year}-07-01 09:30 (Europe/Berlin) on."
        assert plain_shop.live_at == dt.datetime(year, 7, 1, 7, 30, tzinfo=dt.UTC)
        assert f'goes live at <time datetime="{year}-07-01T07:30:00+00:00">{year}-07-01 09:30 (Eu' in page(
            operator, plain_shop
        )
        act(operator, plain_shop, "trial")
        assert (plain_shop.state, plain_shop.live_at) == ("trial", None)
        act(operator, plain_shop, "off")
        assert plain_shop.state == "off" and acts().count() == 3

    @pytest.mark.parametrize(
        "text",
        ["2020-01-01T00:00", "0001-01-01T00:00", "tomorrow", "9" * 40, "2027-03-28T02:30"],
        ids=["passed", "first", "word", "digits", "clocks are put forward"],
    )
    def test_a_time_that_has_passed_or_is_none_changes_nothing(self, operator, plain_shop, text):
        operator.cookies["zone"] = "Europe/Berlin"
        assert "Nothing was changed" in go(operator, plain_shop, "Paid", live_at=text)
        assert (plain_shop.state, plain_shop.left_on) == ("trial", None)

    def test_no_connection_goes_live_before_its_first_post(self, operator):
        shop = connect(state="waiting")
        assert "first post" in go(operator, shop, "Order on-hold")
        assert shop.state == "waiting"
        act(operator, shop, "off")
        act(operator, shop, "trial")
        assert shop.state == "waiting"

    def test_no_shop_goes_live_as_the_example(self, operator, plain_shop, settings):
        settings.SHOP_NAME = "Example Shop"
        assert "customers would read “Example Shop”" in last_page(operator, plain_shop)
        assert "Give the shop a profile first" in go(operator, plain_shop)
        assert plain_shop.state == "trial"
        give_profile()
        assert go(operator, plain_shop) == "Live from now on."

    def test_attachments_are_asked_for(self, operator, plain_shop):
        data = {"action": "live"}
        answer = operator.post(f"{SHOPS}{plain_shop.id}/live/", data)
        assert "no customer needs what the shop attaches" in answer.content.decode()
        assert ShopConnection.objects.get().state == "trial"


class TestWhoSendsWhat:
    @pytest.fixture
    def fake(self, settings: Any) -> FakeShop:
        """Return a shop of WooCommerce, whose connection is in trial."""
        fake = FakeShop()
        connect(secret=encrypt(fake.secret), last_post_at=timezone.now())
        return fake

    def deliver(self, fake: FakeShop) -> None:
        for headers, body in fake.deliveries():
            assert (
                Client().post("/connect/shop-w", body, "application/json", headers=headers).status_code == 202
            )
        process_waiting(seconds=60)

    def test_each_of_the_shops_emails_is_named_with_ours(self, operator, fake):
        text = last_page(operator, ShopConnection.objects.get())
        assert "<b>Processing order</b> stays on in the shop" in text
        assert "If you turn it off, <b>order.paid</b> takes its place" in text
        assert (
            "It must stay on: order.placed would have to take its place, and NOTIFY_ON leaves it out" in text
        )
        assert "leave them on: Failed order, to the customer, Order details, Customer note" in text

    def test_an_email_stays_on_that_none_of_ours_replaces(self, operator, fake, settings):
        shop, every = ShopConnection.objects.get(), ["Order on-hold"]
        assert "Order on-hold has to stay on" in go(operator, shop)
        assert "Live" in go(operator, shop, *every)
        assert shop.left_on == {"order.placed": "Order on-hold"}
        assert "The shop goes on sending <b>Order on-hold</b>, so ours in its place is not sent" in page(
            operator, shop
        )
        settings.NOTIFY_ON = ["order.completed"]
        assert "Processing order has to stay on in the shop: NOTIFY_ON leaves order.paid out" in go(
            operator, shop, *every, action="emails"
        )

    def test_cash_on_delivery_needs_our_confirmation(self, operator, fake, settings):
        shop = ShopConnection.objects.get()
        fake.place(method="cod")
        self.deliver(fake)
        text = last_page(operator, shop)
        assert "order.confirmed would have to take its place" in text and "paid on delivery came" in text
        assert "leaves order.confirmed out" in go(operator, shop, "Order on-hold")
        settings.NOTIFY_ON = [*settings.NOTIFY_ON, "order.confirmed"]
        assert "Live" in go(operator, shop, "Order on-hold")

    def test_what_ours_cannot_have_is_named_from_the_posts(self, operator, fake):
        fake.place(status="on-hold")
        fake.place(needs_processing=False)
        fake.orders[fake.place(currency="BTC")]["total"] = "0.0042"
        fake.place(status="wc-packed")
        self.deliver(fake)
        text = last_page(operator, ShopConnection.objects.get())
        assert re.search(r"<b>It has the links to downloads, and ours has not</b> \(order 1002\)", text)
        assert re.search(r"<b>It has the shop&#x27;s bank details, and ours has not</b> \(order 1001\)", text)
        assert "Orders in <b>BTC</b> get no e-mail" in text
        assert "what the status <b>packed</b> means: 1 order waits" in text
        assert "2 posts cannot be used, so their orders get no e-mail" in text

    def test_one_that_stays_on_silences_ours_and_the_timeline_says_so(self, operator, fake):
        shop = ShopConnection.objects.get()
        go(operator, shop, "Order on-hold", "Processing order")
        ShopConnection.objects.update(live_at=fake.now, going_live={"done_at": "now"})
        id = fake.place()
        self.deliver(fake)
        fake.complete(id)
        self.deliver(fake)
        assert [email.event_type for email in EmailNotification.objects.all()] == ["order.completed"]
        (line,) = Order.objects.get().warnings
        assert line["text"] == (
            "order.paid: The shop sends its own e-mail, Processing order, so ours is not sent."
        )

    @pytest.mark.django_db(transaction=True)
    def test_the_first_order_that_nobody_mails_is_a_condition(self, operator, fake, settings):
        shop = ShopConnection.objects.get()
        go(operator, shop, "Order on-hold")
        ShopConnection.objects.update(live_at=fake.now, going_live={"done_at": "now"})
        fake.place()
        self.deliver(fake)
        assert needs() == []
        fake.place(method="cod")
        self.deliver(fake)
        (sentence,) = needs()
        assert "neither shop-w nor we send an e-mail for order.confirmed, first for order 1002" in sentence
        assert "Neither the shop nor we send an e-mail for order.confirmed" in page(operator, shop)
        go(operator, shop, "Order on-hold", "Processing order", action="emails")
        assert needs() == []


def needs() -> list[str]:
    facts = conditions.read_facts(now=timezone.now())
    return [active.sentence for active in conditions.decide(facts) if active.code == "EmailOfNobody"]


class TestStatuses:
    def test_one_that_came_is_a_line_and_its_orders_are_processed_with_the_answer(
        self, operator, plain_shop, settings, monkeypatch
    ):
        fake = FakeShop()
        monkeypatch.undo()
        settings.CONNECTION_KEY = [KEY]
        ShopConnection.objects.update(secret=encrypt(fake.secret), last_post_at=timezone.now())
        for status in ("wc-Packed", "packed ", " Geprüft & gepackt"):
            fake.place(status=status)
        TestWhoSendsWhat().deliver(fake)
        text = page(operator, plain_shop)
        assert "<b>packed</b>: 2 orders wait" in text
        assert "<b>geprüft-&amp;-gepackt</b>: 1 order waits" in text
        words = ["packed", "geprüft-&-gepackt", " WC-In Arbeit", "later", ""]
        said = act(
            operator,
            plain_shop,
            "statuses",
            word=words,
            means=["confirmed", "ignored", "pending", "", "confirmed"],
        )
        assert "3 posts are processed now" in said
        assert plain_shop.statuses == {"packed": "confirmed", "geprüft-&-gepackt": "", "in-arbeit": "pending"}
        process_waiting(seconds=60)
        assert not ConnectionPost.objects.unusable().exists()
        assert [order.status for order in Order.objects.all()] == ["confirmed", "confirmed"]
        text = page(operator, plain_shop)
        assert re.search(r'<b>packed</b> means</label>.*?<option value="confirmed" selected>', text)

    def test_each_post_of_one_is_counted_and_processed_however_many_and_large_they_are(self, operator):
        shop = connect(last_post_at=timezone.now())
        body = "x" * 60_000  # larger than a page reads
        values = {"state": "unusable", "body": body}
        ConnectionPost.objects.bulk_create(
            ConnectionPost(source="shop-w", reason=str(UnknownStatus(word)), unknown_status=word, **values)
            for word in [*["it's"] * 130, "packed"]
        )
        ConnectionPost.objects.create(source="shop-w", reason="its total is odd", **values)
        connect("shop-v")
        ConnectionPost.objects.create(source="shop-v", unknown_status="it's", **values)
        text = html.unescape(page(operator, shop))
        assert "<b>it's</b>: 130 orders wait" in text and "<b>packed</b>: 1 order waits" in text
        assert "130 orders wait" in last_page(operator, shop)
        said = act(operator, shop, "statuses", word=["it's"], means=["paid"])
        assert "130 posts are processed now" in said
        assert ConnectionPost.objects.waiting().count() == 130
        assert "<b>it's</b>: " not in html.unescape(page(operator, shop))

    def test_one_without_a_column_is_asked_about_once_its_post_is_tried_again(self, operator, settings):
        """The release before this one stored it in the reason alone."""
        settings.CONNECTION_KEY, fake = [KEY], FakeShop()
        shop = connect(secret=encrypt(fake.secret), last_post_at=timezone.now())
        fake.place(status="packed")
        TestWhoSendsWhat().deliver(fake)
        ConnectionPost.objects.update(unknown_status="")
        reason = str(UnknownStatus("packed"))
        text = html.unescape(page(operator, shop))
        assert "1 post cannot be used" in text and reason in text and "<b>packed</b>: " not in text
        operator.post(f"{POSTS}{ConnectionPost.objects.get().id}/retry/")
        process_waiting(seconds=60)
        fake.place(status="packed")
        TestWhoSendsWhat().deliver(fake)
        ConnectionPost.objects.filter(id=ConnectionPost.objects.latest("id").id).update(unknown_status="")
        text = html.unescape(page(operator, shop))
        assert "<b>packed</b>: 1 order waits" in text and f"{reason}; {reason}" not in text

    @pytest.mark.parametrize(
        ("word", "means", "words"),
        [
            ("packed", "wrapped", "A status means nothing, or one of"),
            ("no\x00", "paid", "is no status of the shop"),
            ("x" * 60, "paid", "is no status of the shop"),
        ],
    )
    def test_an_answer_that_is_none_changes_nothing(self, operator, settings, word, means, words):
        shop = connect()
        assert words in act(operator, shop, "statuses", word=word, means=means)
        assert shop.statuses == {}

    def test_a_post_that_a_later_one_made_up_for_is_no_alarm(self, operator, plain_shop):
        post(body_of("A-1", "placed", fault="its total is odd"))
        post(body_of("A-2", "placed", fault="its total is odd"))
        process_waiting(seconds=60)
        assert "2 posts cannot be used" in page(operator, plain_shop)
        post(body_of("A-1", "placed"))
        process_waiting(seconds=60)
        assert "1 post cannot be used" in page(operator, plain_shop)
        facts = conditions.read_facts(now=timezone.now())
        (alarm,) = [each for each in conditions.decide(facts) if each.code == "PostsUnusable"]
        assert alarm.number == 1

    def test_one_that_an_older_state_follows_stays_an_alarm(self, operator, plain_shop):
        """It came late, and has nothing of what the unusable post said."""
        ConnectionPost.objects.all().delete()
        at = timezone.now() - HOUR
        post(body_of("A-1", "placed", at=at))
        post(body_of("A-1", "paid", at=at + HOUR / 2, fault="its total is odd"))
        process_waiting(seconds=60)
        post(body_of("A-1", "placed", at=at))
        process_waiting(seconds=60)
        assert not ConnectionPost.objects.waiting().exists()
        assert "1 post cannot be used" in page(operator, plain_shop)
        facts = conditions.read_facts(now=timezone.now())
        assert "PostsUnusable" in [each.code for each in conditions.decide(facts)]
