"""Random lives of the orders of WooCommerce shops, and who must get which e-mail about each.

A `World` is a shop with a dozen orders, of which some are older than the connection. Its clock may be hours
off, its posts are lost, doubled, late and shuffled, a copy of it posts, too, and in the middle it goes live.
People and plug-ins change the orders (`Life`), and each change is news of which a customer must hear once:
from the shop before the moment of going live, from us after it. The posts are read and compared as
`shop_connections.process` does it, but in memory.

`Life.expect` is the table "Who gets an e-mail" of docs/guides/woocommerce.md, written without a look at the
code: what a post must tell, may tell, and the row that says so. Everything else must not be told.
"""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from django.test import override_settings

from orders.events import DEFAULT_EMAILS, EMAILS
from shop_connections.changes import Change, Differences
from shop_connections.clocks import find_offset
from shop_connections.models import ShopConnection
from shop_connections.shop_order import ShopHead
from shop_connections.woocommerce.read import read_head
from tests.kit.seen_orders import SOURCE, Seen, find
from tests.kit.woocommerce import FakeShop

SECOND, MINUTE, HOUR, DAY = (dt.timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
ADDRESS, COPY = "https://shop.example", "https://shop.example/staging"
#: How near a change may be to the moment of going live if the shop's clock is off. The offset is as exact as
#: posts are fast.
_UNSURE = 4 * MINUTE
#: With fewer orders, the shop's clock may not be known.
_FEW = 6
_AFTER_RETURN = "delivered after returned"
_TRACKING = "_wc_shipment_tracking_items"
Verdict = Literal["must", "may", "not"]
Email = tuple[str, str]  # the event, and the number of its parcel or the amount of its refund


@dataclass(eq=False)
class News:
    """Something of which the customer hears. `dated` is its own date in the order, if it has one."""

    kind: str
    at: dt.datetime
    key: str = ""
    dated: dt.datetime | None = None
    row: str = ""
    amount: int = 0


class Post(NamedTuple):
    body: bytes
    news: Sequence[News]  # what had happened, without what was taken back
    saved_at: dt.datetime | None  # None if the body does not say it
    status: str
    is_paid: bool
    is_all_refunded: bool
    returned: frozenset[str]  # numbers of parcels


class Difference(NamedTuple):
    row: str
    text: str


class Shop(FakeShop):
    """A shop whose clock the world moves."""

    def _tick(self) -> None:
        pass


class World:
    def __init__(self, seed: object, *, lives: int = 12) -> None:
        self.seed, self.count = seed, lives
        self.random = random.Random(str(seed))
        self.began_at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC) + self.random.random() * DAY
        self.live_at = self.began_at + self.random.uniform(2, 12) * DAY
        self.live_at = self.live_at.replace(microsecond=0)
        self.skew = self._skew()
        self.zone = self.random.choice([-8, -5, 0, 1, 1, 2, 9]) * HOUR
        self.shop = Shop(seed=self.random.randrange(10**9))
        self.notify_on = self.random.choice(
            [
                EMAILS,
                EMAILS,
                DEFAULT_EMAILS,
                [name for name in EMAILS if name != "order.paid"],
                [name for name in EMAILS if name != "order.completed"],
            ]
        )
        self.connection = ShopConnection(
            source=SOURCE,
            state="trial",
            address=ADDRESS,
            addresses=["https://www.shop.example"],
            statuses={"packed": "paid", "internal": ""},
        )
        self.posts: deque[tuple[object, dt.datetime, dt.datetime]] = deque(maxlen=50)  # for the offset
        self.differences: list[Difference] = []
        self.told: Counter[str] = Counter()  # e-mails by the row that says that they must be told
        self.has_key = self.random.random() < 0.8  # of the API, for comparisons
        self.lives: list[Life] = []
        self.seen: dict[str, Seen] = {}
        self.keys: dict[str, str] = {}
        self.first_post_at: dict[str, dt.datetime] = {}
        self._queue: list[tuple[dt.datetime, int, Callable[[dt.datetime], None]]] = []
        self._numbers = itertools.count()

    def _skew(self) -> dt.timedelta:
        chance = self.random.random()
        if chance < 0.4:
            return dt.timedelta()
        if chance < 0.5:
            return self.random.randint(-100, 100) * SECOND
        return self.random.randint(-12 * 4, 14 * 4) * 15 * MINUTE

    def at(self, time: dt.datetime, act: Callable[[dt.datetime], None]) -> None:
        heapq.heappush(self._queue, (time, next(self._numbers), act))

    def run(self) -> None:
        with override_settings(NOTIFY_ON=self.notify_on, EMAIL_MAX_AGE_HOURS=10**5):
            self.at(self.live_at, self._go_live)
            self.at(self.began_at + DAY, self._compare)
            for number in range(self.count):
                is_calm = number < 4  # the first posts say how far the clock is off
                if is_calm:
                    at = self.began_at + self.random.random() * DAY
                else:
                    at = self.live_at + self.random.choice([-40, -10, -2, 5, 40]) * self.random.random() * DAY
                life = Life(self, is_calm=is_calm)
                self.at(self.sure(at.replace(microsecond=0)), life.begin)
            if self.random.random() < 0.1:
                self.at(self.live_at + self.random.uniform(-5, 15) * DAY, self._set_up_again)
            while self._queue:
                time, _, act = heapq.heappop(self._queue)
                act(time)
            for life in self.lives:
                life.judge()

    def _set_up_again(self, _: dt.datetime) -> None:
        """Set up the shop again. Its orders have the ids of other ones, and other keys."""
        self.shop = Shop(seed=self.random.randrange(10**9))

    def _go_live(self, at: dt.datetime) -> None:
        self.connection.state, self.connection.live_at = "live", at
        for life in self._listed(until=at):
            life.store_history(at)

    def _compare(self, at: dt.datetime) -> None:
        """Compare the shop for the first time. What was before the connection is history."""
        for life in self._listed(until=self.began_at):
            if life.saved_at > at - 30 * DAY:
                life.store_history(at)

    def _listed(self, *, until: dt.datetime) -> list[Life]:
        """Return the orders of the API whose last save lies before a time."""
        lives = self.lives if self.has_key else []
        return [life for life in lives if life.shop is self.shop and life.saved_at < until]

    def sure(self, time: dt.datetime) -> dt.datetime:
        """Return the time, or a later one if nobody could say whether it lies before going live."""
        if self.skew and abs(time - self.live_at) < _UNSURE:
            return self.live_at + _UNSURE
        return time

    def find(self, head: ShopHead) -> tuple[str, Seen]:
        """Return our name of an order, and what is here of it, as `shop_connections.process` finds it."""
        is_other = self.keys.setdefault(head.id, head.key) != head.key
        name = f"{head.id} {head.key}" if is_other else head.id
        if name not in self.seen:
            self.seen[name] = Seen()
            self.seen[name].connection = self.connection
        return name, self.seen[name]

    def set_clock(self, time: dt.datetime) -> None:
        self.shop.now = time + self.skew

    def offset(self, *also: tuple[object, dt.datetime, dt.datetime]) -> dt.timedelta:
        return find_offset((id, received - saved) for id, received, saved in (*self.posts, *also))


