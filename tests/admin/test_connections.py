"""The pages of connections: from nothing to live, and what a person may do with an unusable post."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.test import Client
from django.utils import timezone

from shop_connections.admin.shops import ShopForm
from shop_connections.encryption import decrypt, encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_waiting
from tests.kit.acts import acts
from tests.kit.admin import POSTS, SHOPS
from tests.kit.people import staff_client
from tests.kit.plain_shop import KEY, body_of, connect, plain_shop, post
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, Order

__all__ = ["plain_shop"]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
NEW = {"source": "tea-shop", "platform": "woocommerce", "address": "https://tea.example.com/"}
HOUR = dt.timedelta(hours=1)


@pytest.fixture(autouse=True)
def _key(settings: Any) -> None:
    settings.CONNECTION_KEY, settings.FAST_PATH = [KEY], False


@pytest.fixture
def operator() -> Client:
    return staff_client(
        *("view_shopconnection", "add_shopconnection", "change_shopconnection", "view_emailnotification"),
        *("view_connectionpost", "retry_connectionpost", "add_mailprofile"),
    )


def page(client: Client, shop: ShopConnection, **query: str) -> str:
    answer = client.get(f"{SHOPS}{shop.id}/change/", query)
    assert answer.status_code == 200
    text: str = re.sub(r"\s+", " ", answer.content.decode())
    return text


def act(client: Client, shop: ShopConnection, action: str, **fields: str) -> str:
    answer = client.post(f"{SHOPS}{shop.id}/act/", {"action": action, **fields}, follow=True)
    shop.refresh_from_db()
    return " ".join(str(message) for message in answer.context["messages"])


class TestANewConnection:
    def test_its_page_says_the_address_and_the_steps_and_shows_the_secret_once(self, operator):
        answer = operator.post(f"{SHOPS}add/", NEW, follow=True)
        shop = ShopConnection.objects.get()
        text = answer.content.decode()
        assert (shop.source, shop.state, shop.address) == ("tea-shop", "waiting", "https://tea.example.com")
        secret = decrypt(shop.secret)
        assert secret in text and "http://testserver/connect/tea-shop" in text and "Add webhook" in text
        assert secret not in page(operator, shop)

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"source": "Tea Shop"}, "Use small letters"),
            ({"source": "a/b"}, "Use small letters"),
            ({"source": "listed"}, "one of ORDER_SOURCES"),
            ({"address": "http://tea.example.com"}, "with https"),
            ({"address": "https://user:pw@tea.example.com"}, "with https"),
            ({"address": "file:///etc/passwd"}, "with https"),
            ({"address": "https://ex ample.com"}, "with https"),
            ({"address": "https://example.com/my shop"}, "with https"),
            ({"address": "https://example.com/\u00a0shop"}, "with https"),
        ],
    )
    def test_bad_input_is_explained_and_stores_nothing(self, operator, settings, fields, words):
        settings.ORDER_SOURCES = ["listed"]
        answer = operator.post(f"{SHOPS}add/", NEW | fields)
        assert words in answer.content.decode()
        assert not ShopConnection.objects.exists()

    def test_it_needs_a_key_for_secrets(self, operator, settings):
        settings.CONNECTION_KEY = []
        assert "Set CONNECTION_KEY" in operator.post(f"{SHOPS}add/", NEW).content.decode()
        assert not ShopConnection.objects.exists()

    def test_a_change_keeps_the_state_and_never_shows_a_secret(self, operator):
        shop = connect(state="trial", api_key=encrypt("ck_1"), api_secret=encrypt("cs_1"))
        for stored in ("ck_1", "cs_1", decrypt(shop.secret)):
            assert stored not in page(operator, shop)
        fields = {"source": "other", "address": f"{shop.address}/tea"}
        operator.post(f"{SHOPS}{shop.id}/change/", NEW | fields)
        shop.refresh_from_db()
        assert (shop.source, shop.state) == ("shop-w", "trial")
        assert decrypt(shop.api_key) == "ck_1" and shop.address.endswith("/tea")

    def test_a_key_that_another_person_saves_meanwhile_stays(self, operator, monkeypatch):
        shop, whole = connect(), ShopForm.clean

        def clean(form: ShopForm) -> Any:
            ShopConnection.objects.update(api_key=encrypt("ck_1"), api_secret=encrypt("cs_1"))
            return whole(form)

        monkeypatch.setattr(ShopForm, "clean", clean)
        operator.post(f"{SHOPS}{shop.id}/change/", NEW | {"address": shop.address})
        shop.refresh_from_db()
        assert decrypt(shop.api_key) == "ck_1"

    def test_a_stored_key_goes_to_no_other_host(self, operator):
        shop = connect(
            address="https://shop.example.com",
            api_key=encrypt("ck_1"),
            api_secret=encrypt("cs_1"),
            comparison={"asked_at": timezone.now().isoformat()},
            unfinished={"place": [7, 300]},
        )
        path = f"{SHOPS}{shop.id}/change/"
        operator.post(path, NEW | {"address": "https://shop.example.com/en"})
        shop.refresh_from_db()
        assert decrypt(shop.api_key) == "ck_1"
        answer = operator.post(path, NEW | {"address": "https://evil.example"}, follow=True)
        assert "The stored key goes to no other host" in answer.content.decode()
        shop.refresh_from_db()
        assert (shop.address, shop.api_key, shop.api_secret) == ("https://evil.example", "", "")
        assert (shop.comparison, shop.unfinished) == (None, None)

    def test_an_unreadable_secret_is_explained(self, operator, settings):
        shop = connect()
        settings.CONNECTION_KEY = ["x" * 40]
        assert "CONNECTION_KEY has changed" in page(operator, shop)


@pytest.mark.django_db(transaction=True)
class TestANewKeyOfTheApi:
    @pytest.fixture
    def fake(self, settings: Any) -> Iterator[FakeShop]:
        settings.CONNECTIONS_PRIVATE = True
        fake = FakeShop()
        with fake.serve():
            yield fake

    def save(self, client: Client, shop: ShopConnection, key: str, secret: str) -> str:
        return act(client, shop, "key", key=key, key_secret=secret)

    def test_one_that_the_shop_refuses_is_saved_with_a_warning(self, operator, fake):
        shop = connect(address=fake.address)
        said = self.save(operator, shop, "ck_1", "cs_1")
        assert "The shop refuses the API key" in said and "Saved the key" not in said
        assert decrypt(shop.api_key) == "ck_1" and len(fake.requests) == 1
        assert "The shop refuses the API key" in page(operator, shop)

    def test_one_that_the_shop_takes_ends_an_earlier_problem(self, operator, fake):
        fake.place()
        shop = connect(
            address=fake.address, last_post_at=timezone.now(), check_problem="The shop refuses the API key."
        )
        said = self.save(operator, shop, fake.key, fake.key_secret)
        assert "The key is saved and works" in said and len(fake.requests) == 1
        assert shop.check_problem == "" and "within the hour" in page(operator, shop)

    def test_one_of_a_shop_that_is_down_is_saved_at_once(self, operator, fake):
        shop = connect(address=fake.address)
        fake.api_answers = [(503, {"Retry-After": "30"})]
        assert "The shop asks to wait 30 s" in self.save(operator, shop, fake.key, fake.key_secret)
        assert decrypt(shop.api_key) == fake.key

    def test_one_whose_orders_are_of_another_address_is_saved_with_a_warning(self, operator, fake):
        links = {"self": [{"href": "https://www.tea.example/wp-json/wc/v3/orders/1"}]}
        fake.place(_links=links)
        shop = connect(address=fake.address)
        said = self.save(operator, shop, fake.key, fake.key_secret)
        assert "they are of https://www.tea.example. Is http://" in said

    def test_half_of_one_is_refused(self, operator, fake):
        shop = connect(address=fake.address)
        assert "Enter both" in self.save(operator, shop, "ck_1", "") and fake.requests == []


class TestASecret:
    def offer(self, client: Client, shop: ShopConnection) -> dict[str, str]:
        """Return what the page's button sends."""
        text = page(client, shop)
        return {name: re.findall(f'name="{name}" value="([^"]+)"', text)[0] for name in ("offered", "seen")}

    def test_another_one_is_asked_for_first_and_shown_once_and_the_former_one_is_forged(
        self, operator, plain_shop
    ):
        assert "Until you do, the shop&#x27;s posts are refused" in page(operator, plain_shop).replace(
            "'", "&#x27;"
        )
        fields = self.offer(operator, plain_shop)
        answer = operator.post(f"{SHOPS}{plain_shop.id}/act/", {"action": "secret", **fields})
        plain_shop.refresh_from_db()
        secret = decrypt(plain_shop.secret)
        assert answer.content.decode().count(secret) == 1
        assert secret not in page(operator, plain_shop)
        assert post(body_of("A-1", "placed")).status_code == 401
        assert post(body_of("A-1", "placed"), secret=secret).status_code == 202
        assert secret not in " ".join(acts().values_list("act", flat=True))

    def test_two_clicks_show_the_secret_that_counts(self, operator, plain_shop):
        fields = self.offer(operator, plain_shop)
        for _ in range(2):
            answer = operator.post(f"{SHOPS}{plain_shop.id}/act/", {"action": "secret", **fields})
            plain_shop.refresh_from_db()
            assert decrypt(plain_shop.secret) in answer.content.decode()

    def test_a_page_from_before_another_one_makes_none(self, operator, plain_shop):
        old = self.offer(operator, plain_shop)
        act(operator, plain_shop, "secret", **self.offer(operator, plain_shop))
        stored = plain_shop.secret
        assert "Somebody made another secret" in act(operator, plain_shop, "secret", **old)
        for fields in ({"offered": "x", "seen": "y"}, {}):
            assert "The page is too old" in act(operator, plain_shop, "secret", **fields)
        assert plain_shop.secret == stored

    @pytest.mark.django_db(transaction=True)
    def test_posts_with_another_signature_are_counted_for_a_day_without_a_row(
        self, operator, plain_shop, valkey_url
    ):
        for _ in range(3):
            post(body_of("A-1", "placed"), secret="another")
        assert "3 posts with another signature came, the last at" in page(operator, plain_shop)
        shown = page(operator, plain_shop)
        assert "paste the secret into the shop&#x27;s webhook again" in shown
        assert "make another one below" in shown
        assert not ConnectionPost.objects.exists()
        with redis.Redis.from_url(valkey_url) as client:
            (key,) = client.keys("orderpost:connect:*")
            assert 86_000 < client.ttl(key) <= 86_400
            client.expire(key, 1000)
            post(body_of("A-1", "placed"), secret="another")
            assert client.ttl(key) <= 1000  # a day from the first one
        post(body_of("A-1", "placed"))
        ShopConnection.objects.update(
            state="live", live_at=timezone.now(), last_post_at=timezone.now() + HOUR
        )
        assert "4 posts" in page(operator, plain_shop)
        assert "Since then, posts with the right one came" in page(operator, plain_shop)
        act(operator, plain_shop, "secret", **self.offer(operator, plain_shop))
        assert "another signature" not in page(operator, plain_shop)

    def test_no_answer_depends_on_the_count(self, operator, plain_shop, settings):
        settings.REDIS_URL = "redis://127.0.0.1:1/0"
        assert post(body_of("A-1", "placed"), secret="another").status_code == 401
        assert "another signature" not in page(operator, plain_shop)


