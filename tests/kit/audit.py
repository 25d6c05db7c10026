"""The audit at the end of a run with customers: find what is lost, doubled, stuck, out of order or wrong.

Each finding is a sentence. A run without findings passes.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg

from tests.kit.customers import Acknowledged, Customers
from tests.kit.listener import Listener, Seen
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE, until

#: The same as the admin's action.
REPUBLISH = """
    UPDATE outbox_events SET dead_lettered_at = NULL, retry_count = 0, next_attempt_at = now()
    WHERE dead_lettered_at IS NOT NULL AND published_at IS NULL AND discarded_at IS NULL RETURNING id
"""
MAILS = {"order.paid", "order.completed", "order.cancelled", "order.refunded", "order.part_refunded"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A stream's entry that the consumer must settle as a dead letter. `key` is unique."""

    topic: str
    key: str
    at: float  # epoch seconds


@dataclasses.dataclass
class Findings:
    """The differences between the records, by kind."""

    lost: list[str] = dataclasses.field(default_factory=list)
    doubled: list[str] = dataclasses.field(default_factory=list)
    stuck: list[str] = dataclasses.field(default_factory=list)
    out_of_order: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    #: Duplicates that the guarantee allows if no webhook reports an e-mail.
    doubled_after_lost_answers: int = 0
    doubled_after_crashes: int = 0
    events_repeated: int = 0
    events_gone_with_the_broker: int = 0

    def counts(self) -> dict[str, int]:
        kinds = ("lost", "doubled", "stuck", "out_of_order", "wrong")
        return {kind: len(getattr(self, kind)) for kind in kinds}


def audit(
    *,
    database: str,
    acknowledged: Sequence[Acknowledged],
    accepted: Mapping[str, int],
    seen: Sequence[Seen],
    losses: Sequence[tuple[float, float]],
    held: Collection[str] = (),
    lost_answers: Mapping[str, int] | None = None,
    in_flight: Mapping[str, int] | None = None,
    entries: Sequence[Entry] = (),
    jobs: Mapping[str, Collection[str]] | None = None,
    other_shops_orders: Collection[str] = (),
    other_shops_events: Collection[str] = (),
) -> Findings:
    """Compare the three records.

    `accepted` is how often the provider took each notification, `seen` the events on the broker in their
    order, `losses` when the broker lost its data (epoch seconds). `held` are the topics that took nothing for
    a while: their events wait alone, so their order is kept within the topic and not over all.

    Each notification may be doubled once for each answer in `lost_answers`, and once for each crash that cut
    it off `in_flight`; by default no notification may. `entries` must be dead letters, once each, and `jobs`
    must be in one of their states. `other_shops_orders` were paid. Only our own orders have events of ours.
    """
    findings = Findings()
    with psycopg.connect(database, autocommit=True) as connection:

        def rows(sql: str) -> list[tuple[Any, ...]]:
            return connection.execute(sql).fetchall()

        orders = {
            id: (status, version)
            for id, status, version in rows("SELECT id::text, status, version FROM orders")
        }
        own = {id: orders[id] for (id,) in rows("SELECT id::text FROM orders WHERE source = ''")}
        events = rows(
            "SELECT id::text, aggregate_id::text, event_type, sequence, extract(epoch FROM published_at)"
            " FROM outbox_events WHERE aggregate_type = 'order' ORDER BY position"
        )
        mails = rows(
            "SELECT id::text, order_id::text, event_type, idempotency_key,"
            " CASE WHEN status = 'discarded' THEN last_error ELSE status END FROM email_notifications"
        )
        letters = Counter(key for (key,) in rows("SELECT key FROM inbound_dead_letters"))
        states = dict(rows("SELECT id::text, state FROM bulk_jobs"))
    _acknowledged(findings, acknowledged, orders, events, mails)
    _other_shops(findings, other_shops_orders, orders, mails)
    _mails(findings, mails, accepted, lost_answers or {}, in_flight or {})
    _events(
        findings,
        events,
        own,
        [event for event in seen if event.event not in other_shops_events],
        losses,
        held,
    )
    _entries(findings, entries, letters, losses)
    for id, allowed in (jobs or {}).items():
        if states.get(id) not in allowed:
            findings.stuck.append(f"the job {id} is {states.get(id)} and not {' or '.join(allowed)}")
    return findings


def _acknowledged(
    findings: Findings,
    acknowledged: Sequence[Acknowledged],
    orders: Mapping[str, tuple[str, int]],
    events: Sequence[tuple[Any, ...]],
    mails: Sequence[tuple[Any, ...]],
) -> None:
    """Check that every order is as its customer was told, and that no other order exists."""
    told = {(change.order, change.event, change.version) for change in acknowledged}
    written = {
        (order, topic[len("order.") : -len(".v1")], sequence) for _, order, topic, sequence, _ in events
    }
    keys = {key for _, _, _, key, _ in mails}
    for order, event, version in sorted(told - written):
        findings.lost.append(f"{event} #{version} of {order} was acknowledged and has no event")
    for order, event, version in sorted(written - told):
        findings.wrong.append(f"{event} #{version} of {order} was done and never acknowledged")
    for order, event, version in sorted(told):
        if event in MAILS and f"{order}:{event}:{version}" not in keys:
            findings.lost.append(f"{event} #{version} of {order} was acknowledged and has no e-mail")
    last = {change.order: change for change in sorted(acknowledged, key=lambda change: change.version)}
    for order, change in last.items():
        if orders.get(order) != (change.status, change.version):
            findings.wrong.append(
                f"{order} is {orders.get(order)}, acknowledged was {change.status} #{change.version}"
            )
    for key, count in Counter(key for _, _, _, key, _ in mails).items():
        if count > 1:
            findings.doubled.append(f"there are {count} e-mails for {key}")


