"""A shop of Saleor through the whole connection, from the installation by one address to its e-mails."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db.models import F
from django.test import Client
from django.utils import timezone

from orders.models import Shipment
from shop_connections import changes, readings
from shop_connections.changes import NOTIFY_WITHIN
from shop_connections.compare import compare_shop, repair
from shop_connections.encryption import encrypt
from shop_connections.http import ShopUnreachable
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.platforms import PLATFORMS
from shop_connections.process import process_waiting, retry
from shop_connections.shop_order import CLOCKS_APART
from tests.kit.plain_shop import KEY, SOURCE, come_at_once, connect
from tests.kit.saleor import FakeSaleor, Post
from tests.kit.words import EmailNotification, Order, our_id
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL

pytestmark = pytest.mark.django_db
SECRET = "s" * 43
BASE = f"/connect/{SOURCE}/{SECRET}"


@pytest.fixture
def shop(settings: Any) -> Iterator[FakeSaleor]:
    """Return a Saleor whose clock is right, with the app installed."""
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.NOTIFY_ON = [KEY], False, EVERY_EMAIL
    settings.CONNECTIONS_PRIVATE = True
    shop = FakeSaleor(seed=7, source=SOURCE)
    shop.now, shop.longest_pause = timezone.now() - dt.timedelta(seconds=5), 0.0
    with shop.serve() as address:
        connect(secret=encrypt(SECRET), state="trial", platform="saleor", address=address)
        assert shop.install(Client(), f"{BASE}/manifest").status_code == 200
        shop.requests.clear()
        yield shop


def send(headers: dict[str, str], body: bytes, *, path: str = f"{BASE}/posts") -> int:
    headers = dict(headers)
    content_type = headers.pop("Content-Type")
    return Client().post(path, body, content_type=content_type, headers=headers).status_code


def take(*posts: Post) -> None:
    """Take posts, and read the orders that they do not tell."""
    for post in posts:
        assert send(*post) == 202
    work()


def work() -> None:
    assert process_waiting(seconds=60) == "none"
    while readings.is_waiting():
        readings.read_some()
        assert process_waiting(seconds=60) == "none"


def state_of(id: str) -> tuple[str | None, int, tuple[str, ...]]:
    order = Order.objects.filter(id=our_id(source=SOURCE, id=id)).first()
    if order is None:
        return None, 0, ()
    emails = EmailNotification.objects.filter(order_id=order.id).order_by("id")
    return order.status, order.refunded_amount, tuple(emails.values_list("event_type", flat=True))


def emails(id: str) -> list[str]:
    return [event.removeprefix("order.") for event in state_of(id)[2]]


def wait() -> None:
    """Let ten minutes pass, and process what is due."""
    ConnectionPost.objects.waiting().update(due_at=F("due_at") - NOTIFY_WITHIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "NOTIFY_WITHIN", dt.timedelta())
        work()
    assert not ConnectionPost.objects.exclude(state="done").exists()


class TestPosts:
    def test_the_first_order_has_its_email(self, shop):
        id = shop.place()
        take(*shop.deliveries())
        assert state_of(id) == ("paid", 0, ("order.paid",))

    def test_orders_and_their_emails_are_those_of_the_shop_each_once(self, shop):
        ids = [shop.place_any() for _ in range(6)]
        lives = [shop.live(id) for id in ids]
        take(*shop.deliveries())
        while lives:
            life = random.choice(lives)
            if next(life, None) is None:
                lives.remove(life)
            posts = shop.deliveries()
            random.shuffle(posts)
            take(*posts)
        wait()
        for id in ids:
            status, refunded, told = state_of(id)
            assert (status, refunded) == shop.truth(id)[:2]
            assert sorted(told) == sorted(shop.emails[id])

    def test_two_deliveries_of_one_change_in_both_orders(self, shop):
        for turn in (1, -1):
            id = shop.place(is_paid=False)
            take(*shop.deliveries())
            shop.pay(id)
            posts = [*shop.deliveries(), shop.signed(shop.made("OrderUpdated", id))]
            take(*posts[::turn])
            assert emails(id) == ["confirmed", "paid"]

    def test_a_replay_sends_nothing_again(self, shop):
        id = shop.place(is_paid=False)
        old = shop.deliveries()
        shop.pay(id)
        shop.refund(id, 1.0)
        take(*old, *shop.deliveries())
        assert emails(id) == ["confirmed", "paid"]  # whose table shows the refund
        before = state_of(id)
        take(*old, *old)
        assert state_of(id) == before
        assert len(shop.requests) == 1  # an old one is no news, but the order may have some

    def test_of_a_late_one_the_order_is_read(self, shop):
        """Its body may be older than the one before, and its change is lost otherwise."""
        id = shop.place(is_paid=False)
        take(*shop.deliveries())
        late = shop.made("OrderUpdated", id)
        shop.edit(id, customerNote="Ring twice")
        take(*shop.deliveries())
        shop.pay(id)  # without a post
        shop.waiting.clear()
        take(shop.signed(late))
        assert emails(id) == ["confirmed", "paid"] and len(shop.requests) == 1
        assert ShopConnection.objects.get().source == SOURCE

    def test_of_a_late_one_of_a_clock_that_is_ahead_the_order_is_read_in_time(self, shop):
        """Until then what is read, by our clock, would be late, too."""
        shop.now += CLOCKS_APART - dt.timedelta(seconds=30)
        id = shop.place(is_paid=False)
        take(*shop.deliveries())
        late = shop.made("OrderUpdated", id)
        shop.edit(id)
        take(*shop.deliveries())
        shop.pay(id)
        shop.waiting.clear()
        take(shop.signed(late))
        waiting, order = ConnectionPost.objects.waiting().get(), Order.objects.get()
        assert waiting.due_at == order.reported_at and shop.requests == []
        Order.objects.update(reported_at=F("reported_at") - CLOCKS_APART)
        ConnectionPost.objects.waiting().update(due_at=F("due_at") - CLOCKS_APART)
        work()
        assert emails(id) == ["confirmed", "paid"] and len(shop.requests) == 1

    @pytest.mark.parametrize(("is_change", "times"), [(True, 2), (False, 1)])
    def test_a_save_that_is_posted_while_its_order_is_read_stays(self, shop, monkeypatch, is_change, times):
        """The shop's clock is a minute behind, so that the save has an earlier time than the reading."""
        shop.now -= dt.timedelta(minutes=1)
        id = shop.place()
        take(*shop.deliveries())
        late = shop.made("OrderUpdated", id)
        shop.edit(id)
        take(*shop.deliveries())
        read_again = PLATFORMS["saleor"].read_again

        def read(connection: ShopConnection, **options: Any) -> bytes | None:
            assert read_again is not None
            body: bytes | None = read_again(connection, **options)
            if len(shop.requests) == 1:
                (shop.cancel if is_change else shop.edit)(id)
                for post in shop.deliveries():
                    assert send(*post) == 202
                assert process_waiting(seconds=60) == "none"
            return body

        monkeypatch.setitem(PLATFORMS, "saleor", PLATFORMS["saleor"]._replace(read_again=read))
        take(shop.signed(late))
        assert state_of(id)[0] == ("cancelled" if is_change else "paid")
        assert emails(id) == ["paid", *(["cancelled"] if is_change else [])]
        assert len(shop.requests) == times

    @pytest.mark.parametrize("is_null", [True, False])
    def test_a_body_with_errors_changes_nothing_and_its_order_is_read(self, shop, is_null):
        id = shop.place()
        shop.waiting.clear()
        body = shop.made("OrderCreated", id)
        body["order"] = None if is_null else {**body["order"], "status": "CANCELED"}
        if not is_null:
            body["errors"] = [{"message": "Cannot read lines", "path": ["event", "order", "lines"]}]
        take(shop.signed(body))
        assert state_of(id) == ("paid", 0, ("order.paid",))

    def test_an_order_that_is_gone_ends_its_post(self, shop):
        id = shop.place()
        body = shop.made("OrderUpdated", id) | {"order": None}
        del shop.orders[id]
        take(shop.signed(body))
        post = ConnectionPost.objects.get()
        assert (post.state, post.reason) == ("done", readings.GONE)

    def test_one_of_a_channel_that_was_chosen_away_while_it_waited_is_left_out(self, shop):
        ids = [shop.place(), shop.place(), shop.place()]
        shop.waiting.clear()
        bodies = [shop.made("OrderUpdated", id) for id in ids]
        bodies[1]["order"] = bodies[2]["order"] = None
        bodies[2]["about"]["channel"] = {"slug": "poland"}  # it has moved since
        for body in bodies:
            assert send(*shop.signed(body)) == 202
        ShopConnection.objects.update(installation={**installation(), "channel": "poland"})
        work()
        reasons = ConnectionPost.objects.values_list("state", "reason")
        assert set(reasons) == {("done", "left out: it is of the channel default-channel")}
        assert len(shop.requests) == 1 and not Order.objects.exists()

    def test_after_too_many_failures_a_person_is_asked_and_can_have_it_tried_again(self, shop):
        id = shop.place()
        shop.waiting.clear()
        assert send(*shop.signed({**shop.made("OrderCreated", id), "order": None})) == 202
        process_waiting(seconds=60)
        for failures in range(1, readings.MOST_FAILURES + 1):
            ConnectionPost.objects.update(due_at=None)
            shop.answers = [(500, {"errors": [{"message": "Out of order"}]}, {})]
            readings.read_some()
            assert ConnectionPost.objects.get().failed_readings == failures
        post = ConnectionPost.objects.get()
        assert post.state == "unusable" and "Out of order" in post.reason
        assert retry(ids=[post.id]) == [post.id]
        work()
        assert emails(id) == ["paid"]

    def has_read(self, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], bytes | None]) -> None:
        """Have the orders of Saleors read by a function of their connection's name."""
        platform = PLATFORMS["saleor"]._replace(read_again=lambda shop, **_: read(shop.source))
        monkeypatch.setitem(PLATFORMS, "saleor", platform)

    def test_a_reading_that_ends_its_process_counts_and_no_other_worker_begins_it_meanwhile(
        self, shop, monkeypatch
    ):
        def end(source: str) -> None:
            assert not readings.is_waiting()
            raise KeyboardInterrupt

        self.has_read(monkeypatch, end)
        ConnectionPost.objects.create(source=SOURCE, body="{}", failed_readings=0)
        for failures in range(1, readings.MOST_FAILURES + 1):
            with pytest.raises(KeyboardInterrupt):
                readings.read_some()
            ConnectionPost.objects.update(due_at=timezone.now())
            assert ConnectionPost.objects.get().failed_readings == failures
        assert readings.read_some() is False
        post = ConnectionPost.objects.get()
        assert post.state == "unusable" and "the process that read it ended" in post.reason

    @pytest.mark.parametrize("is_answered", [True, False])
    def test_a_reading_that_ends_after_another_one_changes_nothing(self, shop, monkeypatch, is_answered):
        def read(source: str) -> bytes:
            ConnectionPost.objects.update(body="read", failed_readings=None, due_at=None)
            if not is_answered:
                raise ShopUnreachable("It is away.")
            return b"late"

        self.has_read(monkeypatch, read)
        ConnectionPost.objects.create(source=SOURCE, body="{}", failed_readings=0)
        readings.read_some()
        post = ConnectionPost.objects.get()
        assert (post.body, post.state, post.failed_readings, post.reason) == ("read", "waiting", None, "")

    def test_a_shop_that_does_not_answer_has_one_turn_and_the_last_one(self, shop, monkeypatch):
        asked = []

        def read(source: str) -> None:
            asked.append(source)
            if source == "shop-a":
                raise ShopUnreachable("It is away.")

        self.has_read(monkeypatch, read)
        connect("shop-a", platform="saleor")
        for turns in (["shop-a", SOURCE, SOURCE], [SOURCE, "shop-a", SOURCE]):
            for source in ("shop-a", SOURCE) * 2:
                ConnectionPost.objects.create(source=source, body="{}", failed_readings=0)
            assert readings.read_some() is False and asked == turns
            asked.clear()

    def test_a_post_asks_the_shop_for_nothing(self, shop):
        shop.place()
        for post in shop.deliveries():
            assert send(*post) == 202
        assert shop.requests == []

    def test_what_nobody_hears_of(self, shop):
        ids = [
            shop.place(status="EXPIRED", is_paid=False),
            shop.place(status="DRAFT", is_paid=False, origin="DRAFT"),
            shop.place(origin="BULK_CREATE"),
            shop.place(origin="REISSUE", is_paid=False),
        ]
        expired = shop.place(status="UNCONFIRMED", is_paid=False)
        take(*shop.deliveries())
        shop.expire(expired)
        shop.fulfill(ids[3])
        take(*shop.deliveries())
        told = {id: emails(id) for id in ids}
        assert told == {ids[0]: [], ids[1]: [], ids[2]: [], ids[3]: ["shipped"]}
        assert emails(expired) == ["placed"]


