"""One trace through a saga of real processes, received by a real OTLP endpoint."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
import redis

from local.sandbox.webhooks import WebhookSettings
from tests.flows import otelcol
from tests.kit.otlp import Received, Receiver
from tests.kit.shop import KEYS, PAYMENT, Shop, payment_event

pytestmark = pytest.mark.flow

PLACED = "order.order.placed.v1"
PAID = "order.order.paid.v1"


def read(shop: Shop, topic: str, order: str) -> dict[str, str]:
    """Wait for an order's event and return the fields of its message."""

    def read_fields() -> list[dict[str, str]]:
        with redis.Redis.from_url(shop.valkey.url, decode_responses=True) as client:
            return [fields for _, fields in client.xrange(topic) if fields["key"] == order]

    shop.until(lambda: bool(read_fields()), f"{topic} is published")
    return read_fields()[0]


def paid_by_another_service(order: str, placed: dict[str, str]) -> Any:
    """Return the payment service's event: its span is in the trace of the event that it answers."""
    event = payment_event(order)
    envelope = json.loads(event["value"])
    _, trace_id, _, flags = placed["traceparent"].split("-")
    envelope["metadata"]["traceparent"] = f"00-{trace_id}-{secrets.token_hex(8)}-{flags}"
    envelope["metadata"]["correlationId"] = placed["correlationId"]
    return {**event, "value": json.dumps(envelope)}


def test_a_saga_is_one_trace_whose_spans_hang_together_and_lie_within_each_other():
    with Receiver() as receiver:
        assert_one_trace(receiver, receiver.environment)


@pytest.mark.drill
def test_the_real_collector_takes_the_same_spans(tmp_path):
    program = otelcol.binary()
    with Receiver() as receiver, otelcol.Collector(program=program, folder=tmp_path, to=receiver.url) as it:
        assert_one_trace(
            receiver,
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": it.url,
                "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            },
        )


def assert_one_trace(receiver: Receiver, environment: Any) -> None:
    trace_id, caller = secrets.token_hex(16), secrets.token_hex(8)
    with Shop(**environment) as shop:
        shop.sandbox.webhooks.settings = WebhookSettings(url=shop.webhooks, keys=KEYS)
        for name in ("web", "worker", "beat", "relay", "consumer"):
            shop.start(name, OTEL_SERVICE_NAME=name)
        shop.session.headers["traceparent"] = f"00-{trace_id}-{caller}-01"
        shop.session.headers["X-Correlation-ID"] = "saga-1"
        order = shop.place("alice@example.com")
        placed = read(shop, PLACED, order)
        assert (placed["correlationId"], placed["eventId"]) == (
            "saga-1",
            json.loads(placed["value"])["eventId"],
        )
        with redis.Redis.from_url(shop.valkey.url) as client:
            client.xadd(PAYMENT, paid_by_another_service(order, placed))
        paid = read(shop, PAID, order)
        assert paid["traceparent"].split("-")[1] == trace_id
        shop.until(lambda: shop.all_sent(1), "the e-mail is sent")
        names = {f"publish {PLACED}", f"process {PAYMENT}", f"publish {PAID}", "send", "record evidence"}

        def complete(spans: list[Received]) -> bool:  # the drain ends after the sends that link to it
            links = {link for span in spans if span.name == "send" for link in span.links}
            return names <= {span.name for span in spans} and links <= {span.span_id for span in spans}

        spans = receiver.until(complete)
        stored = shop.query(
            "SELECT DISTINCT substr(traceparent, 4, 32) FROM (SELECT traceparent FROM orders UNION ALL"
            " SELECT traceparent FROM email_notifications UNION ALL"
            " SELECT metadata->>'traceparent' FROM outbox_events) AS rows"
        )
    assert stored == [(trace_id,)]
    saga = {span.span_id: span for span in spans if span.trace_id == trace_id}
    by_name = {span.name: span for span in saga.values()}
    request, payment = by_name["POST /api/v1/orders"], by_name[f"process {PAYMENT}"]
    assert (request.kind, request.service, request.parent_id) == ("SERVER", "web", caller)
    assert request.attributes["http.response.status_code"] == 201
    assert (payment.kind, payment.service) == ("CONSUMER", "consumer")
    assert parents(saga, by_name["send"]) == [payment.name]
    assert parents(saga, by_name[f"publish {PLACED}"]) == [request.name]
    assert parents(saga, by_name[f"publish {PAID}"]) == [payment.name]
    assert (by_name["send"].service, by_name["send"].attributes["orderpost.outcome"]) == (
        "worker",
        "accepted",
    )
    saves = [span for span in saga.values() if span.name == "save order"]
    assert sorted(saga[span.parent_id].name for span in saves) == [request.name, payment.name]
    for save in saves:
        assert saga[save.parent_id].start <= save.start <= save.end <= saga[save.parent_id].end
    drains = {span.span_id for span in spans if span.name == "drain"}
    assert drains.intersection(by_name["send"].links)
    assert by_name["send"].attributes["orderpost.correlation_id"] == "saga-1"
    assert request.attributes["orderpost.correlation_id"] == "saga-1"
    evidence = next(span for span in spans if span.name == "record evidence")
    assert evidence.links and evidence.links[0] == payment.span_id


def parents(saga: dict[str, Received], span: Received) -> list[str]:
    """Return the names of the spans above one, nearest first, up to the one that began in another process."""
    names = []
    while (above := saga.get(span.parent_id)) is not None:
        names.append(above.name)
        if above.kind in ("SERVER", "CONSUMER"):
            break
        span = above
    return names
