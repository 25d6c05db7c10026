"""The processes' commands inside the test's own process: they work, note their end, and stop at SIGTERM."""

from __future__ import annotations

import datetime as dt
import logging
import re
import subprocess
import threading

import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError, connections
from django.db.models import Count
from django.urls import reverse

from notifications.content.rendering import write_date
from notifications.failure_causes import dead_causes
from notifications.models import MailProfile
from orders.models import STUCK, Shipment
from runtime.database.partitions import attached
from shop_connections.models import ConnectionPost, ShopConnection
from tests.kit.commands import handlers_kept, polling, provider, sent, stopped_when
from tests.kit.mails import make_mail
from tests.kit.months import make_partition, states
from tests.kit.orders import make_order, pay_order
from tests.kit.profiles import save_profile
from tests.kit.shop import PAYMENT, payment_event
from tests.kit.words import (
    ApiToken,
    DomainEvent,
    EmailNotification,
    Heartbeat,
    Order,
    TrafficSum,
    consumer,
    keep_partitions,
    read_database_time,
    relay,
    tasks,
)
from tests.kit.words import drain as delivery

__all__ = ["polling", "provider"]  # fixtures
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def test_drain_outbox_sends_until_it_is_told_to_stop(provider, settings):
    settings.POLL_INTERVAL = 0.2
    make_mail()
    with stopped_when(lambda: sent() == 1):
        call_command("drain_outbox", "--loop")
    assert Heartbeat.objects.filter(name="poll").exists()


def test_drain_outbox_outlives_a_database_that_is_away_for_a_moment(provider, settings, monkeypatch):
    settings.POLL_INTERVAL = 0.2
    make_mail()
    real, failures = delivery.poll, iter([OperationalError("gone"), OperationalError("gone")])

    def poll(**options):
        for error in failures:
            raise error
        return real(**options)

    monkeypatch.setattr(delivery, "poll", poll)
    with stopped_when(lambda: sent() == 1):
        call_command("drain_outbox", "--loop")


def test_drain_outbox_ends_by_itself_when_nothing_is_due(provider):
    make_mail()
    with handlers_kept():
        call_command("drain_outbox")
    assert sent() == 1


def test_relay_outbox_publishes_until_it_is_told_to_stop_and_outlives_the_database(
    valkey_url, settings, monkeypatch, fast
):
    settings.REDIS_URL = valkey_url
    pay_order(order_id=make_order(status="pending").id)
    real, failures = relay.Relay.step, iter([OperationalError("gone")])

    def step(self, **options):
        for error in failures:
            raise error
        return real(self, **options)

    monkeypatch.setattr(relay.Relay, "step", step)
    fast.retries()
    with stopped_when(lambda: not DomainEvent.objects.unpublished().exists()):
        call_command("relay_outbox")
    with redis.Redis.from_url(valkey_url) as client:
        assert client.xlen("order.order.paid.v1") == 1


def test_consume_events_takes_events_until_it_is_told_to_stop(valkey_url, settings):
    settings.REDIS_URL = valkey_url
    order = make_order(status="pending")
    with redis.Redis.from_url(valkey_url) as client:
        client.xadd(PAYMENT, payment_event(str(order.id)))

        def done() -> bool:
            is_paid = Order.objects.get(id=order.id).status == "paid"
            return is_paid and client.xpending(PAYMENT, consumer.GROUP)["pending"] == 0

        with stopped_when(done):
            call_command("consume_events")


def test_keep_partitions_makes_and_detaches_until_it_is_told_to_stop_and_outlives_the_database(
    archive_folder, monkeypatch
):
    old = make_partition(EmailNotification, back=4)
    with connections["default"].cursor() as cursor:
        far = attached(model=DomainEvent)[-1].name
        cursor.execute(f"DROP TABLE {far}")
    real, failures = keep_partitions.ensure_all, iter([OperationalError("lock not available")])

    def ensure_all(**options):
        for error in failures:
            raise error
        return real(**options)

    monkeypatch.setattr(keep_partitions, "ensure_all", ensure_all)
    with stopped_when(lambda: Heartbeat.objects.filter(name="rollover").exists()):
        call_command("keep_partitions")
    assert states()[old.name] == "detached"
    assert attached(model=DomainEvent)[-1].name == far
    Heartbeat.objects.filter(name="partitions").delete()
    with handlers_kept():
        call_command("keep_partitions", "--once")  # the day's rollover is done
    assert Heartbeat.objects.filter(name="partitions").exists()


def test_a_stop_ends_a_rollover_after_its_present_step_and_the_next_run_goes_on(archive_folder):
    old = make_partition(EmailNotification, back=4)
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(SystemExit):
        keep_partitions.work(stopped=stopped)
    assert states()[old.name] == "attached" and not Heartbeat.objects.filter(name="rollover").exists()
    keep_partitions.work(stopped=threading.Event())
    assert states()[old.name] == "detached" and Heartbeat.objects.filter(name="rollover").exists()


