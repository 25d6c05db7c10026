"""The sums of each minute: right, repeatable, bounded, and read by index."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db import connection
from django.db.models import Max

from runtime.tasks import sum_minutes
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.plans import rows_without_index, statements
from tests.kit.words import (
    EmailNotification,
    Order,
    TrafficSum,
    Window,
    drain,
    id_floor,
    minutes,
    read_database_time,
)

pytestmark = pytest.mark.django_db
MINUTE = dt.timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _valkey(valkey_url):
    """Breakers are sampled from a Valkey of the test's own."""


@pytest.fixture(autouse=True)
def _one_minute(monkeypatch, db):
    """Stop the clock of the sums, because a minute may end within a test."""
    now = read_database_time()
    for module in ("runtime.charts.sums", __name__):
        monkeypatch.setattr(f"{module}.read_database_time", lambda: now)


def minutes_ago(count: float) -> dt.datetime:
    return read_database_time().replace(second=0, microsecond=0) - count * MINUTE


def mail_of(created: dt.datetime, *, sent: float | None = None, **fields) -> EmailNotification:
    """Write an e-mail as of then, sent `sent` seconds after it was created."""
    mail = make_mail(id=id_floor(created), created_at=created, **fields)
    if sent is not None:
        mail.status, mail.provider = "sent", "sendgrid"
        mail.sent_at = created + dt.timedelta(seconds=sent)
        mail.save()
    return mail


def stored(span: int = TrafficSum.MINUTE) -> dict[dt.datetime, minutes.Sums]:
    return minutes.read_spans(since={span: minutes_ago(600)}, until=minutes_ago(-60))[span]


def test_a_minute_has_what_happened_in_it():
    when = minutes_ago(3)
    order = make_order(id=id_floor(when), created_at=when)
    Order.objects.filter(id=order.id).update(created_at=when)
    fast = mail_of(when, sent=0.1)
    mail_of(when + dt.timedelta(milliseconds=1), sent=30)
    mail_of(when - MINUTE * 60, sent=3601)
    EmailNotification.objects.filter(id=fast.id).update(delivered_at=when + MINUTE, bounced_at=when)
    at = (when + dt.timedelta(seconds=5)).isoformat()
    mail_of(
        when - MINUTE,
        status="failed",
        errors=[{"at": (when - MINUTE).isoformat(), "provider": "ses"}, {"at": at, "provider": "ses"}],
    )
    sum_minutes()
    sums = stored()
    minute = sums[when]
    wanted = {"placed": 1, "sent": 3, "bounced": 1, "failed": 1, "failed:ses": 1, "delivered": 0}
    assert {series: minute.count(series) for series in wanted} == wanted
    assert sums[when + MINUTE].count("delivered") == 1 and sums[when - MINUTE].count("failed") == 1
    assert minute.quantile("sent", share=0.5) == pytest.approx(30, rel=0.1)
    assert minute.quantile("sent", share=0.99) == pytest.approx(3601, rel=0.1)


def test_an_order_counts_in_the_minute_at_which_it_was_placed_whatever_its_id():
    make_order(id=uuid.uuid4(), created_at=minutes_ago(3))
    sum_minutes()
    assert stored()[minutes_ago(3)].count("placed") == 1


def test_a_resent_mail_took_as_long_as_since_it_was_resent():
    when = minutes_ago(3)
    mail_of(when - 5 * MINUTE, sent=310, resent_at=when + dt.timedelta(seconds=8))
    sum_minutes()
    assert stored()[when].quantile("sent", share=0.5) == pytest.approx(2, rel=0.1)


def test_hours_add_their_minutes_up_and_old_minutes_go():
    old = minutes_ago(0) - minutes.KEEP_MINUTES - MINUTE
    minutes.store(TrafficSum.MINUTE, {old: minutes.Sums({"placed": 7}), minutes_ago(9): minutes.Sums()})
    mail_of(minutes_ago(2), sent=1)
    sum_minutes()
    hours = stored(TrafficSum.HOUR)
    assert sum(sums.count("sent") for sums in hours.values()) == 1
    assert not TrafficSum.objects.filter(span=TrafficSum.MINUTE, start=old).exists()


def test_running_again_and_at_once_changes_nothing():
    mail_of(minutes_ago(2), sent=1)
    sum_minutes()
    first = stored()
    sum_minutes()
    assert stored() == first


def test_what_a_webhook_tells_late_is_added():
    mail = mail_of(minutes_ago(3), sent=1)
    sum_minutes()
    EmailNotification.objects.filter(id=mail.id).update(delivered_at=minutes_ago(2))
    sum_minutes()
    assert stored()[minutes_ago(2)].count("delivered") == 1


def test_an_outage_is_made_up_for_a_bounded_number_of_minutes_at_a_time():
    minutes.store(TrafficSum.MINUTE, {minutes_ago(600): minutes.Sums()})
    mail_of(minutes_ago(500), sent=1)
    mail_of(minutes_ago(100), sent=1)
    assert minutes.sum_minutes() == minutes.MOST
    assert stored()[minutes_ago(500)].count("sent") == 1
    runs = 1
    while TrafficSum.objects.aggregate(last=Max("start"))["last"] < minutes_ago(1):
        assert minutes.sum_minutes() <= minutes.MOST
        runs += 1
    assert runs == 3
    assert stored()[minutes_ago(100)].count("sent") == 1


def test_an_open_breaker_is_seen_while_it_is_open():
    drain.gate().force("sendgrid", "open", reason="test")
    sum_minutes()
    assert stored()[minutes_ago(1)].samples["open:sendgrid"] == 1
    drain.gate().force("sendgrid", None, reason="test")
    sum_minutes()
    assert stored()[minutes_ago(1)].samples["open:sendgrid"] == 0


def test_it_reads_by_index_and_only_partitions_that_can_have_rows(filled):
    window = Window(since=minutes_ago(5), until=minutes_ago(0), span=60)
    with statements(at_most=3) as captured:
        minutes.read_window(window)
    selects = [sql for sql in captured if sql.startswith("SELECT")]
    assert len(selects) == 1
    assert any("enable_seqscan = off" in sql for sql in captured)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for statement in selects:
            assert rows_without_index(statement) == {}, statement
            cursor.execute("EXPLAIN " + statement)
            ahead = minutes_ago(0) + dt.timedelta(days=70)
            assert f"email_notifications_p{ahead:%Y%m}" not in str(cursor.fetchall())
