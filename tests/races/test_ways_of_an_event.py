"""One event comes by two ways at once. Each way locks the order before the event's row, or only the latter.

`RACE_ROUNDS=1000` tries each pair so often.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from events.consuming.envelope import Envelope, Rejected
from events.consuming.handlers import Handler
from orders.subscriptions import NAME
from tests.kit.connections import ask
from tests.kit.events import PAID, envelope, order, received
from tests.kit.orders import cancel_order
from tests.kit.races import together
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import (
    HANDLERS,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    ProcessedEvent,
    inbox,
)

pytestmark = pytest.mark.django_db(transaction=True)
ROUNDS = int(os.environ.get("RACE_ROUNDS", "10"))
Handlers = Mapping[str, Handler]


class Case:
    """An order, and a payment of it that comes by two ways."""

    def __init__(self, *, is_refused: bool = False) -> None:
        self.order = order()
        if is_refused:
            cancel_order(order_id=self.order.id)
        self.document = envelope(PAID, {"orderId": str(self.order.id)})
        self.message = inbox.open_message(received(PAID, self.document))
        assert self.message.envelope is not None
        self.envelope: Envelope = self.message.envelope

    def fresh(self) -> Any:
        """Return the message as each session opens it for itself."""
        return inbox.open_message(received(PAID, self.document))


def by_broker(case: Case, handlers: Handlers) -> str:
    return inbox.process(case.fresh(), consumer=NAME, handlers=handlers)


def by_http(case: Case, handlers: Handlers) -> str:
    return inbox.process_or_reject(case.fresh().envelope, consumer=NAME, handlers=handlers)


def too_late(case: Case, handlers: Handlers) -> str:
    written_at = dt.datetime.now(dt.UTC) - dt.timedelta(days=400)
    message = inbox.open_message(received(PAID, case.document, written_at=written_at))
    return inbox.process(message, consumer=NAME, handlers=handlers)


def as_dead_letter(case: Case, handlers: Handlers) -> str:
    return inbox.dead_letter(message=case.fresh(), consumer=NAME, reason="it failed six times")


def by_replay(case: Case, handlers: Handlers) -> str:
    replayed = inbox.replay_next(consumer=NAME, handlers=handlers)
    if replayed is None:
        return "nothing"
    _, error = replayed
    if error is not None:
        raise error
    return "replayed"


WAYS: dict[str, Callable[[Case, Handlers], str]] = {
    way.__name__: way for way in (by_broker, by_http, too_late, as_dead_letter, by_replay)
}
PAIRS = [*itertools.combinations_with_replacement(WAYS, 2)]
#: Those that call the handler, which locks the order.
LOCKING = [name for name in WAYS if name != "as_dead_letter"]


def go(way: str, case: Case, handlers: Handlers = HANDLERS) -> str:
    try:
        return WAYS[way](case, handlers)
    except Rejected as reason:
        return f"rejected: {reason}"


def prepare_replay(case: Case, *ways: str) -> None:
    """If one way is a replay, store the letter, and the event's row as for a letter."""
    if "by_replay" in ways:
        as_dead_letter(case, HANDLERS)
        InboundDeadLetter.objects.request_replay(ids=InboundDeadLetter.objects.values_list("id", flat=True))


def deadlocks() -> int:
    ask(connection, "SELECT pg_stat_force_next_flush()")
    ask(connection, "SELECT pg_stat_clear_snapshot()")
    return int(ask(connection, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))


def check(case: Case, results: list[str]) -> None:
    """Check that the event had its effect once if a way says so, and otherwise none."""
    case.order.refresh_from_db()
    effects = DomainEvent.objects.filter(aggregate_id=case.order.id, event_type=f"order.{PAID}").count()
    emails = EmailNotification.objects.filter(order_id=case.order.id, event_type="order.paid").count()
    done = sum(result in ("done", "replayed") for result in results)
    assert done <= 1, results
    is_paid = case.order.status == "paid"
    assert emails == is_paid == bool(done), (results, emails, case.order.status, effects)
    rows = ProcessedEvent.objects.filter(event_id=case.envelope.id)
    assert rows.count() <= 1 and sum(result.startswith("rejected") for result in results) <= 2


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_two_ways_at_once_have_one_effect_and_never_wait_for_each_other(pair, is_refused):
    before, seen = deadlocks(), Counter[str]()
    for _ in range(ROUNDS):
        case = Case(is_refused=is_refused)
        prepare_replay(case, *pair)
        results = together(2, lambda number, case=case: go(pair[number], case))
        seen[" ".join(sorted(result.partition(":")[0] for result in results))] += 1
        if not is_refused:
            check(case, results)
        else:
            case.order.refresh_from_db()
            assert case.order.status == "cancelled"
    assert deadlocks() == before, seen


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", LOCKING)
def test_a_way_that_comes_while_another_holds_the_order_waits_only_for_that(first, second):
    case, before = Case(), deadlocks()
    prepare_replay(case, first, second)
    locked, go_on = threading.Event(), threading.Event()

    def pausing(event: Envelope) -> None:
        HANDLERS[PAID](event)
        locked.set()
        assert go_on.wait(PATIENCE)

    def run(way: str, handlers: Handlers) -> str:
        try:
            return go(way, case, handlers)
        finally:
            connections.close_all()

    def waits_or_is_done(other: Future[str]) -> bool:
        sql = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return other.done() or bool(ask(connection, sql))

    with ThreadPoolExecutor(2) as pool:
        one_way = pool.submit(run, first, {PAID: pausing})
        # The event of a letter is a repeat for some, which do not call the handler.
        until(lambda: locked.is_set() or one_way.done(), "the first way has locked the order, or is done")
        other_way = pool.submit(run, second, HANDLERS)
        try:
            until(lambda: waits_or_is_done(other_way), "the second way waits or is done")
        finally:
            go_on.set()
        results = [one_way.result(PATIENCE), other_way.result(PATIENCE)]
    assert deadlocks() == before
    check(case, results)
