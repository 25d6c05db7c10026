"""The example shop publishes what the served schemas describe and orderpost takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jsonschema
import pytest
import redis

from local.machine import PROJECT
from tests.kit.events import give
from tests.kit.words import EmailNotification, Name, Order, find_schemas, read_schema

pytestmark = pytest.mark.django_db
TOPICS = [f"order.order.{change}.v1" for change in ("completed", "paid", "placed")]  # not as they were told


def valid(event: dict[str, object], name: str) -> bool:
    schema = read_schema(find_schemas()[Name("in", name)])
    return bool(jsonschema.Draft202012Validator(schema).is_valid(event))


@pytest.mark.parametrize("options", [[], ["--late"]])
def test_the_example_shops_events_make_an_order_and_its_mails(settings, valkey_url, options):
    settings.ORDER_SOURCES = ["example-shop"]
    subprocess.run(
        [sys.executable, "examples/shop.py", *options],
        cwd=PROJECT,
        env=os.environ | {"REDIS_URL": valkey_url},
        check=True,
        capture_output=True,
    )
    with redis.Redis.from_url(valkey_url) as client:
        events = [json.loads(fields[b"value"]) for topic in TOPICS for _, fields in client.xrange(topic)]
    assert len(events) == 3
    for event in events:
        assert valid(event, "envelope") and valid(event["data"], event["eventType"])
        assert give(event) == "done"
    order = Order.objects.get()
    assert (order.source, order.status, order.version) == ("example-shop", "completed", 3)
    mails = EmailNotification.objects.order_by("event_type").values_list("event_type", flat=True)
    assert list(mails) == ["order.completed", "order.paid"]
