"""Customers, as threads, who place, pay, cancel and refund orders, and remember the answers.

Each change is sent under one Idempotency-Key until it is answered; a quarter of the payments come as events
of a payment service, which repeats its event until the order is paid.
"""

from __future__ import annotations

import dataclasses
import itertools
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
from tests.kit.shop import PAYMENT, Shop, payment_event

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
    The share `by_event` of payments comes as events, which need a consumer.
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
    ) -> None:
        self._shop, self.ports = shop, ports or [shop.port]
        self.acknowledged: list[Acknowledged] = []
        self.wrong: list[str] = []
        self.slow_answers: list[float] = []
        self.retries = 0
        self._pause = threads / rate
        self._by_event = by_event
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

    def first_after(self, moment: float) -> Acknowledged | None:
        """Return the first change whose request was sent after this moment."""
        later = [one for one in list(self.acknowledged) if one.began > moment]
        return min(later, key=lambda one: one.ended, default=None)

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
                self._pay_by_event(session, order)
                continue
            action, amount = ("refund", {"amount": 700}) if step == "refund_some" else (step, {})
            after = self._ask(session, "POST", f"/orders/{order}/{action}", amount or None, 200)
            refund = "part_refunded" if step == "refund_some" else "refunded"
            self._note(after, EVENTS[refund if action == "refund" else action])

    def _pay_by_event(self, session: requests.Session, order: str) -> None:
        event: Any = payment_event(order)
        told_at = 0.0
        while not self._give_up.is_set():
            if time.monotonic() - told_at > 4:
                try:
                    with redis.Redis.from_url(self._shop.valkey.url, socket_timeout=2) as client:
                        client.xadd(PAYMENT, event)
                    told_at = time.monotonic()
                except redis.RedisError:
                    self.retries += 1
            seen = self._ask(session, "GET", f"/orders/{order}", None, 200)
            if seen["status"] == "paid":
                self._now.asked = told_at
                self._note(seen, "order.paid")
                return
            self._give_up.wait(0.3)
        raise _Unanswered(f"order {order} was never paid by its event")

    def _ask(
        self, session: requests.Session, method: str, path: str, body: dict[str, Any] | None, wanted: int
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
                if answer.status_code == wanted:
                    self.slow_answers.append(time.monotonic() - began)
                    found: dict[str, Any] = answer.json()
                    return found
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
