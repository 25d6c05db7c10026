"""What is unfinished is counted at a bounded cost: by rows read, not by time."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import connection
from django.db.models.functions import Now

from events.conditions import UNFINISHED_EVENTS, Events
from notifications.conditions import REFUSED_SENDERS, UNFINISHED_EMAILS, Rows
from runtime.conditions import HEARTBEATS
from tests.kit import plans
from tests.kit.admin import EVENTS, MAILS, ORDERS, statements_of
from tests.kit.mails import make_mail
from tests.kit.words import conditions, read_database_time
from web.admin import tabs

HOUR = dt.timedelta(hours=1)


def unfinished() -> Rows:
    return conditions.read_facts(now=read_database_time())[UNFINISHED_EMAILS]


def doubt() -> list[dict[str, Any]]:
    at = (read_database_time() - HOUR).isoformat()
    return [{"at": at, "provider": "sendgrid", "outcome": "ambiguous", "code": "", "text": ""}]


def test_an_empty_table_has_nothing_unfinished(db):
    facts = conditions.read_facts(now=read_database_time())
    assert facts[UNFINISHED_EMAILS] == Rows()
    assert facts[UNFINISHED_EVENTS] == Events() and facts[HEARTBEATS] == {}


def test_ages_are_those_of_the_oldest_row_and_held_ones_are_apart(db):
    make_mail(created_at=Now() - HOUR, next_attempt_at=Now() + HOUR)  # postponed by an open breaker
    make_mail()
    make_mail(status="failed", created_at=Now() - 2 * HOUR, next_attempt_at=Now() + HOUR, errors=doubt())
    make_mail(status="processing", created_at=Now() - HOUR / 2)
    make_mail(status="dead_lettered", created_at=Now() - 5 * HOUR)
    make_mail(status="sent")
    rows = unfinished()
    assert (rows.pending, rows.failed, rows.held, rows.processing, rows.dead_lettered) == (2, 1, 1, 1, 1)
    assert 3600 <= rows.waiting_seconds < 3700 and rows.unfinished_seconds == rows.waiting_seconds
    assert 1800 <= rows.processing_seconds < 1900
    assert rows.due_seconds < 100 and rows.claimed_seconds < 100


def test_a_resent_row_is_as_old_as_its_resend(db):
    make_mail(created_at=Now() - 2 * HOUR, resent_at=Now() - HOUR / 2)
    assert 1800 <= unfinished().waiting_seconds < 1900


def test_a_look_at_thousands_of_unfinished_rows_stops_after_the_limit(filled, monkeypatch):
    monkeypatch.setattr(conditions, "MOST", plans.DUE // 10)
    with plans.statements(at_most=12) as read:
        rows = unfinished()
    assert rows.pending == conditions.MOST
    (of_rows,) = [sql for sql in read if "dead_lettered" in sql and "email_notifications" in sql]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pg_class")  # as the autovacuum does within minutes
    # the unfinished e-mails, the dead letters, and the e-mails whose sender was refused
    assert conditions.MOST <= plans.plan_of(of_rows).visited <= 3 * conditions.MOST


def test_the_numbers_of_tabs_read_a_bounded_number_of_rows(filled, admin_client, monkeypatch):
    monkeypatch.setattr(tabs, "MOST", 50)
    for path, least in ((MAILS, tabs.MOST), (ORDERS, 1), (EVENTS, 0)):
        (counts,) = [sql for sql in statements_of(admin_client, path) if "AS few (state)" in sql]
        groups = counts.count("AS few (state)")
        assert least <= plans.plan_of(counts).visited <= groups * (tabs.MOST + 1), path


def test_the_search_for_a_senders_acceptance_reads_the_emails_of_few_minutes(filled):
    now = read_database_time()
    refused = {"at": (now - dt.timedelta(minutes=1)).isoformat(), "provider": "ses"}
    errors = [refused | {"outcome": "sender_refused", "code": "", "text": ""}]
    make_mail(profile="shop-a", from_email="a@shop-a.test", errors=errors)
    plan = plans.plan_of(REFUSED_SENDERS.select(now))
    assert any("date_bin" in name for name in plan.indexes)
    # the due e-mails, and those that were sent of late with their neighbours in the table
    assert plan.visited <= plans.DUE + 2 * plans.SENT_NOW
    (row,) = conditions.read_facts(now=now)[REFUSED_SENDERS]
    assert row["profile"] == "shop-a"
