"""The web process as it ships: what a slow, rude or interrupted request does to it and to the others."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from config.roles import commands
from config.web import THREADS
from local.machine import HOST, free_port
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE
from tests.kit.words import health

pytestmark = pytest.mark.flow


@pytest.fixture
def shop(shared_shop: Shop) -> Shop:
    return shared_shop


@contextmanager
def payments_that_wait(shop: Shop, pool: ThreadPoolExecutor, count: int) -> Iterator[list[Future[int]]]:
    """Hold the rows of orders; payments of them wait until the end of the block."""
    orders = [shop.place() for _ in range(count)]

    def pay(order: str) -> int:
        return requests.post(
            f"http://{HOST}:{shop.port}/api/v1/orders/{order}/pay",
            headers={"Authorization": shop.session.headers["Authorization"]},
            timeout=PATIENCE,
        ).status_code

    with psycopg.connect(shop.database_url) as holder:
        holder.execute("SELECT id FROM orders FOR UPDATE")
        answers = [pool.submit(pay, order) for order in orders]
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        shop.until(lambda: shop.query(waits)[0][0] >= count, "the payments wait for their orders")
        yield answers
        holder.rollback()


def workers(shop: Shop, name: str = "web") -> set[int]:
    server = shop.processes[name].pid
    return set(map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split()))


def test_a_request_is_answered_while_all_slots_but_one_wait_for_the_database(shop: Shop) -> None:
    with ThreadPoolExecutor(THREADS) as pool, payments_that_wait(shop, pool, THREADS - 1) as answers:
        assert shop.call("GET", "/orders").status_code == 200
        assert not any(answer.done() for answer in answers)
    assert [answer.result() for answer in answers] == [200] * (THREADS - 1)


def test_a_killed_worker_is_replaced_and_its_numbers_stay(shop: Shop) -> None:
    shop.place()
    before = workers(shop)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    shop.until(lambda: (now := workers(shop)) and not now & before, "another worker runs")
    shop.until(lambda: shop.web_answers(), "it answers")
    shop.place()


def expire(folder: Path) -> None:
    """Let a minute pass for the probe: each file's deadline is over, until its worker writes again."""
    past = time.monotonic() - health.WITHIN_SECONDS
    for file in folder.glob("web.*"):
        file.write_text(f"{past + 1} {past} 2\n")


def test_the_probe_sees_each_worker_and_no_failure_while_one_is_replaced(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEALTH_DIR", str(tmp_path))
    shop.spawn("web:2", commands(host=HOST, port=free_port(), processes=2)["web"], HEALTH_DIR=str(tmp_path))

    def is_healthy() -> bool:
        return health.main([]) == 0

    try:
        shop.until(is_healthy, "both workers have begun")
        killed = min(workers(shop, "web:2"))
        os.kill(killed, signal.SIGKILL)
        shop.until(lambda: killed not in workers(shop, "web:2"), "one worker is dead")
        assert is_healthy()
        shop.until(lambda: len(workers(shop, "web:2")) == 2, "another worker runs")
        expire(tmp_path)
        shop.until(is_healthy, "the successor has taken its place")
        frozen = max(workers(shop, "web:2"))
        os.kill(frozen, signal.SIGSTOP)
        expire(tmp_path)
        shop.until(lambda: len(health.describe_problems("web").splitlines()) == 1, "the other worker beats")
        assert "its loop hangs" in health.describe_problems("web") and not is_healthy()
        os.kill(frozen, signal.SIGCONT)
        shop.until(is_healthy, "it beats again")
        files = {int(file.name.split(".")[1]) for file in tmp_path.glob("web.*")}
        assert files == workers(shop, "web:2")
    finally:
        shop.kill("web:2")


def test_a_head_has_no_body_and_a_body_in_chunks_is_refused(shop: Shop) -> None:
    head = shop.call("HEAD", "/orders")
    assert head.status_code == 200 and head.content == b""
    chunks = iter([b'{"user_id": "0b9e7c1a-52a8', b'-4d0e-9a53-6a1f6f0f7a11"}'])
    headers = {"Content-Type": "application/json"}
    assert shop.call("POST", "/orders", data=chunks, headers=headers).status_code == 411


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("POST /api/v1/orders HTTP/1.1", ["Content-Length: 5", "Content-Length: 6"], "400"),
        ("GET /healthz HTTP/1.1", ["X: " + "x" * 500_000], "431"),
        ("NONSENSE", [], "400"),
    ],
)
def test_a_malformed_or_endless_head_is_refused(
    shop: Shop, request_line: str, headers: list[str], status: str
) -> None:
    with socket.create_connection((HOST, shop.port), timeout=PATIENCE) as connection:
        text = "\r\n".join([request_line, "Host: localhost", *headers, "", "0\r\n\r\n"])
        connection.sendall(text.encode())
        first = connection.recv(4096).decode()
    assert re.match(rf"HTTP/1.1 {status}\b", first), first[:200]


