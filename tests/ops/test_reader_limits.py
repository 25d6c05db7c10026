"""docs/reference/limits.md lists every reader of what others send, with the limits of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

from events.consuming import bodies
from events.transports import base, kafka, redis
from notifications import logo, suppression_files
from notifications.providers import session, webhook
from orders.api import events_in
from orders.breakdown import MAX_ITEMS
from shop_connections import changes, compare, http, process
from shop_connections.saleor import client as graphql
from shop_connections.woocommerce import client

PAGE = Path(__file__).parents[2] / "docs/reference/limits.md"
BODY = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
#: The numbers of each row: bytes, members, changes, seconds.
READERS: dict[str, tuple[float | None, float | None, float | None, float | None]] = {
    "request of the API": (BODY, MAX_ITEMS, 1, None),
    "list of events over HTTP": (BODY, bodies.MOST_EVENTS, bodies.MOST_EVENTS, events_in.LIST_SECONDS),
    "event, from a broker or in a list": (base.LARGEST, None, 1, None),
    "read of a stream (Redis)": (redis.BATCH_BYTES, redis.BATCH, redis.BATCH, None),
    "read of Kafka": (None, kafka.BATCH, kafka.BATCH, None),
    "post of a connected shop": (BODY, None, changes.MOST_CHANGES, process.MOST_SECONDS),
    "answer of a shop's API, also of what gzip makes of it": (
        http.MOST_BYTES,
        client.PAGE_SIZE,
        None,
        http.ANSWER_SECONDS,
    ),
    "answer of a Saleor, which is read as a whole": (
        graphql.MOST_PARSED,
        graphql.PAGE_SIZE,
        None,
        http.ANSWER_SECONDS,
    ),
    "order in it": (BODY, None, 1, None),
    "comparison of a shop while others wait": (
        None,
        compare.MOST_MISSING,
        compare.MOST_MISSING,
        compare.MOST_SHOP_SECONDS,
    ),
    "comparison of all shops": (compare.MOST_HELD_BYTES, None, None, compare.MOST_SECONDS),
    "webhook's post of a provider": (BODY, webhook.MOST_EVENTS, None, None),
    "answer of a provider": (session.MOST_BYTES, None, None, None),
    "logo of a profile, when it is saved": (logo.MOST_BYTES, None, None, logo.MOST_SECONDS),
    "file of suppressions, CSV": (suppression_files.MOST_CSV_BYTES, None, None, None),
    "file of suppressions, JSON": (suppression_files.MOST_JSON_BYTES, None, None, None),
}


def rows() -> dict[str, tuple[float | None, ...]]:
    section = PAGE.read_text().partition("## What is read from others\n")[2].partition("\n##")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return {cells[0].strip(): tuple(number(cell) for cell in cells[1:]) for cells in lines}


def number(cell: str) -> float | None:
    match = re.match(r" *([\d,]+)", cell)
    return float(match[1].replace(",", "")) if match else None


def test_the_table_has_the_limits_of_the_code():
    assert rows() == READERS


@pytest.mark.parametrize("name", READERS)
def test_each_reader_has_a_limit_of_the_whole(name):
    assert any(READERS[name])


def test_the_time_for_a_posts_changes_leaves_some_for_the_one_that_takes_their_place():
    assert process._CHANGES_SECONDS < process.MOST_SECONDS
