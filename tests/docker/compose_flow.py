"""Run by test_compose.py in namespaces of its own: docker/compose.yaml from `up` to `down --volumes`.

Prints what it has seen, a line for each step; the first step that fails ends it with the reason. With the
argument `kafka`: that profile instead.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import requests

from config import roles
from tests.docker import images
from tests.docker.engine import inspect, podman, run, trouble

PROJECT = "drill"
WEB, MAILBOX, PROMETHEUS = "http://127.0.0.1:8000", "http://127.0.0.1:8025", "http://127.0.0.1:9090"
PATIENCE = 180.0
ORDER = {
    "user_id": "0f8b1e9c-6f5b-4a53-9d2c-3c1f6a1d2b11",
    "email": "ann@example.com",
    "name": "Ann",
    "total_amount": 1590,
    "currency": "EUR",
    "locale": "en",
}
CHECKED = [role for role in roles.commands() if role not in ("migrate", "cdc", "follower")]


def compose(*arguments: str) -> str:
    return run(
        *(sys.executable, "-m", "podman_compose", "--in-pod", "false", "-p", PROJECT),
        *("-f", str(images.COMPOSE), *arguments),
    )


def name_of(service: str) -> str:
    return f"{PROJECT}_{service}_1"


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait until `condition` returns something; raise AssertionError with the logs of all containers."""
    deadline = time.monotonic() + seconds
    while not (found := _tried(condition)):
        if time.monotonic() > deadline:
            names = podman("ps", "--all", "--format", "{{.Names}}").split()
            logs = [f"== {name}\n{podman('logs', '--tail', '15', name, check=False)}" for name in names]
            raise AssertionError(f"waited {seconds:g} s in vain until {what}\n" + "\n".join(logs))
        time.sleep(0.5)
    return found


def _tried(condition: Callable[[], Any]) -> Any:
    try:
        return condition()
    except requests.RequestException:
        return None


def healthy(service: str) -> bool:
    return trouble(name_of(service)) == ""


def curl(path: str, *, token: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        run(
            *(
                "curl",
                "--silent",
                "--fail-with-body",
                f"{WEB}/api/v1{path}",
                "-H",
                f"Authorization: Bearer {token}",
            ),
            *(
                "-H",
                f"Idempotency-Key: {key}",
                "-H",
                "Content-Type: application/json",
                "-d",
                json.dumps(body),
            ),
        )
    )
    return answer


def mails() -> int:
    total: int = requests.get(f"{MAILBOX}/api/v1/messages?limit=1", timeout=5).json()["total"]
    return total


def buy(number: int, *, token: str) -> str:
    """Place an order and pay it: one e-mail. Return its id."""
    order = curl("/orders", token=token, key=f"place-{number}", body=ORDER)
    curl(f"/orders/{order['id']}/pay", token=token, key=f"pay-{number}", body={})
    return str(order["id"])


def main() -> None:
    run("ip", "link", "set", "lo", "up")
    profile, flow = ("kafka", over_kafka) if "kafka" in sys.argv[1:] else ("monitoring", everything)
    try:
        flow()
    finally:
        compose("--profile", profile, "down", "--volumes", "--timeout", "5")
    left = [podman(*words) for words in (["ps", "-aq"], ["volume", "ls", "-q"], ["network", "ls", "-q"])]
    assert left[:2] == ["", ""] and PROJECT not in left[2], left
    print("down --volumes leaves nothing")


def over_kafka() -> None:
    os.environ["EVENT_TRANSPORT"] = "kafka"
    compose("--profile", "kafka", "up", "--detach", "--no-build")
    for role in CHECKED:
        until(functools.partial(healthy, role), f"{role} is healthy")
    until(lambda: requests.get(f"{WEB}/readyz", timeout=5).ok, "the web is ready")
    token = login()
    order = buy(1, token=token)

    def published() -> bool:
        headers = {"Authorization": f"Bearer {token}"}
        events = requests.get(f"{WEB}/api/v1/orders/{order}/events", headers=headers, timeout=5).json()
        return all(event["published_at"] for event in events["results"])

    until(published, "Kafka has taken the events")
    topics = podman("exec", name_of("kafka"), "ls", "/var/lib/kafka/data")
    assert "order.order.paid.v1-0" in topics, topics
    print("an order's events are in Kafka")


def login() -> str:
    """Return the token that the service `login` has printed, once."""
    printed = podman("logs", name_of("login")).split()
    assert "password" in printed
    return next(word for word in printed if word.startswith("op_"))


def everything() -> None:
    began = time.monotonic()
    compose("up", "--detach", "--no-build")
    for role in CHECKED:
        until(functools.partial(healthy, role), f"{role} is healthy")
    until(lambda: requests.get(f"{WEB}/readyz", timeout=5).ok, "the web is ready")
    print(f"every role is healthy {time.monotonic() - began:.0f} s after `up`")

    token = login()
    buy(1, token=token)
    until(lambda: mails() == 1, "the e-mail is in the mailbox")
    print("an order by curl; its e-mail is in the mailbox")

    worker = inspect(name_of("worker"))["State"]["Pid"]
    os.kill(worker, signal.SIGKILL)
    for number in range(2, 7):
        buy(number, token=token)
    until(lambda: mails() == 6, "all e-mails are in the mailbox")
    until(lambda: inspect(name_of("worker"))["State"]["Pid"] not in (0, worker), "the worker is back")
    until(lambda: healthy("worker"), "the worker is healthy again")
    print("a worker that is killed loses no e-mail, and is back")

    said = podman("exec", name_of("web"), "orderpost", "demo", "--orders", "20", "--wait", "90")
    assert "The mailbox is Mailpit" in said, said
    until(lambda: mails() > 6 + 15, "the demo's e-mails are in the mailbox")
    print("orderpost demo works")

    compose("--profile", "monitoring", "up", "--detach", "--no-build")
    targets = until(all_up, "Prometheus sees every target up")
    print(f"Prometheus sees {len(targets)} targets, all up: {', '.join(targets)}")


def all_up() -> list[str]:
    """Return the roles that Prometheus scrapes, if all are up."""
    answer = requests.get(f"{PROMETHEUS}/api/v1/targets", timeout=5).json()["data"]["activeTargets"]
    up = sorted(target["labels"]["role"] for target in answer if target["health"] == "up")
    return up if up == sorted(CHECKED) == sorted(target["labels"]["role"] for target in answer) else []


if __name__ == "__main__":
    main()
