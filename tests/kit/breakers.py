"""Circuit breakers in Redis whose time passes at once."""

from __future__ import annotations

import json

from outbox.gate.shared_gate import BREAKER_PREFIX
from tests.kit.words import Gate, make_client

HOUR = 3600.0


def let_an_hour_pass(url: str, *gates: Gate) -> None:
    """Move the times of all breakers an hour into the past, and let these gates read them."""
    with make_client(url=url, decode=True) as client:
        for key in client.scan_iter(f"{BREAKER_PREFIX}*"):
            breaker = json.loads(client.get(key) or "{}")
            for name in {"opened_at", "probed_at", "waiting_probed_at"} & breaker.keys():
                breaker[name] = breaker[name] and breaker[name] - HOUR
            client.set(key, json.dumps(breaker))
    for gate in gates:
        gate.rest()  # its next send asks Redis