def installation() -> dict[str, Any]:
    stored: dict[str, Any] = ShopConnection.objects.get(source=SOURCE).installation
    return stored


class TestParcels:
    """Whether a customer hears of a parcel is in its own event alone."""

    def take_in(self, shop: FakeSaleor, turn: int) -> None:
        take(*shop.deliveries()[::turn])

    @pytest.fixture
    def id(self, shop: FakeSaleor) -> str:
        id = shop.place()
        take(*shop.deliveries())
        return id

    @pytest.mark.parametrize("turn", [1, -1], ids=["own event first", "own event last"])
    @pytest.mark.parametrize("notify", [True, False])
    @pytest.mark.parametrize("number", ["", "JD1"])
    def test_one_that_completes_the_order(self, shop, id, turn, notify, number):
        shop.fulfill(id, number=number, notify=notify)
        self.take_in(shop, turn)
        wait()
        assert state_of(id)[0] == "completed"
        assert emails(id) == ["paid", *(["completed"] if notify else [])]

    @pytest.mark.parametrize(("notify", "told"), [(True, "completed"), (False, "paid")])
    def test_one_that_leaves_as_the_order_is_paid(self, shop, notify, told):
        """The e-mail of the completion also stands for the payment, unless the shop wants none."""
        id = shop.place(is_paid=False)
        take(*shop.deliveries())
        shop.pay(id)
        shop.fulfill(id, notify=notify)
        take(*shop.deliveries())
        wait()
        assert state_of(id)[0] == "completed" and emails(id) == ["confirmed", told]

    @pytest.mark.parametrize("turn", [1, -1])
    @pytest.mark.parametrize("notify", [True, False])
    def test_a_part_of_the_order(self, shop, id, turn, notify):
        shop.fulfill(id, 1, 0, notify=notify)
        self.take_in(shop, turn)
        wait()
        assert emails(id) == ["paid", *(["shipped"] if notify else [])]

    @pytest.mark.parametrize("notify", [True, False])
    def test_two_of_one_request_from_two_warehouses(self, shop, id, notify):
        shop.fulfill(id, 1, 0, notify=notify)
        shop.now -= dt.timedelta(milliseconds=20)
        shop.fulfill(id, 0, 1, notify=notify)
        take(*shop.deliveries())
        assert emails(id) == ["paid", *(["shipped"] * 2 if notify else [])]
        wait()
        assert Shipment.objects.count() == 2

    def test_its_event_was_lost(self, shop, id):
        shop.fulfill(id, 1, 0, notify=False)
        take(shop.deliveries()[-1])
        assert emails(id) == ["paid"]
        wait()
        assert emails(id) == ["paid", "shipped"]

    @pytest.mark.parametrize("notify", [True, False])
    @pytest.mark.parametrize("turn", [1, -1])
    def test_one_that_was_approved_much_later(self, shop, id, turn, notify):
        shop.now -= dt.timedelta(hours=5)
        fulfillment = shop.fulfill(id, is_approved=False)
        shop.now += dt.timedelta(hours=5)
        take(*shop.deliveries())
        assert emails(id) == ["paid"] and not Shipment.objects.exists()
        shop.approve(id, fulfillment, notify=notify)
        self.take_in(shop, turn)
        wait()
        assert emails(id) == ["paid", *(["completed"] if notify else [])]

    @pytest.mark.parametrize("notify", [True, False])
    def test_a_number_is_given_later_and_corrected_and_may_be_an_address(self, shop, id, notify):
        fulfillment = shop.fulfill(id, 1, 0, notify=notify)
        take(*shop.deliveries())
        for number in ("JD1", "JD2", "https://track.example.com/JD2"):
            shop.track(id, fulfillment, number)
            take(*shop.deliveries())
        assert emails(id) == ["paid", *(["shipped"] * (4 if notify else 3))]
        shipment = Shipment.objects.get()
        assert (shipment.tracking_number, shipment.tracking_url) == ("", "https://track.example.com/JD2")

    def test_one_that_came_back_and_another_one(self, shop, id):
        """Saleor deletes the first one's fulfilment. The second is no correction of it."""
        first = shop.fulfill(id, 2, 0, number="JD1")
        take(*shop.deliveries())
        shop.return_all(id, first)
        take(*shop.deliveries())
        shop.fulfill(id, 0, 1, number="JD2")
        take(*shop.deliveries())
        assert emails(id)[:2] == ["paid", "shipped"] and len(emails(id)) == 3
        shipments = Shipment.objects.order_by("shipped_at")
        assert [len(shipment.lines) for shipment in shipments] == [1, 0]
        assert [shipment.tracking_number for shipment in shipments] == ["JD1", "JD2"]

    def test_one_that_was_cancelled(self, shop, id):
        first = shop.fulfill(id, number="JD1")
        take(*shop.deliveries())
        shop.cancel_fulfillment(id, first)
        take(*shop.deliveries())
        assert Shipment.objects.get().returned_at and state_of(id)[0] == "paid"
        shop.fulfill(id, number="JD2")
        take(*shop.deliveries())
        assert emails(id) == ["paid", "completed", "shipped"]

    def test_a_refund_without_a_parcel(self, shop, id):
        """Saleor counts lines that were refunded before they left as fulfilled."""
        order = shop.orders[id]
        for line in order["lines"]:
            line["quantityFulfilled"] = line["quantity"]
        order["status"] = "FULFILLED"
        lines = [{"quantity": 2, "orderLine": {"id": order["lines"][0]["id"]}}]
        order["fulfillments"] = [
            {
                "id": "R1",
                "status": "REFUNDED",
                "created": order["created"],
                "trackingNumber": "",
                "lines": lines,
            }
        ]
        shop.refund(id)
        take(*shop.deliveries())
        assert state_of(id) == ("refunded", 4990, ("order.paid", "order.refunded"))
        assert not Shipment.objects.exists()


