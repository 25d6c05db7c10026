"""A shop whose web process reads from two standbys, and readers who notice a wrong answer."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psycopg
import requests

from local.machine import HOST, free_port
from tests.kit.failover import Node
from tests.kit.paired import PairedShop
from tests.kit.servers import children, main_process
from tests.kit.waiting import until

PASSWORD = "not-secret-drills-only"
#: A file must have each order that was acknowledged so long before: the limit and a second.
OLDEST_SECONDS = 6.5
SCANS = "SELECT sum(seq_scan + idx_scan)::int FROM pg_stat_user_tables WHERE relname = 'orders'"
#: After this time, a standby's counters show all that it has read.
FLUSH_SECONDS = 12.0
ORDERS = """
    INSERT INTO orders (id, source, status, version, user_id, email, name, locale, reference, items,
        total_amount, refunded_amount, currency, correlation_id, created_at, updated_at)
    SELECT uuidv7(), '', 'completed', 1, gen_random_uuid(), 'User' || n % 50 || '@example.com', '', 'en',
        'S-' || n, '[]', 1, 0, 'USD', 'c' || n, at, at
    FROM generate_series(1, {count}) AS n, LATERAL (SELECT now() - n * interval '1 second' AS at) AS made
"""


class ReplicatedShop(PairedShop):
    """A shop with one primary and two standbys, for none of which a commit waits.

    `with_replicas=False` starts the standbys, but no process reads from them. With `fails_over`, the first
    standby may take over from a dead primary.
    """

    def __init__(self, *, with_replicas: bool = True, fails_over: bool = False, **settings: str) -> None:
        super().__init__(durable_valkey=False, **settings)
        self.other = Node(data=self.folder / "postgres-c", port=free_port())
        primary, standby = self.pair.primary.port, self.pair.standby.port
        if not fails_over:  # otherwise, a standby that is promoted by mistake would take writes, too
            self.settings["DATABASE_URL"] = f"postgresql://orderpost@{HOST}:{primary}/orderpost"
        self.settings["METRICS_TOKEN"] = ""
        if with_replicas:
            servers = f"{HOST}:{standby},{HOST}:{self.other.port}"
            self.settings["REPLICA_DATABASE_URL"] = f"postgresql://orderpost@{servers}/orderpost"

    def __enter__(self) -> Self:
        super().__enter__()
        self.pair.primary.ask("ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
        self.other.follow(self.pair.primary)
        self.start_standby(self.other)
        return self

    def _tidy(self) -> None:
        self.other.stop()
        self.other.remove()
        super()._tidy()

    @property
    def standbys(self) -> list[Node]:
        return [self.pair.standby, self.other]

    def start_standby(self, node: Node) -> None:
        node.start(log=self.folder / f"postgres-{node.port}.log")

    def until_replica_is_read(self) -> None:
        self.until(lambda: "replica is read" in self.log("web"), "web reads a replica", seconds=60)

    def fill(self, count: int) -> None:
        """Insert orders and waiting e-mails, and let the replicas have them."""
        self.insert_mails(count)
        self.pair.primary.ask(ORDERS.format(count=count), "ANALYZE")
        for node in self.standbys:
            until_caught_up(self, node)

    def place_named(self, reference: str) -> str:
        body = {"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 4200}
        answer = self.call("POST", "/orders", json=body | {"reference": reference})
        assert answer.status_code == 201, answer.text
        order: str = answer.json()["id"]
        return order

    @functools.cached_property
    def admin(self) -> requests.Session:
        """Return a session of a superuser."""
        self.manage(
            *("createsuperuser", "--noinput", "--username", "ann", "--email", "ann@example.com"),
            DJANGO_SUPERUSER_PASSWORD=PASSWORD,
        )
        session = requests.Session()
        url = f"http://{HOST}:{self.port}/admin/login/"
        session.get(url, timeout=30)
        form = {"username": "ann", "password": PASSWORD, "csrfmiddlewaretoken": session.cookies["csrftoken"]}
        answer = session.post(url, data=form, headers={"Referer": url}, timeout=30)
        assert answer.url.endswith("/profile/") or answer.history, answer.url
        return session


@dataclasses.dataclass
class Counts:
    """How many requests were answered, and which were refused or wrong."""

    asked: int = 0
    refused: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    slowest: float = 0.0


class Readers:
    """Threads that place orders, look them up at once, open pages and files of the admin, and scrape."""

    def __init__(self, shop: ReplicatedShop) -> None:
        self.shop = shop
        self.counts = Counts()
        self._admin = shop.admin
        self._placed: list[tuple[str, float]] = []  # ids, and when they were acknowledged
        self._lock = threading.Lock()
        self._ended = threading.Event()
        jobs = (self._place, self._open_pages, self._download, self._scrape)
        self._threads = [threading.Thread(target=self._repeat, args=[job]) for job in jobs]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def until_read(self, *standbys: Node) -> None:
        """Wait until one of these standbys reads another page."""
        before = [scans(node) for node in standbys]
        self.shop.until(
            lambda: any(scans(node) > first for node, first in zip(standbys, before, strict=True)),
            "a replica answers a page",
            seconds=60,
        )

    def _repeat(self, job: Callable[[requests.Session], None]) -> None:
        session = requests.Session()
        session.headers.update(self.shop.session.headers)
        while not self._ended.is_set():
            job(session)
            time.sleep(0.05)

    def _ask(self, session: requests.Session, method: str, path: str, **options: Any) -> requests.Response:
        url = path if path.startswith("http") else f"http://{HOST}:{self.shop.port}{path}"
        began = time.monotonic()
        try:
            answer = session.request(method, url, timeout=30, **options)
            bad = "" if answer.status_code in (200, 201) else f"{answer.status_code} {answer.text[:300]}"
        except requests.RequestException as error:
            bad, answer = str(error), requests.Response()
        with self._lock:
            self.counts.asked += 1
            self.counts.slowest = max(self.counts.slowest, time.monotonic() - began)
            if bad:
                self.counts.refused.append(f"{method} {path}: {bad}")
        return answer

    def _blame(self, text: str) -> None:
        with self._lock:
            self.counts.wrong.append(text)

    def _place(self, session: requests.Session) -> None:
        """Place an order, and look its reference up, as after a lost answer."""
        reference = uuid.uuid4().hex
        body = {
            "user_id": str(uuid.uuid4()),
            "email": f"{reference}@example.com",
            "total_amount": 4200,
            "reference": reference,
        }
        placed = self._ask(session, "POST", "/api/v1/orders", json=body)
        if placed.status_code != 201:
            return
        order = placed.json()["id"]
        for query in ({"reference": reference}, {"email": body["email"]}, {"user_id": body["user_id"]}):
            answer = self._ask(session, "GET", "/api/v1/orders", params=query)
            if answer.status_code == 200 and [row["id"] for row in answer.json()["results"]] != [order]:
                self._blame(f"an order was not found by {query}")
        self._ask(session, "GET", f"/api/v1/orders/{order}")
        with self._lock:
            self._placed.append((order, time.monotonic()))

    def _open_pages(self, session: requests.Session) -> None:
        for path in ("", "orders/order/", "orders/order/?p=2"):
            answer = self._ask(self._admin, "GET", f"/admin/{path}")
            if answer.status_code == 200 and "/login/" in answer.url:
                self._blame("the session was lost")

    def _download(self, session: requests.Session) -> None:
        """Expect each order of more than `OLDEST_SECONDS` ago once in the file."""
        with self._lock:
            wanted = {id for id, at in self._placed if at < time.monotonic() - OLDEST_SECONDS}
        answer = self._ask(self._admin, "GET", "/admin/orders/order/csv/")
        if answer.status_code != 200:
            return
        ids = [row["id"] for row in csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig")))]
        if len(ids) != len(set(ids)):
            self._blame("a file had an order twice")
        if lacking := wanted - set(ids):
            self._blame(f"a file lacked {len(lacking)} orders of more than {OLDEST_SECONDS} s ago")

    def _scrape(self, session: requests.Session) -> None:
        answer = self._ask(session, "GET", "/metrics")
        if answer.status_code == 200 and "orderpost_database_up 1.0" not in answer.text:
            with self._lock:
                self.counts.refused.append("a scrape had no numbers of the database")


class Pace:
    """A thread that calls `act` at a fixed rate within the block."""

    def __init__(self, rate: float, act: Callable[[], object]) -> None:
        self._rate, self._act = rate, act
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        for number in itertools.count():
            if self._ended.wait(max(0.0, began + number / self._rate - time.monotonic())):
                return
            self._act()


def cpu_seconds(node: Node) -> float:
    """Return the CPU seconds of a server, its backends and those that have exited."""
    main = main_process(node)
    ticks = sum(_ticks(pid) for pid in (main, *children(main)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has exited
        return 0
    own = int(fields[11]) + int(fields[12])
    return own + int(fields[13]) + int(fields[14])  # and of exited children


def scans(node: Node) -> int:
    """Return how often a server that answers has read orders. A killed server has read none."""
    try:
        ((count,),) = node.ask(SCANS)
    except psycopg.OperationalError:
        return 0
    return int(count)


def until_caught_up(shop: ReplicatedShop, node: Node) -> None:
    ((position,),) = shop.pair.primary.ask("SELECT pg_current_wal_lsn()")
    until(
        lambda: node.ask(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") == [(True,)],
        "the standby has replayed all",
    )