def post(shop: Shop, path: str, body: object, headers: list[tuple[str, bytes]]) -> tuple[int, dict[str, Any]]:
    """Send a request with its headers as they are, also twice or in any bytes."""
    connection = HTTPConnection(HOST, shop.port, timeout=PATIENCE)
    connection.putrequest("POST", f"/api/v1{path}")
    raw = json.dumps(body).encode()
    own = [
        ("Authorization", str(shop.session.headers["Authorization"]).encode()),
        ("Content-Type", b"application/json"),
        ("Content-Length", str(len(raw)).encode()),
    ]
    for name, value in own + headers:
        connection.putheader(name, value)
    connection.endheaders(raw)
    with closing(connection), connection.getresponse() as answer:
        return answer.status, json.loads(answer.read())


def test_a_key_that_is_sent_twice_in_a_request_opens_one_order(shop: Shop) -> None:
    body = {"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 100}
    key = ("Idempotency-Key", str(uuid.uuid4()).encode())
    answers = [post(shop, "/orders", body, headers) for headers in ([key, key], [key], [key, key])]
    assert [status for status, _ in answers] == [201] * 3
    assert len({answer["id"] for _, answer in answers}) == 1


def test_a_client_may_ask_before_it_sends_a_body_and_use_its_connection_again(shop: Shop) -> None:
    raw = json.dumps({"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 100}).encode()
    lines = [
        "POST /api/v1/orders HTTP/1.1",
        "Host: localhost",
        f"Authorization: {shop.session.headers['Authorization']!s}",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
        "Expect: 100-continue",
        "",
        "",
    ]
    with socket.create_connection((HOST, shop.port), timeout=30) as connection:
        for _ in range(2):
            connection.sendall("\r\n".join(lines).encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 100 Continue\r\n")
            connection.sendall(raw)
            assert connection.recv(4096).startswith(b"HTTP/1.1 201 Created\r\n")


def test_a_header_with_an_underscore_is_no_other_header(shop: Shop) -> None:
    body = {"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 100}
    key = ("Idempotency_Key", str(uuid.uuid4()).encode())
    answers = [post(shop, "/orders", body, [key]) for _ in range(2)]
    assert [status for status, _ in answers] == [201] * 2
    assert len({answer["id"] for _, answer in answers}) == 2


@pytest.mark.parametrize("name", ["ce-subject", "ce-source"])
@pytest.mark.parametrize("value", [b"\xc3\x84-1", b"M\xfcller", b"A%FF1"])
def test_a_header_of_other_bytes_than_ascii_is_refused_by_its_name(
    shop: Shop, name: str, value: bytes
) -> None:
    attributes = {"ce-specversion": b"1.0", "ce-id": str(uuid.uuid4()).encode(), "ce-source": b"s"}
    attributes |= {"ce-type": b"payment.payment.succeeded.v1", name: value}
    status, problem = post(shop, "/events", {}, list(attributes.items()))
    assert (status, problem["errors"][0]["pointer"]) == (400, f"#/{name}")


def test_a_stop_ends_the_request_under_way_first_and_leaves_no_process(shop: Shop) -> None:
    with ThreadPoolExecutor(1) as pool, payments_that_wait(shop, pool, 1) as answers:
        gone = workers(shop)
        shop.processes["web"].terminate()
        time.sleep(0.3)  # the stop is under way; nothing is decided by it
    assert answers[0].result() == 200
    shop.processes["web"].wait(PATIENCE)
    assert not [pid for pid in gone if Path(f"/proc/{pid}").exists()]


def test_a_killed_server_takes_its_workers_along(shop: Shop) -> None:
    gone = workers(shop)
    shop.processes["web"].kill()
    shop.processes["web"].wait(PATIENCE)
    shop.until(lambda: not [pid for pid in gone if Path(f"/proc/{pid}").exists()], "its workers end")
    shop.start("web")
