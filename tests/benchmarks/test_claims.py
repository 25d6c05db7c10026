"""The percentiles of claims that `make bench` reads from the metric."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from benchmarks.claims import percentiles, read_claims
from benchmarks.shop import Shop
from local.machine import HOST
from outbox.telemetry import instruments


def exposition(*values: float) -> str:
    """Return the metrics of a process whose claims of two tables took these seconds."""
    registry = CollectorRegistry()
    bounds = instruments.CLAIMS._upper_bounds
    claims = Histogram(instruments.CLAIMS._name, "…", ["table"], buckets=bounds, registry=registry)
    for number, value in enumerate(values):
        claims.labels(f"table_{number % 2}").observe(value)
    return generate_latest(registry).decode()


def test_a_percentile_lies_in_the_bucket_of_its_claim():
    found = percentiles(read_claims(exposition(*[0.0008] * 90, *[0.0028] * 8, *[0.3] * 2)))
    assert found == {"claim p95": pytest.approx(2.625), "claim p99": pytest.approx(375)}


def test_the_claims_of_a_period_are_the_difference_of_two_readings():
    before, after = read_claims(exposition(*[0.3] * 50)), read_claims(exposition(*[0.3] * 50, *[0.0008] * 10))
    after.subtract(before)
    assert percentiles(after) == {"claim p95": pytest.approx(0.975), "claim p99": pytest.approx(0.995)}


def test_a_claim_beyond_the_last_bucket_counts_as_its_bound():
    assert percentiles(read_claims(exposition(60.0)))["claim p99"] == 5000


def test_without_a_claim_there_is_no_figure():
    assert percentiles(read_claims(exposition())) == percentiles(read_claims("")) == {}


def test_a_shops_claims_are_those_of_all_its_processes(tmp_path):
    shop = Shop(tmp_path)
    try:
        assert shop.claims() == {}  # release 0.1.0 has no file
        (folder := shop.copy / "var" / "run").mkdir(parents=True)
        with serving(exposition(0.0008)) as one, serving(exposition(0.3, 0.3)) as other, serving("") as web:
            targets = [{"targets": [address], "labels": {}} for address in (one, other, web)]
            (folder / "metrics_targets.json").write_text(json.dumps(targets))
            claims = shop.claims()
        assert (claims[0.001], claims[0.5], claims[float("inf")]) == (1, 3, 3)
    finally:
        shop._folder.cleanup()


@contextlib.contextmanager
def serving(text: str) -> Iterator[str]:
    """Serve a text at every path, and yield the address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer((HOST, 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{HOST}:{server.server_port}"
        server.shutdown()
