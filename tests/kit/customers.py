"""Customers who place and pay orders. They repeat each request with its key until it is acknowledged."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any, NamedTuple

import requests

from tests.kit.shop import Shop

#: The pause between two requests of a customer.
PAUSE_SECONDS = 0.05
#: Answers after which a customer repeats the request: the database is away, or the first request still runs.
AGAIN = (503, 409)
PATIENCE = 120.0


class Acknowledged(NamedTuple):
    """A change with a 2xx answer: when its last request was sent, and when the answer came."""

    began: float
    ended: float


class Customers:
    """`with Customers(shop, count=4) as customers:` runs them. At its end, they finish their orders."""

    def __init__(self, shop: Shop, *, count: int) -> None:
        self._shop = shop
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._shop_on, args=(n,)) for n in range(count)]
        self.acknowledged: list[Acknowledged] = []
        self.placed: set[str] = set()
        self.paid: set[str] = set()
        self.repeated = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Customers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def first_after(self, moment: float) -> Acknowledged | None:
        """Return the first change whose request was sent after this moment."""
        later = [one for one in list(self.acknowledged) if one.began > moment]
        return min(later, key=lambda one: one.ended, default=None)

    def _shop_on(self, number: int) -> None:
        with requests.Session() as session:
            session.headers.update(self._shop.session.headers)
            while not self._stopped.is_set():
                body = {"user_id": str(uuid.uuid4()), "email": f"c{number}@example.com", "total_amount": 4200}
                placed = self._acknowledged(session, "/orders", json=body)
                if placed is None:
                    continue
                order = placed["id"]
                self.placed.add(order)
                if self._acknowledged(session, f"/orders/{order}/pay") is not None:
                    self.paid.add(order)

    def _acknowledged(self, session: requests.Session, path: str, **options: Any) -> Any:
        """Send a request until it is acknowledged. Return its answer, or None after a wrong answer."""
        url = f"http://127.0.0.1:{self._shop.port}/api/v1{path}"
        key = {"Idempotency-Key": str(uuid.uuid4())}
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
            began = time.monotonic()
            try:
                answer = session.post(url, headers=key, timeout=30, **options)
            except requests.RequestException:
                self.repeated += 1
                continue
            if answer.ok:
                self.acknowledged.append(Acknowledged(began, time.monotonic()))
                return answer.json()
            if answer.status_code not in AGAIN:
                self.wrong.append(f"{path}: {answer.status_code} {answer.text}")
                return None
            self.repeated += 1
        self.wrong.append(f"{path}: not acknowledged in {PATIENCE:g} s")
        return None