class Life:
    """The life of an order: what people do with it, and what its customer must hear."""

    def __init__(self, world: World, *, is_calm: bool) -> None:
        self.world, self.random, self.is_calm = world, world.random, is_calm
        self.news: list[News] = []
        self.acts: list[str] = []
        self.steps = self.random.randint(1, 9)
        self.loss = 0.0 if is_calm else self.random.choice([0.1, 0.1, 0.3, 0.6, 0.95])
        self.under_way = 0  # posts
        self.is_unsure = False  # by a clock that was not known yet
        # What the model knows of the order here.
        self.arrived: set[News] = set()
        self.is_here = False
        self.first_post_at: dt.datetime | None = None
        self.newest: dt.datetime | None = None
        self.sent: Counter[Email] = Counter()

    # People's actions

    def begin(self, at: dt.datetime) -> None:
        self.shop = self.world.shop
        self.world.lives.append(self)
        self.world.set_clock(at)
        self.created_at = at
        chance, self.silent = self.random, frozenset[str]()
        way = chance.choice(["stripe", "stripe", "pending", "failed", "bacs", "cheque", "cod"])
        via = chance.choice(["checkout"] * 6 + ["admin", "subscription", "store-api", "rest-api", "split"])
        via = chance.choice([via] * 8 + ["dokan", "wp-all-import", "migration"])
        self.is_import = via in ("wp-all-import", "migration")
        if via == "dokan":
            names = ("placed", "paid", "confirmed", "completed", "cancelled")
            self.silent = frozenset(f"order.{name}" for name in names)
        status = {"bacs": "on-hold", "cheque": "on-hold", "pending": "pending", "failed": "failed"}
        self.method = way if way in ("bacs", "cheque", "cod") else "stripe"
        fields: dict[str, Any] = {
            "created_via": via,
            "order_key": f"wc_order_{chance.random()}",
        }
        addresses = [ADDRESS, ADDRESS, "https://www.shop.example", "http://shop.example/index.php"]
        self.links = _links(chance.choice(addresses))
        if via in ("dokan", "split"):
            fields |= {"created_via": "checkout" if via == "split" else via, "parent_id": 7}
        self.id = self.shop.place(
            status=status.get(way, "processing"), method=self.method, total="49.90", **fields
        )
        self.acts.append(f"{way} by {via}")
        self.parcels: list[dict[str, Any]] = []
        if way in ("bacs", "cheque"):
            self.tell("placed", at, dated=at, row="on hold: placed")
        elif way == "cod":
            self.tell("confirmed", at, row="cash on delivery")
        elif way == "stripe":
            self.tell("paid", at, dated=at)
        self.saved(at)

    @property
    def order(self) -> dict[str, Any]:
        return self.shop.orders[self.id]

    def tell(
        self, kind: str, at: dt.datetime, key: str = "", *, dated: dt.datetime | None = None, row: str = ""
    ) -> None:
        self.news.append(News(f"order.{kind}", at, key, dated, row or f"{kind}: told once"))

    def forget(self, kind: str, key: str) -> None:
        self.news = [each for each in self.news if (each.kind, each.key) != (f"order.{kind}", key)]

    def step(self, at: dt.datetime) -> None:
        if self.shop is not self.world.shop:
            return
        self.world.set_clock(at)
        act = self.random.choice(list(self.possible()))
        self.acts.append(f"{act} {at:%d %H:%M:%S}")
        getattr(self, act)(at)
        self.saved(at)

    def possible(self) -> Iterator[str]:
        status, parcels = self.order["status"], [each for each in self.parcels if not each["end"]]
        left = self.left()
        yield from ("edit", "move_lines", "get_account")
        if status in ("pending", "failed"):
            yield from ("pay", "pay", "download", "cancel", "fail")
        if status == "on-hold":
            yield from (
                "pay",
                "pay",
                "pay_and_refund_a_part",
                "pay_and_refund_all",
                "cancel",
                "pay_in_dollars",
            )
        if status in ("processing", "packed", "internal"):
            yield from ("ship", "ship_and_complete", "complete", "complete", "cancel", "pack", "note")
        if status == "completed":
            yield "ship"
        if status in ("processing", "completed", "packed"):
            if parcels:
                yield from ("correct", "enter_again", "relink", "deliver", "come_back")
            elif self.parcels:
                yield "deliver_what_came_back"
            if self.order["date_paid_gmt"] and left > 100:
                yield from ("refund_a_part", "refund_the_rest")
            if self.order["refunds"]:
                yield "delete_refund"
        if status == "refunded" and len(self.order["refunds"]) > 1:
            yield "delete_refund"
        yield "trash_and_restore"

    def left(self) -> int:
        return int((Decimal(self.order["total"]) - self.shop._refunded(self.order)) * 100)

    def edit(self, _: dt.datetime) -> None:
        self.order["billing"] = {**self.order["billing"], "phone": str(self.random.randrange(10**6))}

    def move_lines(self, _: dt.datetime) -> None:
        line = self.order["line_items"][0]
        other = {**line, "id": line["id"] + 1, "product_id": 94, "sku": "TEA-2", "name": "Black tea"}
        self.order["line_items"] = self.random.choice([[line], [other, line], [line, other]])

    def get_account(self, _: dt.datetime) -> None:
        self.order["customer_id"] = 17

    def note(self, _: dt.datetime) -> None:
        self.order["status"] = "internal"

    def pack(self, _: dt.datetime) -> None:
        self.order["status"] = "packed"

    def fail(self, _: dt.datetime) -> None:
        self.order["status"] = "failed"

    def pay(self, at: dt.datetime) -> None:
        self.shop.pay(self.id)
        self.tell("paid", at, dated=at)

    def pay_in_dollars(self, at: dt.datetime) -> None:
        self.order["currency"] = "USD"
        self.shop.pay(self.id)
        self.tell("paid", at, dated=at, row="the currency changes with the payment")

    def download(self, at: dt.datetime) -> None:
        self.shop.pay(self.id)
        self.tell("paid", at, dated=at, row="paid and completed at once")
        self.world.set_clock(at + self.random.randint(0, 2) * SECOND)
        self.complete(self.shop.now - self.world.skew)

    def complete(self, at: dt.datetime) -> None:
        if self.order["date_paid_gmt"] is None:
            self.tell("paid", at, dated=at, row="paid and completed at once")
        if self.order["date_completed_gmt"] is None:
            self.tell("completed", at, dated=at)
        self.shop.complete(self.id)

    def ship(self, at: dt.datetime) -> None:
        number = f"P{self.id}-{len(self.acts)}"
        self.shop.ship(self.id, number)
        entry = self.shop._meta(self.id, _TRACKING)[-1]
        if self.random.random() < 0.5:  # by the shop's day alone
            day = (self.shop.now + self.world.zone).replace(hour=0, minute=0, second=0)
            entry["date_shipped"] = str(int(day.timestamp()))
        self.parcels.append({"entry": entry, "at": at, "end": ""})
        self.tell("shipped", at, number, dated=at, row="parcels")

    def ship_and_complete(self, at: dt.datetime) -> None:
        self.ship(at)
        self.complete(at)

    def _running(self) -> dict[str, Any]:
        return self.random.choice([each for each in self.parcels if not each["end"]])

    def _renumber(self, parcel: dict[str, Any], at: dt.datetime) -> None:
        entry = parcel["entry"]
        self.forget("shipped", entry["tracking_number"])
        entry["tracking_number"] = f"C{self.id}-{len(self.acts)}"
        row = "tracking number corrected"
        self.tell("shipped", at, entry["tracking_number"], dated=parcel["at"], row=row)

    def correct(self, at: dt.datetime) -> None:
        self._renumber(self._running(), at)
        self.shop.edit(self.id)

    def enter_again(self, at: dt.datetime) -> None:
        parcel = self._running()
        parcel["entry"]["tracking_id"] = f"{self.random.getrandbits(128):032x}"
        if self.random.random() < 0.7:
            self._renumber(parcel, at)
        self.shop.edit(self.id)

    def relink(self, _: dt.datetime) -> None:
        self._running()["entry"] |= {
            "tracking_provider": "ups",
            "custom_tracking_link": "https://ups.example/1",
        }
        self.shop.edit(self.id)

    def deliver(self, at: dt.datetime) -> None:
        parcel = self._running()
        parcel["end"] = "delivered"
        self._write_ends()
        row = "a parcel delivered"
        self.tell("delivered", at, parcel["entry"]["tracking_number"], dated=parcel["at"], row=row)

    def come_back(self, at: dt.datetime) -> None:
        parcel = self._running()
        parcel["end"] = "return_to_sender"
        self._write_ends()
        self.tell("came_back", at, parcel["entry"]["tracking_number"])

    def deliver_what_came_back(self, at: dt.datetime) -> None:
        for parcel in self.parcels:
            if parcel["end"] == "return_to_sender":
                parcel["end"] = "delivered"
                number = parcel["entry"]["tracking_number"]
                self.tell("delivered", at, number, dated=parcel["at"], row=_AFTER_RETURN)
        self._write_ends()

    def _write_ends(self) -> None:
        statuses = [{"status": each["end"]} for each in self.parcels]
        self.shop._meta(self.id, "ts_shipment_status")[:] = statuses
        self.shop.edit(self.id)

    def refund_a_part(self, at: dt.datetime) -> None:
        self._refund(at, self.random.randint(1, self.left() - 1))

    def refund_the_rest(self, at: dt.datetime) -> None:
        self._refund(at, self.left())

    def _refund(self, at: dt.datetime, amount: int) -> None:
        used = {each.amount for each in self.news}
        while amount in used and amount < self.left() - 1:
            amount += 1  # or two e-mails could not be told apart
        id = self.shop.refund(self.id, str(Decimal(amount) / 100))
        self.news.append(News("order.refund", at, str(id), row="refunds", amount=amount))

    def delete_refund(self, _: dt.datetime) -> None:
        id = self.random.choice(self.order["refunds"])["id"]
        self.shop.delete_refund(self.id, id)
        self.forget("refund", str(id))

    def pay_and_refund_a_part(self, at: dt.datetime) -> None:
        self.pay(at)
        self.refund_a_part(at)

    def pay_and_refund_all(self, at: dt.datetime) -> None:
        self.pay(at)
        self.refund_the_rest(at)

    def cancel(self, at: dt.datetime) -> None:
        if self.order["status"] not in ("pending", "failed"):
            self.tell("cancelled", at)
        self.shop.cancel(self.id)

    def trash_and_restore(self, _: dt.datetime) -> None:
        self.shop.trash(self.id)
        self.shop.restore(self.id)

    # The shop's posts

    def saved(self, at: dt.datetime) -> None:
        """Have the save posted, or not, and the next one done, or all that was lost found."""
        world, chance = self.world, self.random
        self.order["date_modified_gmt"] = self.shop._now()
        self.saved_at = self.shop.now - world.skew
        self.shop.waiting.clear()
        if at >= world.began_at and chance.random() >= self.loss:
            # WooCommerce writes a post when it sends it, after more saves maybe.
            waits = chance.choice([1, 1, 1, chance.randint(2, 20), chance.randint(20, 600)])
            waits = min(waits, 20) if self.is_calm else waits
            world.at(self.saved_at + waits * SECOND, self.post)
            self.under_way += 1
        if chance.random() < 0.04:
            world.at(at + chance.randint(1, 60) * SECOND, self.post_of_copy)
        self.steps -= 1
        ahead = chance.choice([SECOND, 30 * SECOND, 20 * MINUTE, 8 * HOUR, 2 * DAY, 9 * DAY, 9 * DAY])
        wait = ahead * chance.uniform(0.2, 2)
        if chance.random() < 0.05 and not self.world.skew:
            wait = dt.timedelta()  # in the same second
        if at < world.live_at and chance.random() < 0.15:
            wait = world.live_at - at + chance.choice([SECOND, HOUR]) * chance.uniform(-2, 2)
        then = world.sure((self.saved_at + wait).replace(microsecond=0))
        if self.steps > 0:
            world.at(max(then, self.saved_at), self.step)
        else:
            world.at(max(then, world.live_at + HOUR) + chance.uniform(1, 60) * HOUR, self.post_lost)

    def post(self, at: dt.datetime) -> None:
        chance = self.random
        lasts = chance.randint(1, 4) * SECOND
        is_late = not self.is_calm and chance.random() < 0.12
        if is_late:
            lasts = chance.choice([MINUTE, HOUR, 6 * HOUR, 3 * DAY]) * chance.uniform(0.5, 2)
        post = self.write(at, can_be_odd=not is_late)
        times = 2 if chance.random() < 0.06 else 1
        if post.saved_at is None:
            lasts, times = dt.timedelta(), 1
        self.under_way += times - 1
        for _ in range(times):
            self.world.at(at + lasts, lambda at: self.arrive(post, at))
            lasts += chance.choice([SECOND, 5 * MINUTE, HOUR])

    def post_lost(self, at: dt.datetime) -> None:
        """Read the order from the API, as the comparison does, so that nothing stays lost."""
        if self.shop is not self.world.shop:
            return
        self.under_way += 1
        self.arrive(self.write(at), at)
        for each in self.news:
            if self.is_here and each not in self.arrived:
                self.differ("nobody forgotten", f"{each.kind} {each.key} is not known in the end")

    def store_history(self, at: dt.datetime) -> None:
        """Store the order from the API as `shop_connections.compare` does, if it differs here."""
        post = self.write(at, is_plain=True)
        name, differences = self.find(post.body, at, are_posts=False)
        if differences.changes:
            silent = [change._replace(notify=False) for change in differences.changes]
            self.world.seen[name].save(differences._replace(changes=silent))
            self.world.first_post_at.setdefault(name, at)
            self.expect(post, at)
            self.first_post_at = self.first_post_at or at

    def post_of_copy(self, at: dt.datetime) -> None:
        """Have the copy post the order as a developer changed it."""
        document = self._document() | {"status": "cancelled", "_links": _links(COPY)}
        document["refunds"] = [{"id": 5, "total": "-1.00"}]
        self.take(json.dumps(document).encode(), at)

    def _document(self) -> dict[str, Any]:
        return self.shop.document(self.id) | {"_links": self.links}

    def write(self, at: dt.datetime, *, can_be_odd: bool = False, is_plain: bool = False) -> Post:
        document = self._document()
        saved_at: dt.datetime | None = self.saved_at
        refunds = self.order["refunds"]
        if self.random.random() < 0.25 and not is_plain:
            document |= write_oddly(document, self.random, is_known=self.is_here)
        # A save without a time hides no later one. Nobody can say whether it comes too late itself.
        if can_be_odd and self.random.random() < 0.04 and self.under_way == 1 and self.is_here:
            document["date_modified_gmt"] = self.random.choice(
                [None, "0000-00-00T00:00:00", "2647-11-28T00:00:00"]
            )
            saved_at = None
        return Post(
            json.dumps(document).encode(),
            tuple(self.news),
            saved_at,
            self.order["status"],
            self.order["date_paid_gmt"] is not None,
            bool(refunds) and self.left() == 0,
            frozenset(
                each["entry"]["tracking_number"] for each in self.parcels if each["end"] == "return_to_sender"
            ),
        )

    # The order here

    def arrive(self, post: Post, at: dt.datetime) -> None:
        self.under_way -= 1
        expected = self.expect(post, at)
        self.first_post_at = self.first_post_at or at
        sent = self.take(post.body, at)
        self.sent.update(sent)
        for email in {*expected, *sent}:
            verdict, row = expected.get(email, ("not", "what is not new"))
            if self.is_unsure:
                verdict, row = "may", "the clock was not known yet"
            self.world.told[row] += sent[email]
            if (verdict == "must" and sent[email] != 1) or sent[email] > (verdict != "not"):
                text = f"{' '.join(email)} {verdict} be told, but was {sent[email]} times"
                self.differ(row, f"{text}, {at:%d %H:%M:%S}")

    def take(self, body: bytes, at: dt.datetime) -> Counter[Email]:
        """Process a post as `shop_connections.process` does, and return the e-mails that leave."""
        world, connection = self.world, self.world.connection
        head = read_head(body)
        assert head is not None
        if not connection.has_address(head.address):
            return Counter()
        name, differences = self.find(body, at)
        world.seen[name].save(differences)
        if head.modified_at is not None:
            world.posts.append((name, at, head.modified_at))
        world.first_post_at.setdefault(name, at)
        sent: Counter[Email] = Counter()
        for change in differences.changes:
            is_back = change.parcel is not None and change.parcel.is_returned
            is_sent = change.notify and change.event in world.notify_on and not is_back
            if is_sent and connection.withheld(change.at) is None:
                sent[self.email_of(change)] += 1
                for parcel in change.details.get("parcels", ()):  # of the same save
                    sent["order.shipped", parcel["tracking_number"]] += 1
        return sent

    def find(self, body: bytes, at: dt.datetime, *, are_posts: bool = True) -> tuple[str, Differences]:
        """Return our name of the order, and how the body differs from it. A comparison has no arrival."""
        world, head = self.world, read_head(body)
        assert head is not None
        name, seen = world.find(head)
        clock = [(name, at, head.modified_at)] if are_posts and head.modified_at is not None else []
        offset = world.offset(*clock)
        # With three orders the third smallest difference is the largest, that of a late post maybe.
        has_few = len({order for order, _, _ in (*world.posts, *clock)}) < _FEW
        self.is_unsure |= has_few and abs(offset + world.skew) > 2 * MINUTE
        first_at = world.first_post_at.get(name)
        shop, here = world.connection, seen.here
        return name, find(body, here, shop, received_at=at, offset=offset, first_post_at=first_at)

    def email_of(self, change: Change) -> Email:
        amount = change.details.get("amount", "") if change.event == "order.part_refunded" else ""
        return change.event, change.parcel.tracking_number if change.parcel else str(amount)

    # The table

    def expect(self, post: Post, at: dt.datetime) -> Mapping[Email, tuple[Verdict, str]]:
        """Return which e-mails a post must and may send, by the table, and note what is known after it."""
        if post.saved_at is not None and self.newest is not None and post.saved_at < self.newest:
            return {}  # the newer state stays
        if not self.is_here:
            if post.status in ("pending", "failed", "internal"):
                return {}  # at the checkout, or a status that the connection ignores
            if post.status == "cancelled" and not post.is_paid and self.method == "stripe":
                return {}  # abandoned
        self.newest = post.saved_at or self.newest
        is_first, self.is_here = not self.is_here, True
        new = [each for each in post.news if each not in self.arrived]
        were_known = {(each.kind, each.key) for each in self.arrived}
        self.arrived.update(new)
        verdicts: dict[Email, tuple[Verdict, str]] = {}
        timed = {each: self.when(each, post, at, is_first=is_first) for each in new}
        paid = next((each for each in new if each.kind == "order.paid"), None)
        is_paid_told = False
        if paid is not None:
            is_paid_told = self.judge_payment(paid, post, timed, verdicts)
        refunds = [each for each in new if each.kind == "order.refund"]
        if refunds:
            self.judge_refunds(refunds, post, timed, verdicts, paid=paid, is_paid_told=is_paid_told)
        delivered = {each.key for each in new if each.kind == "order.delivered"}
        for each in new:
            verdict, row = timed[each]
            if each.kind == "order.placed" and post.status not in ("on-hold", "pending", "failed"):
                verdict, row = "not", "placed, and paid or cancelled since"
            elif each.kind == "order.confirmed" and (post.is_paid or post.status == "cancelled"):
                verdict, row = "not", "confirmed, and completed or cancelled since"
            elif each.kind == "order.completed" and post.is_all_refunded and paid is not None:
                verdict = "may" if verdict == "must" else verdict
            elif each.kind in ("order.shipped", "order.delivered"):
                if each.row == _AFTER_RETURN:  # of which we may not have heard
                    has_come_back = ("order.came_back", each.key) in were_known
                    verdict, row = "not" if has_come_back or verdict == "not" else "may", each.row
                elif each.key in post.returned or (each.kind == "order.shipped" and each.key in delivered):
                    verdict, row = "not", "a parcel that was delivered, or came back"
                elif post.status == "cancelled" and verdict == "must":
                    verdict, row = "may", "parcels of a cancelled order"
            if each.kind not in ("order.paid", "order.refund"):
                verdicts[each.kind, each.key] = verdict, row
        return {
            email: (verdict, row)
            for email, (verdict, row) in verdicts.items()
            if email[0] in self.world.notify_on and email[0] not in self.silent
        }

    def when(self, news: News, post: Post, at: dt.datetime, *, is_first: bool) -> tuple[Verdict, str]:
        """Return whether a change may be told at all: by when it was, and whether the order was known."""
        live_at = self.world.live_at
        if at < live_at:
            return "not", "the trial"
        if self.is_import and (self.first_post_at is None or at - self.first_post_at < HOUR):
            return "not", "import"
        saved_at = post.saved_at or at
        if not is_first:
            if news.at >= live_at:
                return "must", news.row
            if saved_at < live_at or (news.dated is not None and news.kind in _DATED):
                return "not", "before going live"
            return "not" if self.world.has_key else "may", "changed in the trial, post lost"
        if self.created_at >= live_at and at - self.created_at <= 30 * DAY:
            return "must", news.row
        if news.dated is not None:
            is_young = news.dated - self.created_at <= 30 * DAY
            if news.kind not in _DATED:
                # Some plug-ins say only the day, and in which zone, nobody. One day too many is told.
                edges = [live_at, self.created_at + 30 * DAY]
                if any(abs(edge - news.dated) < 36 * HOUR for edge in edges):
                    is_sure = live_at <= news.dated and is_young and not (self.world.skew or self.world.zone)
                    return "must" if is_sure else "may", "a first post: a parcel of the day of going live"
            if news.dated >= live_at:
                return ("must" if is_young else "not"), "a first post"
        return "not", "a first post"

    def judge_payment(
        self,
        paid: News,
        post: Post,
        timed: Mapping[News, tuple[Verdict, str]],
        verdicts: dict[Email, tuple[Verdict, str]],
    ) -> bool:
        """Judge the payment's e-mail, and return whether it is sent."""
        verdict, row = timed[paid]
        completed = next((each for each in timed if each.kind == "order.completed"), None)
        if post.is_all_refunded:
            verdict, row = "not", "paid and refunded in full in one save"
        elif completed is not None and completed.at - paid.at <= 2 * SECOND:
            is_told = "order.completed" in self.world.notify_on and timed[completed][0] == "must"
            if is_told and "order.completed" not in self.silent:
                verdict, row = "not", "paid and completed at once"
        verdicts["order.paid", ""] = verdict, row
        can_be = "order.paid" in self.world.notify_on and "order.paid" not in self.silent
        return verdict == "must" and can_be

    def judge_refunds(
        self,
        refunds: Sequence[News],
        post: Post,
        timed: Mapping[News, tuple[Verdict, str]],
        verdicts: dict[Email, tuple[Verdict, str]],
        *,
        paid: News | None,
        is_paid_told: bool,
    ) -> None:
        for number, refund in enumerate(refunds, start=1):
            verdict, row = timed[refund]
            is_last = number == len(refunds)
            if post.is_all_refunded and is_last:
                verdicts["order.refunded", ""] = verdict, row
                continue
            is_in_payment = is_paid_told and post.status != "cancelled"
            if paid is not None and (is_in_payment or post.is_all_refunded):
                verdict, row = "not", "paid and refunded in one save"
            verdicts["order.part_refunded", str(refund.amount)] = verdict, row

    def judge(self) -> None:
        """Compare what the shop told and what we told with what happened."""
        for (kind, key), count in self.sent.items():
            if count > 1 and kind != "order.refunded":  # it may have been deleted and made again
                self.differ("nobody twice", f"{kind} {key} was sent {count} times")

    def differ(self, row: str, text: str) -> None:
        world = self.world
        order = f"World({world.seed!r}), order {self.id}: {', '.join(self.acts)}"
        when = f"live {world.live_at:%d %H:%M:%S}, clock {world.skew}"
        world.differences.append(Difference(row, f"{text}\n    {order}\n    {when}"))


