"""The admin's first page: counts that link to their lists, charts, the menu, and what it costs."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.db.models.functions import Now

from tests.kit.admin import dead_event, listed
from tests.kit.mails import make_mail, make_mails
from tests.kit.months import fill, make_partition
from tests.kit.orders import make_order
from tests.kit.people import staff_client
from tests.kit.words import BulkJob, EmailNotification, Heartbeat, drain, minutes, read_database_time
from web.admin import tiles

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]


def tile(client, label):
    tiles = client.get("/admin/").context["tiles"]
    (match,) = (tile for tile in tiles if tile["label"].startswith(label))
    return match


def test_each_count_is_that_of_the_list_it_links_to(admin_client):
    make_mails(3, status="dead_lettered")
    make_mail(status="suppressed")
    old = read_database_time() - dt.timedelta(hours=2)
    errors = [{"at": old.isoformat(), "provider": "ses", "outcome": "transient", "text": "no"}]
    mail = make_mail(status="failed", errors=errors)
    EmailNotification.objects.filter(id=mail.id).update(created_at=old)
    for _ in range(2):
        dead_event()
    BulkJob.objects.create(action="notifications.resend", state="failed", finished_at=Now())
    counts = {
        "dead letters": 3,
        "failing for an hour": 1,
        "suppressed": 1,
        "dead events": 2,
        "failed jobs": 1,
        "events waiting": 0,
        "inbound": 0,
    }
    for label, count in counts.items():
        shown = tile(admin_client, label)
        assert shown["value"] == str(count), label
        if count:
            assert len(listed(admin_client, shown["url"])) == count, label
    assert tile(admin_client, "failed jobs")["bad"] is True


def test_what_is_well_is_one_line_and_an_alarm_a_line_of_its_own(admin_client):
    make_mails(3, status="dead_lettered")
    make_mail(status="suppressed")
    for name in ("poll", "sums", "partitions"):
        Heartbeat.beat(name=name)
    page = admin_client.get("/admin/").content.decode()
    alarms, notes, calm = (
        re.sub("<.*?>", "", re.split(end, page.split(begin)[1])[0])
        for begin, end in (('class="alarms">', "</ul>"), ("tile-notes", "</p>"), ("tile-calm", "</p>"))
    )
    assert "3 dead letters" in alarms and "suppressed" not in alarms
    assert notes.endswith("Also: 1 suppressed.")
    assert "failed jobs" in calm and "regular jobs" in calm
    assert ", dead letters" not in calm and page.count("tile-calm") == 1


def test_a_count_stops_at_its_limit(admin_client, monkeypatch):
    monkeypatch.setattr(tiles, "COUNT_LIMIT", 4)
    make_mails(6, status="dead_lettered")
    assert tile(admin_client, "dead letters")["value"] == "4+"


def test_an_open_or_forced_breaker_and_a_late_job_stand_out(admin_client):
    for name in ("poll", "sums", "partitions"):
        Heartbeat.beat(name=name)
    assert tile(admin_client, "providers")["bad"] is False
    assert tile(admin_client, "regular jobs")["bad"] is False
    drain.gate().force("sendgrid", "open", reason="test")
    assert tile(admin_client, "no e-mail is sent, because sendgrid is forced open")["bad"] is True
    Heartbeat.objects.filter(name="poll").update(beat_at=Now() - dt.timedelta(hours=1))
    assert tile(admin_client, "late: poll")["bad"] is True


def test_rows_that_hold_a_partition_are_counted(admin_client):
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


@pytest.mark.parametrize("is_summed", [False, True])
@pytest.mark.parametrize("stretch", ["hour", "day", "month"])
def test_a_chart_ends_with_the_minute_that_runs(admin_client, stretch, is_summed):
    make_order(created_at=read_database_time() - dt.timedelta(minutes=1))
    if is_summed:
        minutes.sum_minutes()
    make_order()
    make_mail(status="sent", provider="sendgrid", sent_at=Now())
    page = admin_client.get("/admin/", {"range": stretch})
    numbers = {chart["title"]: chart["number"] for chart in page.context["charts"]}
    assert (numbers["Orders placed"], numbers["Sent"]) == ("2", "1")


def test_the_refreshed_part_is_the_page_without_its_frame(admin_client):
    part = admin_client.get("/admin/", {"part": "1"}).content.decode()
    assert "What needs a person now" in part
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
    assert menu[0] == "Overview" and menu[-1] == "Set-up"
    page = admin_client.get("/admin/set-up/").content.decode()
    for name in ("user", "group", "apitoken", "periodictask"):
        assert f"/{name}/" in page
    assert "/emailnotification/" not in page.partition("<main")[2]