class TestItsState:
    def test_it_turns_green_with_the_first_order(self, operator, plain_shop):
        ShopConnection.objects.update(state="waiting")
        assert "No post with the right signature has come yet" in page(operator, plain_shop, part="1")
        post(body_of("A-1001", "placed"))
        process_waiting(seconds=60)
        assert re.search(
            r"Connected: last order <b>A-1001</b>, \d s ago", page(operator, plain_shop, part="1")
        )

    def test_its_trial_shows_the_emails_that_were_not_sent(self, operator, plain_shop):
        for number in range(22):
            post(body_of(f"A-{number}", "placed", "paid"))
        process_waiting(seconds=60)
        text = page(operator, plain_shop)
        assert text.count("Not sent: trial.") == 20
        assert text.count("/preview/") == 20
        assert "The newest 20 of 22." in text

    def test_a_trial_with_few_emails_counts_none(self, operator, plain_shop):
        post(body_of("A-1", "placed", "paid"))
        process_waiting(seconds=60)
        text = page(operator, plain_shop)
        assert text.count("Not sent: trial.") == 1 and "The newest" not in text

    def test_only_an_operator_changes_it(self, plain_shop):
        viewer = staff_client("view_shopconnection", name="vera")
        assert "/live/" not in page(viewer, plain_shop)
        assert viewer.get(f"{SHOPS}{plain_shop.id}/live/").status_code == 403
        assert viewer.post(f"{SHOPS}{plain_shop.id}/act/", {"action": "off"}).status_code == 403
        assert viewer.get(f"{SHOPS}add/").status_code == 403
        assert viewer.get(POSTS).status_code == 403


