"""Claims and settlements of several workers at once, on real locks."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
import time
from collections import Counter

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.races import together
from tests.kit.words import EmailNotification, Outcome, Status, Verdict, by_hand

pytestmark = pytest.mark.django_db(transaction=True)
rows = EmailNotification.objects
ACCEPTED = Outcome(Verdict.ACCEPTED, "test", "m")


def test_eight_threads_claim_two_thousand_rows_each_once():
    make_mails(2000)

    def claim_all(_):
        mine = []
        misses = 0
        while misses < 3:
            batch = rows.claim(limit=50)
            mine += [row.id for row in batch]
            misses = 0 if batch else misses + 1
        return mine

    claimed = Counter(id_ for mine in together(8, claim_all) for id_ in mine)
    assert len(claimed) == 2000
    assert set(claimed.values()) == {1}
    assert statuses() == {"processing": 2000}


def test_a_claim_passes_by_rows_that_another_has_locked():
    make_mails(10)
    with transaction.atomic():
        locked = {row.id for row in rows.due().select_for_update()[:5]}
        (others,) = together(1, lambda _: {row.id for row in rows.claim(limit=10)})
    assert len(others) == 5
    assert not others & locked


def test_a_stale_failure_changes_nothing_while_a_stale_acceptance_makes_the_row_sent(settings):
    settings.AMBIGUOUS_HOLD_SECONDS = 0
    make_mail()
    (stale,) = rows.claim(limit=1)
    rows.update(claimed_at=Now() - dt.timedelta(seconds=301))
    rows.recover(lease_seconds=300)
    (current,) = rows.claim(limit=1)
    failure = Outcome(Verdict.TRANSIENT, "test", code="503")
    assert rows.settle([(stale, failure)]) == []
    assert rows.get().claim_token == current.claim_token
    (change,) = rows.settle([(stale, ACCEPTED)])
    assert change.status == "sent"
    assert rows.settle([(current, failure)]) == []
    assert rows.get().status == Status.SENT


def test_settling_overlapping_sets_in_different_orders_never_deadlocks():
    make_mails(60)
    claimed = rows.claim(limit=60)
    deadlocks = _deadlocks()

    def settle(number):
        chance = random.Random(number)
        for _ in range(40):
            some = chance.sample(claimed, 20)
            outcome = Outcome(Verdict.RETURNED) if number % 2 else Outcome(Verdict.TRANSIENT, code="503")
            rows.settle([(row, outcome) for row in some])
            rows.recover(lease_seconds=0)
            by_hand.change(ids=[row.id for row in chance.sample(claimed, 5)], act=by_hand.RESEND)
            rows.claim(limit=20)

    together(6, settle)  # a deadlock would raise OperationalError in one of them
    assert _deadlocks() == deadlocks


def _deadlocks():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return cursor.fetchone()[0]


def test_two_recoveries_at_once_take_each_row_once():
    make_mails(300)
    rows.claim(limit=300)
    rows.update(claimed_at=Now() - dt.timedelta(seconds=400))
    taken = Counter(
        change.id for some in together(4, lambda _: rows.recover(lease_seconds=300)) for change in some
    )
    assert set(taken.values()) == {1}
    assert set(rows.values_list("retry_count", flat=True)) <= {0, 1}
    rows.recover(lease_seconds=300)
    assert set(rows.values_list("retry_count", flat=True)) == {1}


def test_a_worker_whose_clock_is_five_minutes_ahead_takes_no_live_claim(monkeypatch):
    make_mail(next_attempt_at=Now() + dt.timedelta(seconds=120))
    make_mail(status=Status.PROCESSING, claimed_at=Now() - dt.timedelta(seconds=100))
    before = list(rows.order_by("id").values())
    real_time, real_ns = time.time, time.time_ns
    monkeypatch.setattr("time.time", lambda: real_time() + 300)
    monkeypatch.setattr("time.time_ns", lambda: real_ns() + 300 * 10**9)
    monkeypatch.setattr(
        "django.utils.timezone.now", lambda: dt.datetime.fromtimestamp(real_time() + 300, dt.UTC)
    )
    assert rows.recover(lease_seconds=300) == []
    assert rows.claim(limit=10) == []
    assert list(rows.order_by("id").values()) == before


def test_a_resend_and_a_claim_at_once_send_the_row_once():
    dead = [make_mail(status=Status.DEAD_LETTERED) for _ in range(20)]
    ids = [row.id for row in dead]

    def work(number):
        if number < 3:
            return [change.id for change in by_hand.change(ids=ids, act=by_hand.RESEND)[0]]
        mine = []
        for _ in range(20):
            mine += [row.id for row in rows.claim(limit=5)]
        return mine

    results = together(6, work)
    requeued = Counter(id_ for result in results[:3] for id_ in result)
    claimed = Counter(id_ for result in results[3:] for id_ in result)
    assert set(requeued.values()) == {1} and len(requeued) == 20
    assert set(claimed.values()) <= {1}


def test_a_reader_never_waits_for_a_claim_and_a_claim_never_for_a_reader():
    make_mails(5)
    ready, done = threading.Event(), threading.Event()

    def reader():
        with transaction.atomic():
            list(rows.all())
            ready.set()
            done.wait(20)
        connections.close_all()

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        assert ready.wait(10)
        assert len(rows.claim(limit=5)) == 5
    finally:
        done.set()
        thread.join()


def _read(node):
    """How many rows a plan's node looked at."""
    return (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]