class TestComparison:
    @pytest.fixture
    def live(self, shop: FakeSaleor) -> FakeSaleor:
        values = {"state": "live", "live_at": timezone.now() - dt.timedelta(days=1)}
        values["going_live"] = {"done_at": "before the test"}
        created_at = timezone.now() - dt.timedelta(days=3)
        ShopConnection.objects.update(**values, created_at=created_at, last_post_at=timezone.now())
        return shop

    def test_one_of_another_channel_is_not_missing_also_if_it_was_before(self, live):
        live.now -= dt.timedelta(hours=2)
        for slug in ("poland", "germany"):
            live.place(channel={"slug": slug})
        live.waiting.clear()
        assert len(self.find()) == 2
        ShopConnection.objects.update(installation={**installation(), "channel": "poland"})
        assert len(self.find()) == 1 and ConnectionPost.objects.missing().count() == 1
        live.place(channel={"slug": "germany"})
        live.waiting.clear()
        assert len(self.find()) == 1 and ConnectionPost.objects.missing().count() == 1

    def find(self) -> list[tuple[str, ...]]:
        return [each.events for each in compare_shop(ShopConnection.objects.get()).missing]

    @pytest.mark.parametrize(
        ("change", "events"),
        [
            (lambda shop, id: shop.fulfill(id, 1, 1, number="JD2"), ("order.shipped", "order.completed")),
            (lambda shop, id: shop.track(id, shop.parcel, "JD9"), ("order.shipped",)),
            (lambda shop, id: shop.refund(id, 1.0), ("order.part_refunded",)),
        ],
        ids=["a second parcel", "a corrected number", "a refund"],
    )
    def test_it_finds_what_was_lost(self, live, change: Callable[..., Any], events):
        live.now -= dt.timedelta(hours=2)
        id = live.place()
        live.parcel = live.fulfill(id, 1, 0, number="JD1")
        for post in live.deliveries():
            assert send(*post) == 202
        come_at_once()
        work()
        live.now += dt.timedelta(minutes=20)
        updated_at = live.orders[id]["updatedAt"]
        change(live, id)
        live.waiting.clear()
        if "shipped" in events[0]:
            live.orders[id]["updatedAt"] = updated_at
        ShopConnection.objects.update(checked_at=live.now)
        assert self.find() == [events]
        assert repair(source=SOURCE) == 1
        work()
        assert emails(id)[-1] == events[-1].removeprefix("order.")
        assert self.find() == []

    def test_orders_of_before_the_connection_become_history(self, live):
        live.now -= dt.timedelta(days=5)
        id = live.place()
        live.waiting.clear()
        assert self.find() == []
        work()
        assert state_of(id) == ("paid", 0, ())
        live.now = timezone.now() - dt.timedelta(minutes=1)
        live.refund(id, 1.0)
        take(*live.deliveries())
        assert emails(id) == ["part_refunded"]
