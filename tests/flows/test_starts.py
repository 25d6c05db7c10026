"""Each role starts before the servers it needs: it waits, says so once, and then does its work."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from local.machine import free_port
from tests.kit.proxy import Proxy
from tests.kit.roles import OPTIONAL, RUNNING
from tests.kit.shop import PAYMENT, Shop, payment_event
from tests.kit.waiting import PATIENCE
from tests.kit.words import health

pytestmark = pytest.mark.flow

#: Web answers 503 instead of waiting.
WAITING_FOR_POSTGRES = [role for role in [*RUNNING, *sorted(OPTIONAL)] if role != "web"]
WAITING_FOR_VALKEY = {
    "worker": "waiting for Valkey",
    "beat": "waiting for Valkey",
    "relay": "broker away, events wait",
    "consumer": "broker away, consumer waits",
}
#: A process that has begun its second try settles it before it ends.
TRIES = 2


class Starts:
    """Processes that reach a server through a proxy each, which forwards only when told so."""

    def __init__(self, shop: Shop, *, setting: str, url: str, port: int, refuses: bool) -> None:
        self.shop, self._setting, self._url, self._port = shop, setting, url, port
        self._refuses = refuses
        self._proxies: dict[str, Proxy] = {}
        self._later: dict[str, int] = {}
        self._stack = ExitStack()

    def start(self, *roles: str) -> None:
        for role in roles:
            port = self._later[role] = self._later.get(role) or free_port()
            if not self._refuses:
                self._listen(role).drop()
            separator = "&" if "?" in self._url else "?"
            url = self._url.replace(f":{self._port}/", f":{port}/")
            if self._setting == "DATABASE_URL":
                url += f"{separator}application_name={role}&connect_timeout=2"
            settings: dict[str, Any] = {self._setting: url}
            self.shop.start(role, wait=False, **settings)

    def _listen(self, role: str) -> Proxy:
        if role not in self._proxies:
            proxy = Proxy(port=self._port, listen=self._later[role])
            self._proxies[role] = self._stack.enter_context(proxy)
        return self._proxies[role]

    def have_tried(self, *roles: str) -> bool:
        """Tell whether each has begun its second try. A port that refuses counts no tries."""
        tried = self._refuses or all(self._proxies[role].accepted >= TRIES for role in roles)
        return tried and all(warnings(self.shop, role) for role in roles)

    def answer(self) -> None:
        """Let the server answer."""
        for role in self._later:
            self._listen(role).forward()

    def __enter__(self) -> Starts:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def warnings(shop: Shop, role: str) -> list[str]:
    """Return the events of a process's warnings and errors, without those of Kafka, which does not run."""
    lines = [json.loads(line) for line in shop.log(role).splitlines() if line.startswith("{")]
    return [
        line["event"]
        for line in lines
        if line["level"] not in ("debug", "info")
        and line["logger"] != "confluent_kafka"
        and "changes are not seen" not in line["event"]
    ]


def stop(shop: Shop, *roles: str) -> dict[str, tuple[int, list[str]]]:
    """Send SIGTERM to processes. Return the exit status and the warnings of each, and delete its log."""
    for role in roles:
        shop.processes[role].terminate()
    ends = {}
    for role in roles:
        code = shop.processes.pop(role).wait(PATIENCE)
        ends[role] = code, warnings(shop, role)
        (shop.folder / f"{role}.log").unlink()
    return ends