class TestPlan:
    """With 200,000 sent rows beside 1,000 due ones."""

    @pytest.fixture(autouse=True)
    def many(self):
        make_mails(200_000, status="sent")
        make_mails(1000)
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE email_notifications")

    def explain(self, statement: str) -> list[dict]:
        """Every node of a statement's plan, as executed."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement)
            (answer,) = cursor.fetchone()
            transaction.set_rollback(True)
        plan = answer if isinstance(answer, list) else json.loads(answer)
        nodes, todo = [], [plan[0]["Plan"]]
        while todo:
            node = todo.pop()
            nodes.append(node)
            todo += node.get("Plans", [])
        return nodes

    def test_recovering_settling_and_claiming_read_by_indexes_and_about_as_many_rows_as_they_change(self):
        # In this order, so that recovery finds only these twenty.
        claimed = rows.claim(limit=20)
        self.check_recovery()
        self.check_settling(claimed)
        self.check_claiming()

    def check_recovery(self):
        with CaptureQueriesContext(connection) as captured:
            rows.recover(lease_seconds=300)
        (select,) = (query["sql"] for query in captured if query["sql"].startswith("SELECT"))
        scans = [node for node in self.explain(select) if "Scan" in node["Node Type"]]
        assert not [node for node in scans if node["Node Type"] == "Seq Scan" and _read(node)]
        assert sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans) <= 40

    def check_settling(self, claimed):
        with CaptureQueriesContext(connection) as captured:
            rows.settle([(row, ACCEPTED) for row in claimed])
        (update,) = (query["sql"] for query in captured if "jsonb_to_recordset" in query["sql"])
        nodes = self.explain(update)
        assert not [node for node in nodes if node["Node Type"] == "Seq Scan" and _read(node)]

    def check_claiming(self):
        with CaptureQueriesContext(connection) as captured:
            assert len(rows.claim(limit=100)) == 100
        (claim,) = (query["sql"] for query in captured)
        # An empty partition costs nothing, whichever way it is scanned.
        scans = [
            node
            for node in self.explain(claim)
            if "Scan" in node["Node Type"] and "Relation Name" in node and _read(node)
        ]
        assert all("Index Name" in node for node in scans), scans
        due = [node for node in scans if "next_attempt_at" in node["Index Name"]]
        by_id = [node for node in scans if "pkey" in node["Index Name"]]
        assert len(due) + len(by_id) == len(scans), scans
        assert sum(map(_read, due)) <= 2 * 100 + 100  # the fresh quarter steps over the first part's
        assert sum(map(_read, by_id)) == 100