def _other_shops(
    findings: Findings,
    paid: Collection[str],
    orders: Mapping[str, tuple[str, int]],
    mails: Sequence[tuple[Any, ...]],
) -> None:
    """Check that each order of another shop is paid, and has the one e-mail about it."""
    keys = {key for _, _, _, key, _ in mails}
    for order in paid:
        if orders.get(order) != ("paid", 2):
            findings.wrong.append(f"{order} of the other shop is {orders.get(order)}, and was paid")
        if f"{order}:order.paid:2" not in keys:
            findings.lost.append(f"the payment of {order} of the other shop has no e-mail")


def _mails(
    findings: Findings,
    mails: Sequence[tuple[Any, ...]],
    accepted: Mapping[str, int],
    lost_answers: Mapping[str, int],
    in_flight: Mapping[str, int],
) -> None:
    written = {(order, event) for _, order, event, _, _ in mails}
    for id, order, event, _, status in mails:
        count = accepted.get(id, 0)
        if status != "sent" and (order, status.removeprefix("overtaken by ")) not in written:
            findings.stuck.append(f"the e-mail {event} of {order} is {status}")
        if status == "sent" and not count:
            findings.lost.append(
                f"the e-mail {event} of {order} is marked sent, and the provider has not got it"
            )
        repeats = max(0, count - 1)
        after_lost_answers = min(repeats, lost_answers.get(id, 0))
        after_crashes = min(repeats - after_lost_answers, in_flight.get(id, 0))
        findings.doubled_after_lost_answers += after_lost_answers
        findings.doubled_after_crashes += after_crashes
        if repeats > after_lost_answers + after_crashes:
            findings.doubled.append(f"the provider took the e-mail {event} of {order} {count} times")
    for id in set(accepted) - {mail[0] for mail in mails}:
        findings.wrong.append(f"the provider has an e-mail {id} that the database does not know")


def _events(
    findings: Findings,
    events: Sequence[tuple[Any, ...]],
    orders: Mapping[str, tuple[str, int]],
    seen: Sequence[Seen],
    losses: Sequence[tuple[float, float]],
    held: Collection[str],
) -> None:
    sequences: dict[str, list[int]] = defaultdict(list)
    written = {}
    times = Counter(event.event for event in seen)
    for id, order, topic, sequence, published in events:
        written[id] = sequence, topic
        sequences[order].append(sequence)
        if published is None:
            findings.stuck.append(f"{topic} #{sequence} of {order} is not published")
        elif id not in times:
            if any(since <= float(published) <= until for since, until in losses):
                findings.events_gone_with_the_broker += 1
            else:
                findings.lost.append(
                    f"{topic} #{sequence} of {order} is marked published, and was not on the broker"
                )
    for order, (_, version) in orders.items():
        if sequences[order] != list(range(1, version + 1)):
            findings.wrong.append(f"the events of {order} are {sequences[order]}, its version is {version}")
    #: The highest sequence so far of an order, or of one of its held topics, and when it came.
    latest: dict[tuple[str, str], tuple[int, int]] = {}
    first_seen = set()
    for id, order, at in seen:
        if id not in written:
            findings.wrong.append(f"the broker has an event {id} that the database does not know")
            continue
        if id in first_seen:
            findings.events_repeated += 1
            continue
        first_seen.add(id)
        own, topic = written[id]
        line = order, topic if topic in held else ""
        highest, when = latest.get(line, (0, 0))
        if own < highest and at > when:
            findings.out_of_order.append(f"#{own} of {order} came after #{highest}")
        if own > highest:
            latest[line] = own, at


def _entries(
    findings: Findings,
    entries: Sequence[Entry],
    letters: Mapping[str, int],
    losses: Sequence[tuple[float, float]],
) -> None:
    for topic, key, at in ((entry.topic, entry.key, entry.at) for entry in entries):
        count = letters.get(key, 0)
        if count > 1:
            findings.doubled.append(f"there are {count} dead letters of the entry {key} of {topic}")
        elif not count and any(until >= at for _, until in losses):
            findings.events_gone_with_the_broker += 1
        elif not count:
            findings.stuck.append(f"the entry {key} of {topic} was neither processed nor dead-lettered")


def expect_nothing_wrong(shop: Shop, customers: Customers, listener: Listener) -> None:
    """Check that nothing was lost or doubled, and that no person had to act. The customers have stopped."""
    by_hand = settle(shop)
    wait_for_listener(listener)
    listener.stop()
    findings = audit(
        database=shop.postgres.url,
        acknowledged=customers.acknowledged,
        accepted=shop.accepted(),
        seen=listener.seen,
        losses=[],
    )
    findings.wrong += customers.wrong
    assert not any(findings.counts().values()), (findings, shop.keep_logs())
    assert by_hand == (0, 0)


def settle(shop: Shop) -> tuple[int, int]:
    """Wait until no row is due any more. Resend dead e-mails and republish dead events, as a person would.

    Returns how many of each there were.
    """
    dead = inbound_dead_letters = 0
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        left = shop.rows("id::text, status")
        letters = [id for id, status in left if status == "dead_lettered"]
        for id in letters:
            if shop.call("POST", f"/notifications/{id}/resend").status_code == 202:
                dead += 1
        inbound_dead_letters += len(shop.query(REPUBLISH))
        unpublished = shop.query("SELECT count(*) FROM outbox_events WHERE published_at IS NULL")
        ended = all(status in ("sent", "discarded") for _, status in left)
        if ended and unpublished == [(0,)]:
            break
        time.sleep(0.5)
    return dead, inbound_dead_letters


def wait_for_listener(listener: Listener) -> None:
    """Wait until the listener has seen what the relay has just published."""
    until(listener.has_read_all, "the listener has read every stream")
