"""The admin's first page: counts that link to their lists, charts, the menu, and what it costs."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from outbox.admin import front
from tests.kit.mails import make_mail, make_mails
from tests.kit.months import fill, make_partition
from tests.kit.people import staff_client
from tests.kit.plans import rows_without_index
from tests.kit.words import Heartbeat, OutboxEvent, TrafficSum, minutes, read_database_time

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _breakers(valkey_url):
    from notifications.delivery import process

    process.start_anew()
    yield
    process.start_anew()


def tile(client, label):
    tiles = client.get("/admin/").context["tiles"]
    (found,) = (one for one in tiles if one["label"].startswith(label))
    return found


def test_each_count_is_that_of_the_list_it_links_to(admin_client):
    make_mails(3, status="dead_lettered")
    make_mail(status="suppressed")
    old = read_database_time() - dt.timedelta(hours=2)
    errors = [{"at": old.isoformat(), "provider": "ses", "outcome": "transient", "text": "no"}]
    mail = make_mail(status="failed", errors=errors)
    type(mail).objects.filter(id=mail.id).update(created_at=old)
    values = {"aggregate_type": "t", "event_type": "t.v1", "sequence": 1, "payload": {}, "shard": 1}
    for number in range(2):
        OutboxEvent.objects.create(
            aggregate_id="0" * 31 + str(number), dead_lettered_at=Now(), retry_count=4, **values
        )
    for label, count in (
        ("dead letters", 3),
        ("failing for an hour", 1),
        ("suppressed", 1),
        ("dead events", 2),
        ("events waiting", 0),
        ("inbound", 0),
    ):
        found = tile(admin_client, label)
        assert found["value"] == str(count), label
        if count:
            assert len(admin_client.get(found["url"]).context["cl"].result_list) == count, label


def test_a_count_stops_at_its_limit(admin_client, monkeypatch):
    monkeypatch.setattr(front, "COUNT_LIMIT", 4)
    make_mails(6, status="dead_lettered")
    assert tile(admin_client, "dead letters")["value"] == "4+"


def test_an_open_or_forced_breaker_and_a_late_job_stand_out(admin_client):
    from notifications.delivery import process

    for name in ("poll", "sums", "partitions"):
        Heartbeat.beat(name=name)
    assert tile(admin_client, "providers")["bad"] is False
    assert tile(admin_client, "regular jobs")["bad"] is False
    process.gate().force("sendgrid", "open", reason="test")
    assert tile(admin_client, "sendgrid forced open")["bad"] is True
    Heartbeat.objects.filter(name="poll").update(beat_at=Now() - dt.timedelta(hours=1))
    assert tile(admin_client, "late: poll")["bad"] is True


def test_rows_that_hold_a_partition_are_counted(admin_client):
    from tests.kit.words import EmailNotification

    assert tile(admin_client, "rows that hold")["value"] == "0"
    fill(make_partition(EmailNotification, back=4), 2, status="dead_lettered")
    assert tile(admin_client, "rows that hold")["value"] == "2"


@pytest.mark.parametrize(("stretch", "span"), [("hour", 60), ("day", 60), ("month", 3600)])
def test_a_chart_shows_what_was_summed_and_where_nothing_was(admin_client, stretch, span):
    start = (read_database_time() - dt.timedelta(seconds=2 * span)).replace(second=0, microsecond=0)
    start = start.replace(minute=0) if span == 3600 else start
    minutes.store(span, {start: minutes.Sums({"placed": 1234, "sent:ses": 5}, {"sent": {"24": 5}})})
    page = admin_client.get("/admin/", {"range": stretch})
    numbers = {chart["title"]: chart["number"] for chart in page.context["charts"]}
    assert numbers["Orders placed"] == "1,234" and numbers["Sent"] == "5"
    assert numbers["Commit → sent, p50 · p99"] == "70 ms · 70 ms"
    html = page.content.decode()
    assert ": 1,234</title>" in html and "not summed</title>" in html
    assert "Orders placed: 1,234 in all" in html


def test_the_refreshed_part_is_the_page_without_its_frame(admin_client):
    part = admin_client.get("/admin/", {"part": "1"}).content.decode()
    assert part in admin_client.get("/admin/").content.decode() or "What needs a person now" in part
    assert "<html" not in part and "user-tools" not in part


def test_a_person_sees_what_their_permissions_give(admin_client):
    page = staff_client("view_order").get("/admin/")
    assert [chart["title"] for chart in page.context["charts"]] == ["Orders placed"]
    assert [tile["label"] for tile in page.context["tiles"]] == ["stuck orders"]
    assert [item["title"] for item in page.context["menu"]] == ["Overview", "Orders"]
    nobody = staff_client(name="nobody").get("/admin/").content.decode()
    assert "You have no permissions yet" in nobody


def test_celerys_tables_users_and_tokens_are_under_set_up(admin_client):
    menu = [item["title"] for item in admin_client.get("/admin/").context["menu"]]
    assert menu[0] == "Overview" and menu[-1] == "Set-up" and len(menu) == 13
    page = admin_client.get("/admin/set-up/").content.decode()
    for name in ("user", "group", "apitoken", "periodictask"):
        assert f"/{name}/" in page
    assert "/emailnotification/" not in page.partition("<main")[2]


def log_acts(count: int) -> None:
    """Write acts of one user over the last month."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_admin_log (action_time, user_id, object_id, object_repr, action_flag,"
            " change_message) SELECT now() - n * interval '60 s', (SELECT min(id) FROM auth_user), n::text,"
            " 'E-mail', 2, 'Resent.' FROM generate_series(%s, 1, -1) AS n",
            [count],
        )


@pytest.mark.django_db(transaction=True)
def test_a_page_over_many_rows_takes_few_statements_and_no_sequential_scan(admin_client):
    make_mails(40_000, status="sent")
    make_mails(300, status="dead_lettered")
    hours = {read_database_time() - dt.timedelta(hours=n): minutes.Sums({"placed": 1}) for n in range(9000)}
    minutes.store(TrafficSum.HOUR, hours)
    log_acts(40_000)
    with connection.cursor() as cursor:
        cursor.execute(
            "VACUUM ANALYZE django_admin_log, email_notifications, traffic_sums, outbox_events, dead_events"
        )
    for path in ("/admin/", "/admin/?range=month", "/admin/admin/logentry/", "/admin/admin/logentry/?age=1h"):
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(path).status_code == 200
        assert len(captured) <= 10
        for statement in (entry["sql"] for entry in captured):
            if re.match("SELECT|WITH", statement.strip()):
                assert rows_without_index(statement) == {}, statement


def test_no_list_takes_more_than_ten_statements(valkey_url):
    user = User.objects.create_user("operator", is_staff=True)
    user.groups.add(Group.objects.get(name="operator"))
    client = Client()
    client.force_login(user)
    counts = {}
    for item in client.get("/admin/").context["menu"]:
        client.get(item["url"])
        with CaptureQueriesContext(connection) as captured:
            assert client.get(item["url"]).status_code == 200
        counts[item["title"]] = len(captured)
    assert len(counts) > 8
    assert {title: count for title, count in counts.items() if count > 10} == {}
