"""A short chaos run in every `make test`: the worst faults, once each, in a fixed order."""

from __future__ import annotations

import uuid

import pytest

from tests.chaos import faults
from tests.chaos.run import run
from tests.kit.audit import Entry, audit
from tests.kit.customers import Acknowledged
from tests.kit.listener import Seen
from tests.kit.waiting import PATIENCE

LETTER = """
    INSERT INTO inbound_dead_letters (id, topic, key, event_id, consumer, envelope, error)
    VALUES (gen_random_uuid(), 'payment.payment.succeeded.v1', 'key', gen_random_uuid(), 'test', '', '')
"""


@pytest.mark.flow
def test_the_worst_of_everything_once_loses_doubles_and_confuses_nothing():
    report = run(
        seed=1,
        seconds=0,
        rate=8,
        grace=PATIENCE,  # a machine under load decides nothing
        faults=[
            faults.kill_both_workers,
            faults.postgres_killed,
            faults.valkey_flushed,
            faults.disk_full,
            faults.postgres_frozen,
            faults.topic_of_wrong_type,
            faults.unusual_stream_ids,
            faults.malformed_entries,
            faults.accepted_then_504,
            faults.deploy,
        ],
    )
    assert report.passed, report.text()
    assert report.changes > 50 and report.mails > 20 and report.events > 50, report.text()


@pytest.mark.flow
def test_the_auditor_sees_each_kind_of_damage(shared_shop):
    """Else the test above would prove nothing."""
    shop = shared_shop
    order = shop.place()
    shop.pay(order)
    shop.until(lambda: shop.all_sent(1), "it is sent")
    (mail,) = [id for (id,) in shop.rows("id::text")]
    told = [
        Acknowledged(order, "order.placed", 1, "pending"),
        Acknowledged(order, "order.paid", 2, "paid"),
    ]

    def events(*, step: int = 1) -> list[Seen]:
        ids = shop.query("SELECT id::text FROM outbox_events ORDER BY sequence")
        return [Seen(id, order, number) for number, (id,) in enumerate(ids[::step], start=1)]

    shop.until(shop.all_published, "both events are published")

    def counts(**changed: object) -> dict[str, int]:
        facts = {"acknowledged": told, "accepted": {mail: 1}, "seen": events(), "losses": []}
        findings = audit(database=shop.postgres.url, **(facts | changed))
        return {kind: count for kind, count in findings.counts().items() if count}

    assert counts() == {}
    assert counts(accepted={}) == {"lost": 1}
    assert counts(accepted={mail: 2}) == {"doubled": 1}
    assert counts(accepted={mail: 2}, lost_answers={mail: 1}) == {}
    assert counts(accepted={mail: 3}, lost_answers={mail: 1}, in_flight={mail: 1}) == {}
    assert counts(accepted={mail: 3}, lost_answers={mail: 1}, in_flight={"another": 5}) == {"doubled": 1}
    assert counts(accepted={mail: 1, "unknown": 1}) == {"wrong": 1}
    discard = (
        "UPDATE email_notifications SET status = 'discarded', ended_by = 'overtaken', sent_at = NULL,"
        " last_error = 'overtaken by "
    )
    shop.query(f"{discard}order.cancelled'")  # which has no e-mail
    assert counts(accepted={}) == {"stuck": 1}
    shop.query(f"{discard}order.paid'")
    assert counts(accepted={}) == {}
    shop.query(
        "UPDATE email_notifications SET status = 'sent', ended_by = '', sent_at = now(), last_error = ''"
    )
    assert counts(acknowledged=[*told, Acknowledged(order, "order.completed", 3, "completed")]) == {
        "lost": 2,
        "wrong": 1,
    }
    assert counts(acknowledged=told[:1]) == {"wrong": 2}
    assert counts(seen=events(step=-1)) == {"out_of_order": 1}
    assert counts(seen=events(step=-1), held=["order.order.placed.v1"]) == {}
    assert counts(seen=events()[:1]) == {"lost": 1}
    assert counts(seen=events()[:1], losses=[(0.0, 4e9)]) == {}
    entry = Entry("payment.payment.succeeded.v1", "key", 10.0)
    assert counts(entries=[entry]) == {"stuck": 1}
    assert counts(entries=[entry], losses=[(0.0, 20.0)]) == {}
    assert counts(entries=[entry], losses=[(0.0, 5.0)]) == {"stuck": 1}
    shop.query(LETTER)
    assert counts(entries=[entry]) == {}
    shop.query(LETTER)
    assert counts(entries=[entry]) == {"doubled": 1}
    assert counts(jobs={str(uuid.uuid4()): ["done"]}) == {"stuck": 1}
    shop.kill("relay")  # else it may publish them again before they are looked at
    shop.query("UPDATE outbox_events SET published_at = NULL")
    assert counts() == {"stuck": 2}
