"""Shops start from copies of one cluster, and each has its rows to itself; a shared one is emptied."""

from __future__ import annotations

import os
import random

import pytest

from tests.kit.shop import Shop


@pytest.mark.flow
def test_two_shops_have_the_same_tables_and_token_and_not_each_others_rows():
    with Shop() as one, Shop() as other:
        assert one.session.headers["Authorization"] == other.session.headers["Authorization"]
        migrations = "SELECT app, name FROM django_migrations ORDER BY 1, 2"
        assert one.query(migrations) == other.query(migrations) != []
        one.query("DELETE FROM api_tokens")
        assert other.query("SELECT name FROM api_tokens") == [("flow",)]


@pytest.mark.flow
def test_a_shared_shop_is_empty_for_the_next_test_and_its_token_works(shared_shop: Shop):
    shared_shop.pay(shared_shop.place())
    shared_shop.until(lambda: shared_shop.all_sent(1), "the mail is sent")
    shared_shop.empty()
    for table in ("orders", "email_notifications", "outbox_events"):
        assert shared_shop.query(f"SELECT count(*) FROM {table}") == [(0,)]
    assert not shared_shop.sandbox.mails
    shared_shop.pay(shared_shop.place())
    shared_shop.until(lambda: shared_shop.all_sent(1), "the worker goes on")


def test_random_numbers_follow_from_the_seed_and_the_tests_name(request: pytest.FixtureRequest):
    assert random.random() == random.Random(f"{os.environ['TESTS_SEED']} {request.node.nodeid}").random()
