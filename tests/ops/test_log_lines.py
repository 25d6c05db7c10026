"""Each transition of an e-mail or event has a log line with its ids. logs.md has every line."""

from __future__ import annotations

import ast
import io
import json
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local.machine import PROJECT
from local.sandbox import Sandbox
from tests.kit.brokers import Hand, Memory, consume, due
from tests.kit.events import PAID, REFUNDED, envelope, handle, received
from tests.kit.logs import shipped_to
from tests.kit.mails import due_now, sandbox  # noqa: F401 - a fixture
from tests.kit.orders import cancel_order, pay_order, place_order
from tests.kit.packages import PACKAGES, files_of
from tests.kit.waiting import until
from tests.kit.words import (
    HANDLERS,
    NAME,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Relay,
    context,
    give_up,
    replay_next,
    resend,
)
from tests.kit.words import drain as delivery

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])

#: The fields of each line, next to `notification_id` or `event_id`.
IDS = {"order_id", "event_type", "correlation_id", "trace_id"}
EMAIL = {"notification changed", "provider did not take a mail"}
EVENTS_OUT = {"event published", "event refused", "event republished", "event discarded"}
EVENTS_IN = {
    *("event taken", "event repeated", "event dead-lettered", "event given up", "event replayed"),
    "event will be tried again",
}
TRACE = "0af7651916cd43dd8448eb211c80319c"
SAGA = context.Context("saga-9", f"00-{TRACE}-b7ad6b7169203331-01")
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Capture what the process logs, as it is shipped; only the lines of transitions."""
    stream = io.StringIO()
    names = EMAIL | EVENTS_OUT | EVENTS_IN

    def read() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] in names]

    with shipped_to(stream):
        yield read


@pytest.fixture
def paid(settings) -> uuid.UUID:
    settings.FAST_PATH = False
    with context.working_for(SAGA):
        order = place_order(user_id=uuid.uuid4(), email="alice@example.com", total_amount=500)
        pay_order(order_id=order.id)
    return order.id


def assert_ids(lines: list[dict[str, Any]], *, order_id: uuid.UUID, names: set[str]) -> None:
    assert {line["event"] for line in lines} == names
    for line in lines:
        assert {name for name in IDS if line.get(name)} == set(IDS), line
        assert line.get("notification_id") or line.get("event_id"), line
        assert (line["order_id"], line["correlation_id"], line["trace_id"]) == (
            str(order_id),
            "saga-9",
            TRACE,
        )


def test_the_lines_of_an_email(lines, paid, sandbox: Sandbox):  # noqa: F811
    sandbox.fail(kind="status", status=503, to="alice@")
    delivery.drain_emails()
    sandbox.heal()
    sandbox.fail(kind="status", status=400, to="alice@")
    due_now()
    delivery.drain_emails()
    mail = EmailNotification.objects.get()
    assert resend(ids=[mail.id])[0]
    delivery.drain_emails()
    assert give_up(ids=[mail.id])[0]
    sandbox.heal()
    assert resend(ids=[mail.id])[0]
    delivery.drain_emails()
    changes = [line["now"] for line in lines() if line["event"] == "notification changed"]
    assert set(changes) == {"pending", "failed", "dead_lettered", "discarded", "sent"}
    assert_ids(lines(), order_id=paid, names=EMAIL)


def test_the_lines_of_events_out(lines, paid):
    broker = Memory()
    relay = Relay(using="default", transport=broker)
    with context.working_for(SAGA):
        cancel_order(order_id=paid)
    broker.refuse["order.paid"] = "not this"
    for _ in range(5):
        due()
        relay.step()
    dead = list(DomainEvent.objects.dead().values_list("id", flat=True))
    assert DomainEvent.objects.republish(ids=dead) == dead
    for _ in range(5):
        due()
        relay.step()
    assert DomainEvent.objects.discard(ids=dead) == dead
    relay.step()
    relay.close()
    published = [line["event_type"] for line in lines() if line["event"] == "event published"]
    assert published == ["order.order.placed.v1", "order.order.cancelled.v1"]
    mine = [line for line in lines() if "event_id" in line]
    assert_ids(mine, order_id=paid, names=EVENTS_OUT)


def test_the_lines_of_events_in(lines, paid, fast):
    fast.retries()
    metadata = {"correlationId": "saga-9", "traceparent": SAGA.traceparent}
    payment = envelope(PAID, {"orderId": str(paid)}, metadata=metadata)
    assert [handle(received(PAID, payment)) for _ in range(2)] == ["dead", "repeat"]  # it was paid before
    refund = envelope(REFUNDED, {"orderId": str(paid), "amount": 100}, metadata=metadata)
    assert handle(received(REFUNDED, refund)) == "done"

    def broken(event: object) -> None:
        raise ZeroDivisionError

    hand = Hand([received(REFUNDED, envelope(REFUNDED, {"orderId": str(paid)}, metadata=metadata))])
    loop = consume(hand, **{REFUNDED: broken})
    until(lambda: hand.acknowledged, meanwhile=lambda: loop.step(seconds=0.01))
    letters = list(InboundDeadLetter.objects.values_list("id", flat=True))
    assert len(letters) == 2
    InboundDeadLetter.objects.request_replay(ids=letters)  # the payment is rejected again
    while replay_next(consumer=NAME, handlers=HANDLERS) is not None:
        pass
    mine = [line for line in lines() if "event_id" in line]
    assert_ids(mine, order_id=paid, names=EVENTS_IN)


def test_each_published_event_has_a_line_and_addresses_are_masked(lines, paid):
    with context.working_for(context.Context("saga-op_" + "x" * 20, SAGA.traceparent)):
        cancel_order(order_id=paid)  # its id looks like an API token
    relay = Relay(using="default", transport=Memory())
    assert relay.step() == 3
    relay.close()
    published = [line for line in lines() if line["event"] == "event published"]
    assert [line["correlation_id"] for line in published] == ["saga-9", "saga-9", "saga-op_***"]
    assert all(line["timestamp"] and line["level"] == "info" for line in published)


def texts_in(node: ast.AST) -> set[str]:
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


#: The ends of the names of loggers and of `Outage`s, by their methods.
LOGGERS = {
    **dict.fromkeys(("debug", "info", "warning", "error", "exception"), ("log",)),
    **dict.fromkeys(("warn", "end"), ("outage", "_database", "_broker")),
}


def logged_by(call: ast.Call) -> set[str]:
    """Return the events that a call logs, as far as it has them as texts: `log.info("…")`."""
    match call:
        case ast.Call(
            func=ast.Attribute(value=logger, attr=method),
            args=[(ast.Constant() | ast.IfExp()) as event, *_],
        ):
            is_logger = ast.unparse(logger).endswith(LOGGERS.get(method, ()))
            return texts_in(event) if is_logger else set()
    return set().union(*(texts_in(word.value) for word in call.keywords if word.arg == "describe"))


def test_docs_logs_has_the_events_that_are_logged_and_no_others() -> None:
    page = (PROJECT / "docs" / "reference" / "logs.md").read_text()
    rows = re.findall(r"^\| ([^|`]+) \| [^|]*\|$", page, re.MULTILINE)
    listed = {event for row in rows for event in row.split("; ")} - {"event", "---"}
    trees = [ast.parse(file.read_text()) for file in files_of("config", *PACKAGES)]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    logged = set[str]().union(*map(logged_by, calls))
    assert len(logged) > 80
    assert logged - listed == set()
    # Some are chosen before the call, and some begin with a variable: "broker away, events wait".
    texts = set[str]().union(*map(texts_in, trees))
    ends = tuple(text for text in texts if len(text) > 10)
    assert {event for event in listed - texts if not event.endswith(ends)} == set()