def test_the_tasks_of_beat_do_their_work(provider):
    make_mail()
    tasks.poll_outbox()
    assert sent() == 1
    make_mail()
    tasks.drain_emails()
    assert sent() == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replication-factor", "2", "--min-insync-replicas", "3"], "would take no event"),
        (["--partitions", "0"], "it must be 1 or more"),
    ],
)
def test_make_topics_refuses_a_policy_that_cannot_work(options, said, settings):
    settings.EVENT_TRANSPORT = "kafka"
    with pytest.raises(CommandError, match=said):
        call_command("make_topics", *options)


def test_the_demo_writes_to_no_real_mail_server(settings):
    settings.EMAIL_PROVIDERS, settings.EMAIL_HOST = ["smtp"], "127.0.0.1"
    with pytest.raises(CommandError, match="only to a mailbox"):
        call_command("demo", "--orders", "1")
    assert not Order.objects.exists()


def test_the_demo_ends_when_each_email_is_sent_dead_or_waits_for_a_retry(provider, polling, capsys):
    call_command("demo", "--orders", "270")
    assert Order.objects.count() == 270
    now = EmailNotification.objects.filter(
        order_id__in=Order.objects.filter(reference__startswith="D-").values("id")
    )
    assert not EmailNotification.objects.filter(status="processing").exists()
    waiting = EmailNotification.objects.filter(status__in=["pending", "failed"])
    assert {mail.recipient_email for mail in waiting} == {"down-1@example.com"}
    dead = now.filter(status="dead_lettered")
    assert {mail.recipient_email for mail in dead} == {"refused-0@example.com", "refused-25@example.com"}
    said = capsys.readouterr()
    assert said.err == ""
    dead = EmailNotification.objects.filter(status="dead_lettered")
    for line in (
        f"{sent():6} e-mails are sent",
        f"{dead.count():6} e-mails are dead letters",
        f"{waiting.exclude(last_error='').count():6} e-mail waits for a retry",
        f"{waiting.filter(last_error='').count():6} e-mail waits for its turn",
    ):
        assert line in said.out.splitlines()
    assert said.out.startswith("270 orders placed and changed, 243 of them since ")


def test_the_demo_prints_ten_pages_that_open(provider, polling, settings, admin_client, capsys):
    settings.CONNECTION_KEY = ["k" * 40]
    call_command("demo", "--orders", "300")
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(r" *\d+\.  ", line)]
    assert len(lines) == 10
    assert lines[-1].split()[1] == f"{provider.api_url.partition('/v3')[0]}/"
    for line in lines[:-1]:
        assert admin_client.get(line.split()[1]).status_code == 200, line


def test_the_demo_has_a_month_with_parcels_an_outage_and_dead_letters_by_cause(provider, polling, settings):
    settings.CONNECTION_KEY = ["k" * 40]
    call_command("demo", "--orders", "300")
    now, oldest = read_database_time(), attached(model=EmailNotification)[0].since
    first = Order.objects.order_by("created_at").first()
    assert first.created_at < max(now - dt.timedelta(days=29), oldest + dt.timedelta(days=1))
    mails = EmailNotification.objects.filter(order_id=first.id).order_by("id")
    assert mails[0].created_at - first.created_at < dt.timedelta(minutes=10)
    assert all(mail.sent_at < mail.delivered_at < now for mail in mails)
    assert write_date(mails[0].created_at, locale=first.locale) in mails[0].body_text
    assert not DomainEvent.objects.filter(created_at__lt=attached(model=DomainEvent)[0].since).exists()
    for column in ("returned_at", "delivered_at"):
        assert Shipment.objects.filter(**{f"{column}__lt": now}).exists()
    assert Order.objects.annotate(parcels=Count("shipment")).filter(parcels=2).exists()
    delayed = EmailNotification.objects.exclude(errors=[]).filter(status="sent")
    assert delayed.count() >= 10
    assert all(mail.sent_at - mail.created_at > dt.timedelta(seconds=4) for mail in delayed)
    outage = TrafficSum.objects.filter(span=TrafficSum.MINUTE, **{"samples__open:sendgrid__gt": 0})
    assert outage.count() in (50, 51)
    minutes = TrafficSum.objects.filter(span=TrafficSum.MINUTE)
    assert not minutes.exclude(samples__has_key="open:sendgrid").exists()  # else the strip has gaps
    placed = Order.objects.filter(created_at__gt=now - dt.timedelta(days=1))
    assert placed.count() > 100
    assert EmailNotification.objects.exclude(bounced_at=None).exists()
    assert len(dead_causes()) == 4
    assert not any(Order.objects.stuck(state).exists() for state in STUCK)


def test_the_demo_has_two_brands_and_a_connection_in_trial(provider, polling, settings):
    settings.CONNECTION_KEY = ["k" * 40]
    for _ in range(2):
        call_command("demo", "--orders", "5")
    assert set(MailProfile.objects.values_list("source", "shop_name")) == {
        ("", "Leaf & Cup"),
        ("beans", "Beans & Co"),
    }
    assert ShopConnection.objects.get().state == "trial"
    assert ConnectionPost.objects.exclude(done_at=None).count() == 5
    withheld = EmailNotification.objects.filter(profile="beans")
    assert withheld.count() == 5 and set(withheld.values_list("last_error")) == {("not sent: trial",)}
    assert not [mail for mail in provider.mails if "beans" in mail.from_email]