class TestItsPosts:
    def test_an_unusable_post_shows_its_reason_and_is_tried_again(self, operator, plain_shop):
        post(body_of("A-1001", "placed", fault="its status is unknown"))
        process_waiting(seconds=60)
        row = ConnectionPost.objects.get()
        assert "its status is unknown" in operator.get(f"{POSTS}?state=unusable").content.decode()
        assert "its status is unknown" in operator.get(f"{POSTS}{row.id}/change/").content.decode()
        ConnectionPost.objects.update(body=body_of("A-1001", "placed").decode())
        operator.post(f"{POSTS}{row.id}/retry/")
        process_waiting(seconds=60)
        assert Order.objects.get().status == "pending"
        assert "processed" in operator.get(f"{POSTS}{row.id}/change/").content.decode()
        assert not EmailNotification.objects.exists()

    def test_the_page_of_a_trial_says_why_the_newest_cannot_be_used(self, operator, plain_shop):
        faults = ["its currency is odd", "its status is odd", "its id is odd", "its total is odd"]
        for number, fault in enumerate([*faults, faults[-1]]):
            assert post(body_of(f"A-{number}", "placed", fault=fault)).status_code == 202
            process_waiting(seconds=60)
        shown = page(operator, plain_shop)
        assert "5 posts cannot be used" in shown and "Go live" in shown
        assert "its total is odd; its id is odd; its status is odd." in shown
        assert "its currency is odd" not in shown
        viewer = staff_client("view_shopconnection", name="vera")
        assert "5 posts cannot be used" in page(viewer, plain_shop)
        assert "is odd" not in page(viewer, plain_shop)

    def test_a_missing_order_is_named_and_processed_by_one_click(self, operator, plain_shop):
        for number in range(2):
            body = body_of(f"M-{number}", "placed").decode()
            ConnectionPost.objects.create(
                source="shop-w", body=body, state="missing", reference=f"M-{number}"
            )
        ShopConnection.objects.update(last_post_at=timezone.now())
        text = page(operator, plain_shop)
        assert "2 orders differ between the shop and here" in text and "M-1" in text
        assert re.search(r'class="triage-buttons">[^/]*Process what is missing', text)
        row = ConnectionPost.objects.latest("id")
        assert "missing here" in operator.get(f"{POSTS}{row.id}/change/").content.decode()
        ShopConnection.objects.update(state="off")
        assert "Process what is missing" not in page(operator, plain_shop)
        assert "Nothing was changed. The connection is off" in act(operator, plain_shop, "repair")
        ShopConnection.objects.update(state="trial")
        assert "2 orders are processed now" in act(operator, plain_shop, "repair")
        process_waiting(seconds=60)
        assert Order.objects.count() == 2
        assert "between the shop and here" not in page(operator, plain_shop)

    def test_a_viewer_may_not_have_it_tried_again(self, plain_shop):
        post(b"no JSON")
        process_waiting(seconds=60)
        viewer = staff_client("view_connectionpost", name="vera")
        row = ConnectionPost.objects.get()
        assert "Try again" not in viewer.get(f"{POSTS}{row.id}/change/").content.decode()
        assert viewer.post(f"{POSTS}{row.id}/retry/").status_code == 403
