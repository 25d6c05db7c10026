"""Run the commands of docs/guides/one-machine.md. test_compose.py runs this in separate namespaces.

The commands run in the page's order, in a folder that is empty at first: a clone of what is
committed. `docker` is podman there, and `docker compose` podman-compose, or with the argument `docker` the
real ones with a Docker engine of their own. Prints what it has seen, a line for each step; the first step
that fails ends it with the reason. With the argument `streaming`: the page's start, its step with Kafka and
Debezium, and its end.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from local.machine import PROJECT
from tests.drills import dockerd, engine, images
from tests.drills.engine import environment, run
from tests.kit import waiting
from tests.kit.roles import RUNNING

PAGE = PROJECT / "docs" / "guides" / "one-machine.md"
NAME = "orderpost"
IS_DOCKER = "docker" in sys.argv[1:]
WEB, MAILBOX, PROMETHEUS = "http://127.0.0.1:8000", "http://127.0.0.1:8025", "http://127.0.0.1:9090"
PROXY, PLAIN = "https://localhost:8443", "http://localhost:8080"
ORDER = {
    "user_id": "0f8b1e9c-6f5b-4a53-9d2c-3c1f6a1d2b11",
    "email": "ann@example.com",
    "name": "Ann",
    "total_amount": 1590,
    "currency": "EUR",
    "locale": "en",
}
#: podman-compose does not know the profile `*`.
DOCKER = f"""#!/bin/sh
[ "$1" = compose ] || exec podman "$@"
shift
for word do
    shift
    case $word in
        '*') set -- "$@" monitoring --profile kafka --profile cdc --profile tls ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec {sys.executable} -m podman_compose "$@"
"""


def blocks() -> list[str]:
    """Return the page's commands: start, a first e-mail, further on, Kafka and Debezium, TLS, the end."""
    parts = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(parts) == 6, parts
    return parts


class Reader:
    """A terminal in an empty folder. It runs the page's commands, and keeps its variables and its folder."""

    def __init__(self, home: Path) -> None:
        self._state = home / "state"
        programs = home / "bin"
        programs.mkdir()
        if not IS_DOCKER:
            (programs / "docker").write_text(DOCKER)
            (programs / "docker").chmod(0o755)
        folder = home / "empty"
        folder.mkdir()
        # BUILDAH_FORMAT is the page's word for podman; no registry can be reached, hence BASE.
        self._state.write_text(
            f"cd {folder}\nexport PATH={programs}:{environment()['PATH']} BASE={images.BASE}"
            f" BUILDAH_FORMAT=docker\n"
        )

    def follow(self, block: str) -> str:
        """Run a block of the page. Return its output."""
        # This is the only value that a reader has to fill in.
        block = block.replace("REPOSITORY=…", f"REPOSITORY={PROJECT}")
        assert "…" not in block, block
        keep = f'{{ echo "cd $PWD"; export -p; }} > {self._state}'
        script = f". {self._state}\n{block}\n{keep}"
        return run("bash", "-eu", "-o", "pipefail", "-c", script, seconds=900)

    def value(self, name: str) -> str:
        return run("bash", "-uc", f". {self._state}; echo ${name}")


def call(*arguments: str, check: bool = True) -> str:
    """Run a command of the container engine. Return its output."""
    return run("docker" if IS_DOCKER else "podman", *arguments, check=check)


def name_of(service: str) -> str:
    return f"{NAME}-{service}-1" if IS_DOCKER else f"{NAME}_{service}_1"


