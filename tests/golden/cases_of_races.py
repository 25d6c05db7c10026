"""Requests that meet. A request with a key in use may wait up to a second, and then replays or is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
from django.db import connection

from outbox.models import ApiToken
from tests.golden.cases import LEAST, ORDERS, place
from tests.golden.recorder import Answer, Recorder


@contextlib.contextmanager
def another_session() -> Iterator[psycopg.Connection]:
    """Open a transaction beside the server's, and roll it back."""
    values = connection.settings_dict
    address = {"host": values["HOST"], "port": values["PORT"], "dbname": values["NAME"]}
    with psycopg.connect(**address, user=values["USER"], password=values["PASSWORD"]) as session:
        yield session
        session.rollback()


def lock_of(key: str) -> int:
    """Return the number of a key's advisory lock: that of release 0.1.0, which may run beside."""
    scope = f"token:{ApiToken.objects.get(name='all').id}"
    return int.from_bytes(hashlib.sha256(f"{scope}\0{key}".encode()).digest()[:8], signed=True)


def at_once(api: Recorder, *requests: tuple[str, str, str]) -> list[Answer]:
    """POST all at the same time: path, body, key."""
    start = threading.Barrier(len(requests))

    def send(request: tuple[str, str, str]) -> Answer:
        path, body, key = request
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        start.wait(30)
        try:
            return api.exchange("POST", path, body.encode(), headers, api.tokens["all"])
        finally:
            api.close()

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(send, requests))


def is_replay(answer: Answer) -> bool:
    return ("Idempotency-Replayed", "true") in answer.headers


def keys_in_use(api: Recorder) -> None:
    """Use keys whose locks another session holds, then again when they are free."""
    path = place(api, "placed")
    with another_session() as session:
        session.execute(
            "SELECT pg_advisory_xact_lock(%s), pg_advisory_xact_lock(%s)", [lock_of("k"), lock_of("p")]
        )
        api.send("place while the key is in use", "POST", ORDERS, LEAST, key="k")
        api.send("pay while the key is in use", "POST", f"{path}/pay", key="p")
    api.send("place", "POST", ORDERS, LEAST, key="k")
    api.send("pay", "POST", f"{path}/pay", key="p")


def same_key(api: Recorder) -> None:
    """Send the same request many times at once: one does the work, the others replay it or are refused."""
    path = place(api, "placed")
    for action, address in (("place", ORDERS), ("pay", f"{path}/pay")):
        body = json.dumps(LEAST if action == "place" else {})
        answers = at_once(api, *[(address, body, f"{action}-key")] * 6)
        (first,) = [answer for answer in answers if answer.status < 300 and not is_replay(answer)]
        for other in answers:
            if other.status == 409:
                assert other.json["type"] == "urn:orderpost:problem:idempotency-in-progress"
            else:
                assert (other.status, other.body) == (first.status, first.body)
        api.record(f"{action}: the first", f"POST {address}", body.encode(), {}, first)
        api.send(f"{action}: again", "POST", address, json.loads(body), key=f"{action}-key")


def other_keys(api: Recorder) -> None:
    """Change an order several times at once: each but the first meets the changed order."""
    path = place(api, "placed")
    for action, body in (("pay", "{}"), ("refund", '{"amount": 4000}')):
        keys = [f"{action}-{number}" for number in range(3)]
        api.hide("<the first one's key>", *keys)
        answers = at_once(api, *[(f"{path}/{action}", body, key) for key in keys])
        for number, answer in enumerate(sorted(answers, key=lambda answer: answer.status)):
            api.record(f"{action}, {number}", f"POST {path}/{action}", body.encode(), {}, answer)


SECTIONS = (keys_in_use, same_key, other_keys)
