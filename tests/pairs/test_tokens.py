"""A token that is revoked while one of its requests is being worked on."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models.functions import Now

from tests.kit.api import Api, assert_problem, make_token
from tests.kit.events import PAID, envelope, order, status
from tests.kit.words import ApiToken, Envelope, ProcessedEvent, subscriptions

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("end", ["revoked_at", "expires_at"])
def test_a_list_of_events_ends_where_its_token_ends_and_a_new_token_repeats_it(monkeypatch, fast, end):
    orders = [order() for _ in range(4)]
    events = [envelope(PAID, {"orderId": str(order.id)}) for order in orders]
    pay = subscriptions.OTHER_SERVICES[PAID]

    def end_token(event: Envelope) -> None:
        if event.data["orderId"] == str(orders[1].id):
            ApiToken.objects.update(**{end: Now()})
        pay(event)

    fast.tokens()
    with monkeypatch.context() as patched:
        patched.setitem(subscriptions.OTHER_SERVICES, PAID, end_token)
        assert_problem(Api(make_token()).post("/api/v1/events", events), 401, "unauthenticated")
    assert [status(order) for order in orders] == ["paid", "paid", "pending", "pending"]
    assert ProcessedEvent.objects.count() == 2
    answer: Any = Api(make_token()).post("/api/v1/events", events).json()
    outcomes = [result["result"] for result in answer["results"]]
    assert outcomes == ["repeated", "repeated", "processed", "processed"]