@pytest.mark.parametrize("refuses", [False, pytest.param(True, marks=pytest.mark.drill)])
def test_each_role_waits_for_postgres_says_so_once_and_goes_on(refuses, monkeypatch):
    with Shop(KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{free_port()}") as shop:
        monkeypatch.setenv("HEALTH_DIR", str(shop.folder / "health"))
        url, port = shop.postgres.url, shop.postgres.port
        with Starts(shop, setting="DATABASE_URL", url=url, port=port, refuses=refuses) as starts:
            roles = WAITING_FOR_POSTGRES
            starts.start("web", *roles)
            shop.until(lambda: starts.have_tried(*roles), "each has tried twice")
            no_heartbeat = ["no heartbeat: the database does not answer"]
            shop.until(lambda: warnings(shop, "web") == no_heartbeat, "web says so, too")
            shop.until(lambda: shop.web_answers(), "web does not wait")
            assert health.begun() == sorted(["web", *roles]) and health.main([]) == 0
            line = ["waiting for PostgreSQL"]
            assert stop(shop, *roles) == dict.fromkeys(roles, (0, line))
            starts.start(*roles)
            shop.until(lambda: all(warnings(shop, role) == line for role in roles), "they wait again")
            starts.answer()
            sessions = "SELECT DISTINCT application_name FROM pg_stat_activity"
            shop.until(
                lambda: {name for (name,) in shop.query(sessions)} >= {"web", *roles}, "each is connected"
            )
            shop.until(lambda: "ready." in shop.log("worker"), "the worker is ready")
            shop.pay(shop.place())
            shop.until(lambda: shop.all_sent(1), "the e-mail is sent")
            shop.until(shop.all_published, "the relay publishes")
            assert {role: shop.processes[role].poll() for role in roles} == dict.fromkeys(roles)


@pytest.mark.parametrize("refuses", [False, pytest.param(True, marks=pytest.mark.drill)])
def test_only_what_needs_valkey_waits_for_it_and_says_so_once(refuses, monkeypatch):
    with Shop() as shop:
        monkeypatch.setenv("HEALTH_DIR", str(shop.folder / "health"))
        url, port = shop.valkey.url, shop.valkey.port
        with Starts(shop, setting="REDIS_URL", url=url, port=port, refuses=refuses) as starts:
            roles = [*WAITING_FOR_VALKEY]
            starts.start(*RUNNING)
            shop.until(lambda: shop.web_answers(), "web does not wait")
            order = shop.place()
            shop.pay(shop.place())
            shop.until(lambda: shop.all_sent(1), "the standby sends")
            made = "SELECT 1 FROM heartbeats WHERE name = 'partitions'"
            shop.until(lambda: shop.query(made), "partitions are made")
            shop.until(lambda: starts.have_tried(*roles), "each has tried twice")
            assert health.begun() == sorted(RUNNING) and health.main([]) == 0
            expected = {role: (0, [event]) for role, event in WAITING_FOR_VALKEY.items()}
            assert stop(shop, *roles) == expected
            starts.start(*roles)
            shop.until(lambda: all(warnings(shop, role) for role in roles), "they wait again")
            starts.answer()
            shop.until(lambda: "ready." in shop.log("worker"), "the worker is ready")
            with redis.Redis.from_url(url) as broker:
                broker.xadd(PAYMENT, payment_event(order))
            shop.until(lambda: shop.all_sent(2), "the consumer pays the other order")
            shop.until(shop.all_published, "the relay publishes")
            assert {role: shop.processes[role].poll() for role in RUNNING} == dict.fromkeys(RUNNING)


@pytest.mark.drill
def test_a_part_that_fails_starts_again_and_the_others_work_meanwhile():
    with Shop() as shop:
        # The app's role may not make partitions: that part says so and ends.
        shop.query("CREATE ROLE stranger LOGIN")
        shop.query("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO stranger")
        stranger = shop.postgres.url.replace("orderpost@", "stranger@", 1)
        shop.start("web", "background", PARTITION_DATABASE_URL=stranger)
        again = "a part of the background process starts again"
        shop.until(lambda: shop.log("background").count(again) >= 3, "the part has failed three times")
        order = shop.place()
        with redis.Redis.from_url(shop.valkey.url) as client:
            client.xadd(PAYMENT, payment_event(order))
        shop.until(lambda: shop.all_sent(1), "the consumer and the standby work")
        shop.until(shop.all_published, "the relay works")
        shop.query("ALTER ROLE stranger SUPERUSER")
        made = "SELECT count(*) FROM heartbeats WHERE name = 'partitions'"
        shop.until(lambda: shop.query(made) == [(1,)], "the part works once it can")
        assert shop.terminate("background", seconds=15)