def test_the_demo_keeps_a_profile_that_is_there(provider, polling):
    save_profile("", shop_name="Mine")
    call_command("demo", "--orders", "1")
    assert MailProfile.objects.get(source="").shop_name == "Mine"


def test_the_demo_refuses_a_database_with_orders_that_it_did_not_make(provider):
    call_command("demo", "--one")
    make_order(reference="R-7")
    with pytest.raises(CommandError, match=r"orders that the demo did not make, such as R-7.*make clean"):
        call_command("demo", "--orders", "1")
    assert Order.objects.count() == 2 and not MailProfile.objects.exists() and provider.faults.all() == []


def test_the_demo_says_what_to_click_next(provider, polling, capsys):
    call_command("demo", "--orders", "1")
    said = capsys.readouterr().out
    assert f"{provider.api_url.partition('/v3')[0]}/  the mailbox" in said
    assert reverse("admin:notifications_emailnotification_causes") in said
    assert "Click Heal" in said
    assert "No shop is connected, because CONNECTION_KEY is not set." in said
    assert "correlation id demo-" in said


def test_a_second_demo_adds_no_fault_to_those_of_the_first(provider, polling):
    for _ in range(2):
        call_command("demo", "--orders", "1")
    assert sorted(fault.to for fault in provider.faults.all()) == ["^down-", "^refused-"]


def test_a_second_demo_places_orders_only_if_told_how_many(provider, polling, capsys):
    call_command("demo", "--orders", "5")
    places = [line for line in capsys.readouterr().out.splitlines() if re.match(r" *\d+\.  ", line)]
    call_command("demo")
    assert Order.objects.count() == 5
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "An earlier demo filled this database. With --orders you get more orders."
    assert [line for line in said if re.match(r" *\d+\.  ", line)] == places
    call_command("demo", "--orders", "2")
    assert Order.objects.count() == 7


def test_the_demo_speaks_of_one_order_and_one_email(provider, polling, settings, capsys):
    settings.NOTIFY_ON = ["order.paid"]
    call_command("demo", "--orders", "1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["1 order placed and changed.", "     1 e-mail is a dead letter"]


def test_the_demo_logs_nothing_of_its_past(provider, polling, caplog):
    with caplog.at_level(logging.DEBUG):
        call_command("demo", "--orders", "50")
        assert not [line for line in caplog.records if line.levelno < logging.WARNING]
        assert not [line for line in caplog.records if "5.1.1" in str(line.msg)]
        logging.getLogger("shop").info("after the demo")
    assert caplog.messages[-1] == "after the demo"


def test_the_demo_counts_the_emails_that_nothing_tries(provider, settings, capsys):
    settings.NOTIFY_ON = ["order.paid"]
    call_command("demo", "--orders", "1", "--wait", "0")
    assert "     1 e-mail waits for its turn" in capsys.readouterr().out.splitlines()


def test_one_demo_order_comes_with_a_token_as_lines_for_a_shell(provider, client, capsys):
    call_command("demo", "--one")
    said = capsys.readouterr()
    assert said.err == "order A-1001 placed; token valid 7 days\n"
    shell = ["/bin/sh", "-euc", 'eval "$1"; echo "$TOKEN $ORDER"', "sh", said.out]
    token, order = subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split()
    api, headers = f"/api/v1/orders/{order}", {"authorization": f"Bearer {token}"}
    for change, body, status in (("pay", {}, "paid"), ("refund", {"amount": 1200}, "part_refunded")):
        answer = client.post(f"{api}/{change}", body, "application/json", headers=headers)
        assert answer.json()["status"] == status
    assert Order.objects.get().correlation_id.startswith("demo-")
    assert ApiToken.objects.get().expires_at < read_database_time() + dt.timedelta(days=8)


def test_each_single_demo_order_has_the_next_number(provider, capsys):
    for number in (1001, 1002):
        call_command("demo", "--one")
        assert f"order A-{number} placed" in capsys.readouterr().err
    assert set(Order.objects.values_list("reference", flat=True)) == {"A-1001", "A-1002"}


def test_one_demo_order_is_not_several(provider):
    with pytest.raises(CommandError, match="--one does not allow --orders"):
        call_command("demo", "--one", "--orders", "3")
    assert not Order.objects.exists()


def test_one_demo_order_makes_no_token_for_a_shop_with_a_real_provider(settings):
    settings.EMAIL_PROVIDERS, settings.EMAIL_HOST = ["smtp"], "127.0.0.1"
    with pytest.raises(CommandError, match="only to a mailbox"):
        call_command("demo", "--one")
    assert not Order.objects.exists() and not ApiToken.objects.exists()
