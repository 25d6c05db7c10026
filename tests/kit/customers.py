"""Customers, as threads, who place, pay, cancel and refund orders, and remember the answers.

Each change is sent under one Idempotency-Key until it is answered; a quarter of the payments come as events
of a payment service: on a stream, where it repeats its event until the order is paid, or over HTTP, alone or
in a list. Some orders can be another shop's, which sends all of its changes so.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any, Self

import redis
import requests

from local.machine import HOST
from tests.kit import waiting
from tests.kit.shop import Shop, other_shops_event, payment_event

#: The event that an action causes, by the answer's status.
EVENTS = {
    "pay": "order.paid",
    "complete": "order.completed",
    "cancel": "order.cancelled",
    "refunded": "order.refunded",
    "part_refunded": "order.part_refunded",
}
PLANS = (
    ["pay", "complete"],
    ["pay", "cancel", "refund"],
    ["pay", "refund_some", "refund"],
    ["cancel"],
    ["pay", "complete", "refund_some"],
)
#: The ways of an event: a stream, alone over HTTP, and in a list over HTTP.
WAYS = ("stream", "http", "list")
PATIENCE = 10.0
#: A part of some customers' addresses, to which a fault lets no mail through.
POISON, POISONED = "poison", 0.05


@dataclasses.dataclass(frozen=True)
class Acknowledged:
    """One acknowledged change: the order's version and status after it, and when it was asked and answered.

    Times are seconds of the monotonic clock.
    """

    order: str
    event: str
    version: int
    status: str
    began: float = 0.0
    ended: float = 0.0


class Customers:
    """`with Customers(shop, rate=12) as customers:` makes so many changes a second in all.

    At the end, each customer finishes the current order. Requests go to `ports`, by default to the shop's,
    which may be replaced meanwhile.
    The share `by_event` of payments comes as events, which need a consumer. The share `of_other_shop` of
    orders is another shop's, which needs its setting, too.
    """

    def __init__(
        self,
        shop: Shop,
        *,
        rate: float,
        seed: int = 0,
        threads: int = 6,
        ports: Sequence[int] = (),
        by_event: float = 0.25,
        of_other_shop: float = 0.0,
    ) -> None:
        self._shop, self.ports = shop, ports or [shop.port]
        self.acknowledged: list[Acknowledged] = []
        #: The other shop's paid orders, and the ids of all events that it sent.
        self.other_shops_orders: list[str] = []
        self.other_shops_events: set[str] = set()
        self.wrong: list[str] = []
        self.slow_answers: list[float] = []
        self.retries = 0
        self._pause = threads / rate
        self._by_event = by_event
        self._of_other_shop = of_other_shop
        self._now = threading.local()  # when each customer sent its last request
        self._stop = threading.Event()
        self._give_up = threading.Event()
        self._threads = [
            threading.Thread(target=self._live, args=(random.Random(seed * 1000 + n),), daemon=True)
            for n in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the current orders. A request that is unanswered after `waiting.PATIENCE` is wrong."""
        self._stop.set()
        deadline = time.monotonic() + waiting.PATIENCE
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        self._give_up.set()
        for thread in self._threads:
            thread.join(PATIENCE + 5)
            if thread.is_alive():
                self.wrong.append("a customer is still waiting for an answer")

    def _live(self, chance: random.Random) -> None:
        with requests.Session() as session:
            session.headers.update(self._shop.session.headers)
            while not self._stop.is_set():
                try:
                    if chance.random() < self._of_other_shop:
                        self._buy_elsewhere(session, chance)
                    else:
                        self._buy(session, chance)
                except _Unanswered as error:
                    self.wrong.append(str(error))
                    return

    def _buy(self, session: requests.Session, chance: random.Random) -> None:
        body = {
            "user_id": str(uuid.uuid4()),
            "email": f"{POISON if chance.random() < POISONED else ''}{uuid.uuid4().hex}@example.com",
            "total_amount": 4200,
        }
        placed = self._ask(session, "POST", "/orders", body, 201)
        order = placed["id"]
        self._note(placed, "order.placed")
        for step in chance.choice(PLANS):
            self._stop.wait(self._pause * chance.uniform(0.5, 1.5))
            if step == "pay" and chance.random() < self._by_event:
                seen = self._tell(session, order, [payment_event(order)], way=chance.choice(WAYS))
                self._note(seen, "order.paid")
                continue
            action, amount = ("refund", {"amount": 700}) if step == "refund_some" else (step, {})
            after = self._ask(session, "POST", f"/orders/{order}/{action}", amount or None, 200)
            refund = "part_refunded" if step == "refund_some" else "refunded"
            self._note(after, EVENTS[refund if action == "refund" else action])

    def _buy_elsewhere(self, session: requests.Session, chance: random.Random) -> None:
        """Place and pay at the other shop: each event by a way of its own, or both at once."""
        order, email = str(uuid.uuid4()), f"{uuid.uuid4().hex}@example.com"
        events = [
            other_shops_event(change, order, email=email, sequence=sequence)
            for sequence, change in enumerate(("placed", "paid"), start=1)
        ]
        self.other_shops_events |= {json.loads(event["value"])["eventId"] for event in events}
        if chance.random() < 0.5:
            self._tell(session, order, events, way=chance.choice(WAYS))
        else:
            self._tell(session, order, events[:1], way=chance.choice(WAYS), wanted="pending")
            self._stop.wait(self._pause * chance.uniform(0.5, 1.5))
            self._tell(session, order, events[1:], way=chance.choice(WAYS))
        self.other_shops_orders.append(order)

    def _tell(
        self,
        session: requests.Session,
        order: str,
        events: list[dict[str, str]],
        *,
        way: str,
        wanted: str = "paid",
    ) -> dict[str, Any]:
        """Send events about an order until it is `wanted`, and return it.

        What HTTP has acknowledged must be done at once. A list also repeats its events, and has one that is
        refused.
        """
        if way == "stream":
            return self._tell_stream(session, order, events, wanted)
        envelopes = [json.loads(event["value"]) for event in events]
        if way == "list":
            stranger = json.loads(payment_event(str(uuid.uuid4()))["value"])
            answer = self._ask(session, "POST", "/events", [*envelopes, stranger, *envelopes], 200)
            results = [result["result"] for result in answer["results"]]
            again = ["repeated"] * len(envelopes)
            if results[len(envelopes) :] != ["refused", *again] or "refused" in results[: len(envelopes)]:
                raise _Unanswered(f"a list of events about {order} was answered {results}")
        else:
            for envelope in envelopes:
                self._ask(session, "POST", "/events", envelope, 200)
        asked = self._now.asked
        seen = self._ask(session, "GET", f"/orders/{order}", None, 200)
        self._now.asked = asked
        if seen["status"] != wanted:
            raise _Unanswered(f"order {order} is {seen['status']} after its event was acknowledged")
        return seen

    def _tell_stream(
        self, session: requests.Session, order: str, events: list[dict[str, str]], wanted: str
    ) -> dict[str, Any]:
        told_at = 0.0
        while not self._give_up.is_set():
            if time.monotonic() - told_at > 4:
                try:
                    with redis.Redis.from_url(self._shop.valkey.url, socket_timeout=2) as client:
                        for event in events:
                            fields: Any = event
                            client.xadd(json.loads(event["value"])["eventType"], fields)
                    told_at = time.monotonic()
                except redis.RedisError:
                    self.retries += 1
            seen = self._ask(session, "GET", f"/orders/{order}", None, 200, or_status=404)
            if seen.get("status") == wanted:
                self._now.asked = told_at
                return seen
            self._give_up.wait(0.3)
        raise _Unanswered(f"order {order} was never {wanted} by its events")

    def _ask(
        self, session: requests.Session, method: str, path: str, body: Any, wanted: int, or_status: int = 0
    ) -> dict[str, Any]:
        """Repeat a request until it is answered. Record a final refusal that is not allowed."""
        headers = {"Idempotency-Key": str(uuid.uuid4())} if method == "POST" else {}
        began, last, turn = time.monotonic(), "", itertools.count(random.randrange(100))
        while not self._give_up.is_set():
            ports = self.ports
            url = f"http://{HOST}:{ports[next(turn) % len(ports)]}/api/v1{path}"
            self._now.asked = time.monotonic()
            try:
                answer = session.request(method, url, json=body, headers=headers, timeout=PATIENCE)
            except requests.RequestException as error:
                last = repr(error)
            else:
                if answer.status_code in (wanted, or_status):
                    self.slow_answers.append(time.monotonic() - began)
                    document: dict[str, Any] = answer.json()
                    return document
                last = f"{answer.status_code} {answer.text[:300]}"
                later = answer.status_code >= 500 or "idempotency-in-progress" in answer.text
                if not later:
                    raise _Unanswered(f"{method} {path}: {last}")
            self.retries += 1
            self._give_up.wait(0.3)
        raise _Unanswered(f"{method} {path} was never answered; the last was {last}")

    def _note(self, order: dict[str, Any], event: str) -> None:
        times = self._now.asked, time.monotonic()
        self.acknowledged.append(Acknowledged(order["id"], event, order["version"], order["status"], *times))


class Payments:
    """`with Payments(shop, rate=20, most=200):` pays so many orders a second, which it placed before."""

    def __init__(self, shop: Shop, *, rate: float, most: int) -> None:
        self.orders = [shop.place(f"p{n}@example.com") for n in range(most)]
        self.shop, self.rate, self.paid = shop, rate, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for order in self.orders:
            if self._stop.wait(1 / self.rate):
                return
            self.shop.pay(order)
            self.paid += 1

    def __enter__(self) -> Payments:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class _Unanswered(Exception):
    """A change that was not acknowledged, or was refused although it is correct."""