def inspect(service: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(call("inspect", name_of(service)))[0]
    return document


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until `condition` is true and return its result. Otherwise raise AssertionError with all logs."""

    def logs() -> str:
        names = call("ps", "--all", "--format", "{{.Names}}").split()
        return "\n".join(f"== {name}\n{call('logs', '--tail', '15', name, check=False)}" for name in names)

    return waiting.until(lambda: _tried(condition), what, details=logs, meanwhile=lambda: time.sleep(0.5))


def _tried(condition: Callable[[], Any]) -> Any:
    try:
        return condition()
    except requests.RequestException:
        return None


def healthy(service: str) -> bool:
    if IS_DOCKER:  # it runs the health checks itself
        return bool(inspect(service)["State"]["Health"]["Status"] == "healthy")
    return engine.trouble(name_of(service)) == ""


def post(path: str, *, token: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
    answer = requests.post(f"{WEB}/api/v1{path}", json=body, headers=headers, timeout=30)
    assert answer.ok, answer.text
    document: dict[str, Any] = answer.json()
    return document


def mails() -> int:
    total: int = requests.get(f"{MAILBOX}/api/v1/messages?limit=1", timeout=5).json()["total"]
    return total


def buy(number: int, *, token: str) -> str:
    """Place and pay an order, which sends one e-mail. Return its id."""
    order = post("/orders", token=token, key=f"place-{number}", body=ORDER)
    post(f"/orders/{order['id']}/pay", token=token, key=f"pay-{number}", body={})
    return str(order["id"])


def main() -> None:
    # What other namespaces wrote there is of their processes and addresses: the process whose number is in
    # `aardvark.pid` gets a signal, and is another one here.
    for folder in ("/run/containers", "/run/netns"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    run("ip", "link", "set", "lo", "up")
    flow = streaming if "streaming" in sys.argv[1:] else everything
    start, first, further, through_kafka, secured, end = blocks()
    with contextlib.ExitStack() as stack:
        if IS_DOCKER:
            stack.enter_context(dockerd.running(streaming=flow is streaming))
        reader = Reader(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orderpost-page-"))))
        try:
            token = begin(reader, start, first)
            flow(reader, token, through_kafka if flow is streaming else further)
            if flow is everything:
                over_tls(reader, token, secured)
        finally:
            reader.follow(end)
        words = (["ps", "-aq"], ["volume", "ls", "-q"], ["network", "ls", "--format", "{{.Name}}"])
        left = [call(*arguments) for arguments in words]
        assert left[:2] == ["", ""] and NAME not in left[2], left
    print("down --volumes leaves nothing")


def begin(reader: Reader, start: str, first: str) -> str:
    """Follow the page to its first e-mail. Return the API token."""
    began = time.monotonic()
    printed = reader.follow(start)
    assert "password" in printed, printed
    print(f"`up` and `logs`: {time.monotonic() - began:.0f} s")
    paid = json.loads(reader.follow(first).rpartition("\n")[2])
    assert paid["status"] == "paid", paid
    until(lambda: mails() == 1, "the e-mail is in the mailbox")
    print(f"an empty folder's first e-mail: {time.monotonic() - began:.0f} s after `git clone`")
    return reader.value("TOKEN")


def streaming(reader: Reader, token: str, block: str) -> None:
    reader.follow(block)
    for role in (*RUNNING, "cdc"):
        until(functools.partial(healthy, role), f"{role} is healthy")
    until(lambda: requests.get(f"{WEB}/readyz", timeout=5).ok, "the web is ready")
    order = buy(1, token=token)

    def published() -> bool:
        headers = {"Authorization": f"Bearer {token}"}
        events = requests.get(f"{WEB}/api/v1/orders/{order}/events", headers=headers, timeout=5).json()
        return all(event["published_at"] for event in events["results"])

    until(published, "Kafka has taken the events")
    topics = call("exec", name_of("kafka"), "ls", "/var/lib/kafka/data")
    assert "order.order.paid.v1-0" in topics, topics
    print("an order's events are in Kafka")
    until(lambda: mails() >= 2, "the e-mail is in the mailbox")

    until(lambda: '"type":"source"' in connector() and connector().count("RUNNING") == 2, "Debezium runs")
    before = wakeups()
    buy(2, token=token)
    until(lambda: wakeups() > before, "Debezium has reported a row, and consume_cdc has woken the workers")
    print("Debezium's row wakes the workers")


def connector() -> str:
    """Return Kafka Connect's states of the connector and its task."""
    return fetch(name_of("web"), "http://connect:8083/connectors/orderpost/status")


def fetch(container: str, url: str) -> str:
    """Return the text that a container gets from `url`, or an empty text."""
    ask = f"import urllib.request as r; print(r.urlopen('{url}', timeout=5).read().decode())"
    return call("exec", container, "python", "-c", ask, check=False)


def wakeups() -> float:
    """Return how many times consume_cdc has woken the workers."""
    series = r'orderpost_wakeups_total\{result="sent",target="drain"\}'
    metrics = fetch(name_of("cdc"), "http://127.0.0.1:9100/")
    return sum(map(float, re.findall(rf"^{series} (\S+)", metrics, flags=re.MULTILINE)))


def everything(reader: Reader, token: str, block: str) -> None:
    for role in RUNNING:
        until(functools.partial(healthy, role), f"{role} is healthy")
    print("every role is healthy")

    said = reader.follow(block)  # before other orders, with which no demo mixes its own
    assert "which is Mailpit" in said, said
    until(lambda: mails() > 30, "the demo's e-mails are in the mailbox")
    print("orderpost demo works")

    worker, before = inspect("worker")["State"]["Pid"], mails()
    os.kill(worker, signal.SIGKILL)
    for number in range(2, 7):
        buy(number, token=token)
    until(lambda: mails() == before + 5, "all e-mails are in the mailbox")
    until(lambda: inspect("worker")["State"]["Pid"] not in (0, worker), "the worker is back")
    until(lambda: healthy("worker"), "the worker is healthy again")
    print("a worker that is killed loses no e-mail, and is back")

    targets = until(all_up, "Prometheus sees every target up")
    print(f"Prometheus sees {len(targets)} targets, all up: {', '.join(targets)}")


def over_tls(reader: Reader, token: str, block: str) -> None:
    answer = reader.follow(block)
    assert "strict-transport-security" in answer.lower(), answer
    proxy = inspect("proxy")
    assert proxy["HostConfig"]["ReadonlyRootfs"] and proxy["Config"]["User"] == "101"
    forged = {"X_Forwarded_For": "203.0.113.9", "Authorization": f"Bearer {token}"}
    certificate = reader.value("PWD") + "/var/tls/fullchain.pem"
    for path, status in (("/api/v1/orders", 200), ("/admin/login/", 200), ("/metrics", 404)):
        told = requests.get(f"{PROXY}{path}", headers=forged, timeout=30, verify=certificate)
        assert told.status_code == status, told.text
        # Django sends it only if the web trusts the proxy.
        assert ("Strict-Transport-Security" in told.headers) == (status == 200), told.headers
    redirected = requests.get(PLAIN, timeout=30, allow_redirects=False)
    assert redirected.headers["Location"] == f"{PROXY}/", redirected.headers
    print("the proxy serves the web over TLS")


def all_up() -> list[str]:
    """Return the roles that Prometheus scrapes, if all are up."""
    answer = requests.get(f"{PROMETHEUS}/api/v1/targets", timeout=5).json()["data"]["activeTargets"]
    up = sorted(target["labels"]["role"] for target in answer if target["health"] == "up")
    return up if set(RUNNING) <= set(up) and len(up) == len(answer) else []


if __name__ == "__main__":
    main()
