"""The history of the pictures is one that the charts and lists can show."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter

import jsonschema
import pytest

from tests.browser.history import MARK, make_history, write_history
from tests.kit.mails import statuses
from tests.kit.months import tidy
from tests.kit.words import (
    EVENTS,
    DomainEvent,
    EmailNotification,
    Order,
    TrafficSum,
    minutes,
    read_database_time,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "owner"])


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield


def test_it_writes_orders_mails_and_events_as_they_would_be_and_sums_them(admin_client):
    write_history(orders=500, days=3)
    assert Order.objects.filter(correlation_id=MARK).count() == 500
    assert {"sent", "dead_lettered"} <= statuses().keys()
    assert not {"pending", "processing"} & statuses().keys()
    assert not EmailNotification.objects.exclude(recipient_email__endswith="@demo.example.com").exists()
    mail = EmailNotification.objects.filter(status="sent").latest("id")
    assert "DEMO-0" in mail.subject + mail.body_text
    for topic, schema in ((event.topic, json.loads(event.schema.read_text())) for event in EVENTS.values()):
        for event in DomainEvent.objects.filter(event_type=topic)[:3]:
            jsonschema.validate(event.payload, schema)
    now = read_database_time()
    for span in (TrafficSum.MINUTE, TrafficSum.HOUR):
        sums = minutes.read_spans(since={span: now - dt.timedelta(days=4)}, until=now)[span]
        whole = minutes.Sums.total(sums.values())
        assert (
            whole.count("placed") > 490 and whole.count("sent") > 300 and whole.samples["open:sendgrid"] > 0
        )
    assert admin_client.get("/admin/?range=month").status_code == 200


def test_it_has_every_end_of_an_email():
    now = dt.datetime(2028, 2, 29, 3, 53, tzinfo=dt.UTC)
    since = now - dt.timedelta(days=3)
    history = make_history(orders=500, days=3, now=now, oldest={EmailNotification: since, DomainEvent: since})
    mails, events = history[EmailNotification], history[DomainEvent]
    ends = Counter(mail.status for mail in mails)
    assert {"sent", "dead_lettered", "suppressed"} <= ends.keys()
    assert ends.keys() <= {"sent", "dead_lettered", "discarded", "suppressed", "failed"}
    assert all(since <= row.created_at < now for row in mails + events)


def test_the_broker_refused_a_few_events_of_the_history(settings):
    settings.NOTIFY_ON = []
    now = dt.datetime(2026, 11, 22, 8, tzinfo=dt.UTC)
    since = now - dt.timedelta(days=3)
    history = make_history(
        orders=5000, days=3, now=now, oldest={EmailNotification: since, DomainEvent: since}
    )
    dead = [event for event in history[DomainEvent] if event.dead_lettered_at]
    assert 0 < len(dead) < 50
    assert all(event.published_at is None and event.last_error for event in dead)