#: The events with their own date in the order. A parcel's day counts only in a first post.
_DATED = frozenset({"order.placed", "order.paid", "order.completed"})


def _links(address: str) -> dict[str, Any]:
    return {"self": [{"href": f"{address}/wp-json/wc/v3/orders/7"}]}


def write_oddly(document: Mapping[str, Any], chance: random.Random, *, is_known: bool) -> dict[str, Any]:
    """Return members of an order as some plug-in writes them. They mean the same."""
    odd: dict[str, Any] = {}
    for name in ("date_paid_gmt", "date_completed_gmt"):
        if document[name] is None and chance.random() < 0.3:
            odd[name] = chance.choice(["0000-00-00T00:00:00", "-0001-11-30T00:00:00", False, 0, ""])
    status = document["status"]
    written = [
        {"status": chance.choice([f" {status} ", status.upper(), f"wc-{status}"])},
        {"refunds": [each | {"total": _odd_amount(each["total"], chance)} for each in document["refunds"]]},
        {"refunds": {str(place): each for place, each in enumerate(document["refunds"])}},
        {"meta_data": [_odd_meta(entry, chance) for entry in document["meta_data"]]},
        {"id": float(document["id"]), "number": document["id"], "currency": document["currency"].lower()},
        {"_links": chance.choice([None, [], {"self": 7}])},
        {"total": f"{document['total']} €", "customer_id": "17" if document["customer_id"] else "0"},
    ]
    if is_known:
        written += [
            {name: chance.choice([None, False, "?"]) for name in ("total", "billing", "line_items")},
            {"date_created_gmt": "0000-00-00T00:00:00"},
        ]
    for members in chance.sample(written, k=chance.randint(1, 2)):
        odd |= members
    return odd


def _odd_amount(total: str, chance: random.Random) -> object:
    amount = total.lstrip("-")
    comma = amount.replace(".", ",")
    return chance.choice([f"--{amount}", f"-{comma}", f"-€{amount}", amount, -float(amount)])


def _odd_meta(entry: Mapping[str, Any], chance: random.Random) -> Mapping[str, Any]:
    value = entry["value"]
    if not isinstance(value, list):
        return entry
    places = {str(place): each for place, each in enumerate(value)}
    return {**entry, "value": chance.choice([json.dumps(value), places, json.dumps(places)])}


def run_worlds(seeds: Sequence[object]) -> tuple[list[Difference], Counter[str], int]:
    """Run a world for each seed. Return the differences, the e-mails by row, and the number of lives."""
    differences: list[Difference] = []
    told: Counter[str] = Counter()
    lives = 0
    for seed in seeds:
        world = World(seed)
        world.run()
        differences += world.differences
        told += world.told
        lives += len(world.lives)
    return differences, told, lives
