"""Each condition that needs a person: status and the admin's first page name it while it holds.

`manage.py status` also says what is unfinished.
"""

from __future__ import annotations

import datetime as dt
import html
import io
import json
import math
import re
import socket
from typing import Any

import psycopg
import pytest
import redis
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from events.transports import Lag
from operations.conditions import IDLE_TRANSACTIONS, TRANSACTION_IDLE
from outbox import cdc
from outbox.gate.gate import ProviderChoice
from retention.conditions import AHEAD_ALARM
from runtime.audit import Actor
from runtime.conditions import read_facts
from runtime.lateness import lateness
from runtime.process.presence import Presence
from shop_connections.encryption import encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from tests.kit.alerts import alerts
from tests.kit.mails import make_mail
from tests.kit.months import fill, make_partition
from tests.kit.orders import make_order
from tests.kit.texts import READY, publish_texts
from tests.kit.words import (
    BulkJob,
    DomainEvent,
    EmailNotification,
    Heartbeat,
    InboundDeadLetter,
    Pause,
    conditions,
    drain,
    metrics,
    new_id,
    pauses,
    read_database_time,
    start_job,
    subscribed,
)

pytestmark = pytest.mark.django_db
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)
#: Each code once, the most severe first.
CODES = [
    *("Paused", "BrokerDown", "EmailProvidersDown", "ProcessGone", "TransactionIdle", "ClockWrong"),
    *("EmailProviderDown", "EmailNearlyTooOld", "EmailSenderRefused", "ConnectionUnreadable", "PostsRefused"),
    "EmailOfNobody",
    *("PollMissing", "EmailTextOutdated", "IndexMissing", "WebhooksRefused", "PasswordUsed"),
    *("EmailDeadLetters", "EmailBacklog", "EmailOverdue", "EmailProcessingStuck"),
    *("DeadEvents", "PostsUnusable", "ChangesMissed", "ShopSilent", "ShopNotCompared"),
    *("OrdersStuck", "JobsFailed"),
    *("RelayBlocked", "RelayLag", "PostsLate", "ConsumerLag", "CdcLag"),
    *("EmailBreakerForced", "PartitionsRunOut", "ArchiveOverdue"),
    *("PartitionHeld", "SumsLate", "ReplicaBehind", "UpkeepLate", "DatabaseConnectionsLow"),
]
#: Conditions that the first page shows in a tile of their own, and not as their sentence.
LABELS = {
    "EmailDeadLetters": "dead letters",
    "PollMissing": "late: poll",
    "SumsLate": "late: sums",
    "UpkeepLate": "late: partitions",
    "DeadEvents": "dead events",
    "JobsFailed": "failed jobs",
    "PartitionHeld": "rows that hold a partition",
    "OrdersStuck": "stuck orders: unpaid",
}


@pytest.fixture(autouse=True)
def _breakers(valkey_url, settings):
    settings.REDIS_URL = valkey_url
    Heartbeat.beat(name="poll")


def event(**values: Any) -> None:
    required = {
        "aggregate_type": "t",
        "aggregate_id": "0" * 32,
        "event_type": "t.v1",
        "sequence": 1,
        "shard": 1,
    }
    DomainEvent.objects.create(**required | {"payload": {}} | values)


def beat(name: str, *, ago: dt.timedelta) -> None:
    Heartbeat.objects.update_or_create(name=name, defaults={"beat_at": Now() - ago})


def fail_a_job() -> None:
    user = User.objects.create_superuser("ann")
    job = start_job(action="notifications.resend", filter={"status": "sent"}, user=user, by=Actor("x"))
    BulkJob.objects.fail(id=job.id, error="a defect")


def connect_shop() -> None:
    secret = encrypt("the shop's")
    ShopConnection.objects.create(
        source="tea", address="https://tea.example.com", secret=secret, state="live"
    )


class Breaks:
    """What makes each condition hold: a method named as its code."""

    def __init__(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings, self.monkeypatch = settings, monkeypatch

    def Paused(self) -> None:
        pauses.pause(parts=["delivery"], reason="a sale", by=Actor("ann"))

    def BrokerDown(self) -> None:
        self.settings.REDIS_URL = "redis://127.0.0.1:1/0"
        drain.reset()

    def ConnectionUnreadable(self) -> None:
        self.settings.CONNECTION_KEY = ["k" * 40]
        connect_shop()
        self.settings.CONNECTION_KEY = ["x" * 40]

    def _post(self, **values: Any) -> None:
        self.settings.CONNECTION_KEY = ["k" * 40]
        connect_shop()
        ConnectionPost.objects.create(source="tea", body="{}", **values)

    def PostsLate(self) -> None:
        self._post(received_at=Now() - dt.timedelta(minutes=6))

    def PostsUnusable(self) -> None:
        self._post(state="unusable", reason="it has no id")

    def ChangesMissed(self) -> None:
        self._post(state="missing")

    def _shop(self, **values: Any) -> None:
        self.settings.CONNECTION_KEY = ["k" * 40]
        connect_shop()
        ShopConnection.objects.update(**values)

    def PostsRefused(self) -> None:
        self._shop(last_post_at=Now() - HOUR, refused_at=Now())

    def EmailOfNobody(self) -> None:
        self._shop(unmailed={"event": "order.confirmed", "reference": "1007"}, left_on={})

    def ShopSilent(self) -> None:
        self._shop(last_post_at=Now() - 8 * 24 * HOUR)

    def ShopNotCompared(self) -> None:
        problem = "The host of the shop was not found."
        self.settings.CONNECTION_KEY = ["k" * 40]
        self._shop(api_key=encrypt("ck"), checked_at=Now() - 7 * HOUR, check_problem=problem)

    def TransactionIdle(self) -> None:
        held = "SELECT 7 AS pid, 'ann' AS username, 'psql' AS application, '22:41' AS since,"
        held += " 70.0 AS seconds, 2 AS waiting"
        self.monkeypatch.setattr("operations.conditions.IDLE_IN_TRANSACTION", held)

    def ClockWrong(self) -> None:
        Presence(kind="worker", host="a", process=7, clock_ahead=600.0).beat()

    def IndexMissing(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DROP INDEX emailnotification_due")

    def PasswordUsed(self) -> None:
        self.settings.PASSWORD_LOGIN = "root"
        User.objects.create_user("root", last_login=timezone.now())

    def WebhooksRefused(self) -> None:
        Heartbeat.beat(name="refused:unsigned:sendgrid")
        beat("webhook:sendgrid", ago=HOUR)

    def EmailProvidersDown(self) -> None:
        drain.gate().force("sendgrid", "open", reason="test")

    def EmailProviderDown(self) -> None:
        self.settings.EMAIL_PROVIDERS = ["sendgrid", "ses"]
        drain.reset()
        gate = drain.gate()
        gate.failed(gate.enter(only="ses"), message="m", reason="401", at_once=True)

    def EmailSenderRefused(self) -> None:
        refused = {"at": "2026-01-01T00:00:00+00:00", "provider": "ses", "outcome": "sender_refused"}
        make_mail(profile="shop-a", from_email="a@shop-a.test", errors=[refused])

    def ProcessGone(self) -> None:
        Presence(kind="worker", host="a", process=7).beat()
        Heartbeat.objects.filter(kind="worker").update(beat_at=Now() - HOUR)

    def EmailBreakerForced(self) -> None:
        drain.gate().force("sendgrid", "closed", reason="test")

    def PollMissing(self) -> None:
        Heartbeat.objects.all().delete()

    def EmailTextOutdated(self) -> None:
        publish_texts({READY: "Soon."}, originals={READY: "We are getting ready."})

    def EmailDeadLetters(self) -> None:
        make_mail(status="dead_lettered")

    def EmailBacklog(self) -> None:
        make_mail()
        values = EmailNotification.objects.values().get()
        ids = [new_id() for _ in range(1000)]
        EmailNotification.objects.bulk_create(
            EmailNotification(**values | {"id": id, "idempotency_key": str(id)}) for id in ids
        )

    def EmailOverdue(self) -> None:
        make_mail(created_at=Now() - 2 * HOUR)

    def EmailNearlyTooOld(self) -> None:
        make_mail(created_at=Now() - 40 * MINUTE)
        self.settings.EMAIL_MAX_AGE_HOURS = 1

    def EmailProcessingStuck(self) -> None:
        make_mail(status="processing", claimed_at=Now() - HOUR)

    def DeadEvents(self) -> None:
        event(dead_lettered_at=Now(), retry_count=4)

    def RelayBlocked(self) -> None:
        event(retry_count=1, next_attempt_at=Now() + HOUR)

    def RelayLag(self) -> None:
        event(created_at=Now() - HOUR)

    def ConsumerLag(self) -> None:
        with redis.Redis.from_url(self.settings.REDIS_URL) as client:
            client.xadd(sorted(subscribed())[0], {"key": "k", "value": "0"}, id="1-1")

    def CdcLag(self) -> None:
        beat(cdc.CDC, ago=HOUR)
        self.settings.KAFKA_BOOTSTRAP_SERVERS = "kafka:9092"
        self.monkeypatch.setattr("outbox.cdc.read_cdc_lags", lambda: [Lag(cdc.TOPICS[0], 1, 90.0)])

    def OrdersStuck(self) -> None:
        make_order(stock_reserved_at=Now() - 25 * HOUR)

    def JobsFailed(self) -> None:
        fail_a_job()

    def SumsLate(self) -> None:
        beat("sums", ago=HOUR)

    def ReplicaBehind(self) -> None:
        self.monkeypatch.setattr("runtime.database.replica.is_set", lambda: True)
        self.monkeypatch.setattr("runtime.database.replica._skipped_until", math.inf)

    def UpkeepLate(self) -> None:
        beat("partitions", ago=48 * HOUR)

    def PartitionsRunOut(self) -> None:
        self.monkeypatch.setitem(AHEAD_ALARM, "day", 7)

    def PartitionHeld(self) -> None:
        fill(make_partition(EmailNotification, back=4), 2, status="dead_lettered")

    def ArchiveOverdue(self) -> None:
        make_partition(EmailNotification, back=27)

    def DatabaseConnectionsLow(self) -> None:
        few = "SELECT 'idle' AS state, 95 AS number, 0.0 AS oldest, 100 AS most"
        self.monkeypatch.setattr("operations.conditions.SESSIONS", few)


def status(*options: str) -> str:
    output = io.StringIO()
    call_command("status", *options, stdout=output)
    return output.getvalue()


def needs() -> list[str]:
    return list(json.loads(status("--json"))["needs"])


@pytest.fixture
def active(monkeypatch) -> list[conditions.ActiveCondition]:
    """Gather what `decide` finds from now on, whoever calls it."""
    gathered: list[conditions.ActiveCondition] = []
    real = conditions.decide

    def decide(facts: conditions.Facts) -> list[conditions.ActiveCondition]:
        gathered.extend(new := real(facts))
        return new

    for module in ("operations.status", "web.admin.tiles", "outbox.attention"):
        monkeypatch.setattr(f"{module}.decide", decide)
    return gathered


def test_nothing_is_found_in_a_quiet_shop(admin_client, active):
    seen = json.loads(status("--json"))
    assert seen["needs"] == [] and "nothing needs a person" in status()
    assert seen["emails"]["pending"] == 0 and seen["rates"]["emails_sent"] == 0
    assert [provider["state"] for provider in seen["providers"]] == ["closed"]
    assert {consumer["seconds"] for consumer in seen["consumers"]} == {0.0}
    assert not [tile for tile in admin_client.get("/admin/").context["tiles"] if tile["bad"]]
    assert active == []


def test_eighty_columns_cut_no_word_of_the_status(monkeypatch):
    seen = json.loads(status("--json"))
    seen["providers"] = [seen["providers"][0] | {"state": "open", "reason": "misconfigured 401"}]
    monkeypatch.setattr("operations.management.commands.status.read_status", lambda: seen)
    monkeypatch.setenv("COLUMNS", "80")
    seen["processes"] = [{"kind": "worker", "process": 7, "host": "a" * 50, "seconds": 0.0, "release": "1"}]
    text = status()
    assert "…" not in text and " processing " in text
    assert "kind worker, process 7," in text and "a" * 50 in text and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("code", CODES)
def test_status_and_the_first_page_name_what_broke(code, admin_client, active, settings, monkeypatch):
    getattr(Breaks(settings, monkeypatch), code)()
    said = needs()
    condition = next(condition for condition in active if condition.code == code)
    if code not in ("BrokerDown", "ProcessGone"):
        assert values()[code, condition.subject] == 1.0
    assert condition.sentence in said and not re.search(r"\b1 [a-z-]+s\b", condition.sentence)
    active.clear()
    page = admin_client.get("/admin/")
    loud = [tile["label"] for tile in page.context["tiles"] if tile["bad"]]
    if code == "Paused":
        assert "a sale" in page.content.decode()  # the banner
    elif code in ("ConsumerLag", "CdcLag"):
        assert not loud  # the page asks no broker of events
    else:
        assert LABELS.get(code, condition.sentence) in loud
        assert code in LABELS or f"alert {code}" in page.content.decode()
        assert {condition.sentence for condition in active} == set(said)


def refuse(*, reason: str, at_once: bool, names: int = 1) -> None:
    """Let the providers answer so, in the order of preference."""
    gate = drain.gate()
    for provider in gate.providers:
        choice = gate.enter(only=provider)
        for number in range(names):
            gate.failed(choice, message=f"m{number}", reason=reason, at_once=at_once)


@pytest.mark.parametrize(
    ("reason", "at_once", "said", "words"),
    [
        (
            *("misconfigured 401 Unauthorized", True),
            r"sendgrid refuses our account since \d\d:\d\d \(401\): check SENDGRID_API_KEY",
            "refusing us",
        ),
        (
            *("transient 503 unavailable", False),
            r"sendgrid fails since \d\d:\d\d \(503\): check the status page and the account; it is tried "
            "again by itself",
            r"resting until \d\d:\d\d",
        ),
    ],
)
def test_the_sentence_of_a_provider_names_the_cause_and_the_cure(reason, at_once, said, words, admin_client):
    refuse(reason=reason, at_once=at_once, names=5)
    (sentence,) = needs()
    assert re.fullmatch(f"no e-mail is sent, because {said}", sentence)
    assert sentence in html.unescape(admin_client.get("/admin/").content.decode())
    (provider,) = json.loads(status("--json"))["providers"]
    assert provider["state"] == "open" and re.fullmatch(words, provider["words"])


def test_failures_that_are_too_few_to_open_the_breaker_are_told_without_an_alarm(admin_client):
    refuse(reason="transient 500 oops", at_once=False)
    assert json.loads(status("--json"))["providers"][0]["words"] == "working, but the last one failed"
    refuse(reason="transient 500 oops", at_once=False, names=2)
    (provider,) = json.loads(status("--json"))["providers"]
    assert (provider["state"], provider["words"]) == ("closed", "working, but the last 2 failed")
    assert provider["reason"] == "transient 500 oops" and needs() == []
    page = admin_client.get("/admin/").content.decode()
    assert "working, but the last 2 failed" in page.partition("tile-notes")[2].partition("</p>")[0]
    assert "working, but" not in page.partition("tile-calm")[2].partition("</p>")[0]


def test_a_provider_that_fails_again_and_again_has_one_sentence(settings):
    settings.EMAIL_PROVIDERS = ["sendgrid", "smtp"]
    drain.reset()
    gate = drain.gate()
    gate.force("sendgrid", "open", reason="test")

    def fail() -> None:
        choice, reason = gate.enter(only="smtp"), "unreachable NeverConnected the certificate has expired"
        gate.failed(choice, message="m", reason=reason, at_once=True)

    fail()
    assert re.search(r"no e-mail is sent, .*smtp fails since \d\d:\d\d \(the certificate has", needs()[0])
    probe = ProviderChoice("smtp", is_probe=True)
    gate.accepted(probe)
    assert not re.search("smtp", "".join(needs()))  # it works again
    said = set()
    for _ in range(3):
        fail()
        said.add(needs()[0])
        gate.accepted(probe)
        said.add(needs()[0])
    (sentence,) = said
    assert "few e-mails are sent" in sentence and "smtp fails again and again since" in sentence


def test_a_provider_that_asks_for_a_pause_rests_until_its_end():
    drain.gate().pause(drain.gate().enter(), seconds=600, reason="throttled 429")
    (sentence,) = needs()
    cure = r"if it takes e-mails again earlier, press Force closed under Providers"
    assert re.search(rf"sendgrid asks us to wait until \d\d:\d\d \(429\): {cure}", sentence)
    (provider,) = json.loads(status("--json"))["providers"]
    assert re.fullmatch(r"resting until \d\d:\d\d", provider["words"])


def test_the_causes_of_all_are_named_if_none_is_left(settings):
    settings.EMAIL_PROVIDERS = ["sendgrid", "ses"]
    drain.reset()
    refuse(reason="misconfigured 403 no", at_once=True)
    (sentence,) = needs()
    assert re.search(r"\(403\): check SENDGRID_API_KEY; ses refuses our account since .*: check ", sentence)


def test_inbound_dead_letters_are_the_same_condition_in_the_other_direction(admin_client):
    InboundDeadLetter.objects.create(topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="no")
    assert needs() == ["1 inbound dead letter: replay or discard, under Inbound in the admin"]
    loud = [tile["label"] for tile in admin_client.get("/admin/").context["tiles"] if tile["bad"]]
    assert loud == ["inbound dead letters"]


def test_each_takes_a_fixed_number_of_statements(admin_client):
    needs()  # the sizes are read once in five minutes
    # The status counts events that match no e-mail, and asks for an extension. The first page does not, and
    # reads the minute that runs.
    for most, read in ((9, lambda: admin_client.get("/admin/")), (5, needs)):
        with CaptureQueriesContext(connection) as captured:
            read()
        counted = [entry["sql"] for entry in captured if "SAVEPOINT" not in entry["sql"]]
        assert len([sql for sql in counted if not sql.startswith("SET LOCAL")]) == most, counted


def test_the_conditions_are_in_the_order_of_their_severity():
    declared = conditions.declared()
    assert list(dict.fromkeys(condition.code for condition in declared)) == CODES
    assert len({condition.place for condition in declared}) == len(declared)


def test_each_condition_is_an_alert_and_those_of_one_code_are_one():
    assert set(CODES) - alerts().keys() == set()
    by_code = {condition.code: condition.alert for condition in conditions.declared()}
    assert [
        condition.code
        for condition in conditions.declared()
        if condition.alert is not by_code[condition.code]
    ] == []
    assert [code for code, alert in by_code.items() if alert is None] == ["BrokerDown", "ProcessGone"]


@pytest.mark.parametrize(
    ("code", "part"),
    [
        *(("EmailBacklog", "delivery"), ("EmailOverdue", "delivery"), ("EmailProcessingStuck", "delivery")),
        ("EmailNearlyTooOld", "delivery"),
        *(("RelayLag", "relay"), ("ConsumerLag", "consumers")),
    ],
)
def test_a_part_that_is_paused_is_not_late(code, part, active, settings, monkeypatch):
    getattr(Breaks(settings, monkeypatch), code)()
    pauses.pause(parts=[part], reason="a sale", by=Actor("ann"))
    assert len(needs()) == 1 and {condition.code for condition in active} == {"Paused"}
    Pause.objects.all().delete()
    assert len(needs()) == 1 and {condition.code for condition in active} == {"Paused", code}


def values() -> dict[tuple[str, str], float]:
    """Return the values of `orderpost_condition` at a scrape, by code and subject."""
    family = next(
        family for family in metrics.families(with_readers=True) if family.name == "orderpost_condition"
    )
    return {(sample.labels["code"], sample.labels["subject"]): sample.value for sample in family.samples}


def test_a_scrape_shows_each_condition_with_0_in_a_quiet_shop():
    shown = values()
    assert set(shown.values()) == {0.0}
    assert {code for code, _ in shown} == {*CODES} - {"BrokerDown", "ProcessGone", "CdcLag"}
    assert {subject for code, subject in shown if code == "Paused"} == {*Pause.Part.values}


def test_the_rules_and_pages_are_those_of_the_declarations():
    call_command("status", "--rules", "check")


def test_status_as_text_names_what_needs_a_person_each_provider_and_each_table():
    make_mail(status="dead_lettered")
    text = status()
    assert "! 1 dead letter: resend or give up, under Causes in the admin (EmailDeadLetters)" in text
    assert "sendgrid" in text and "email_notifications" in text


def test_a_valkey_that_is_silent_is_frozen_unless_this_machine_is_overloaded(settings, monkeypatch, fast):
    fast.valkey()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.REDIS_URL = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        for is_overloaded, said in (
            (
                False,
                "Valkey does not answer within 0.5 s, so it is frozen, or its host is away: `kill -CONT`",
            ),
            (True, "this machine is overloaded, so Valkey's answer came too late"),
        ):
            monkeypatch.setattr(lateness, "is_overloaded", lambda is_overloaded=is_overloaded: is_overloaded)
            assert needs()[0].startswith(said)


@pytest.mark.django_db(transaction=True)
def test_a_session_that_is_idle_in_a_transaction_is_named_until_it_is_ended():
    make_order()
    params = connection.get_connection_params()
    names = {name: params[name] for name in ("host", "port", "user", "dbname") if params.get(name)}
    with psycopg.connect(**names, application_name="psql") as reader:
        reader.execute("SELECT id FROM orders")
        with psycopg.connect(**names, application_name="by hand") as holder:
            holder.execute("SELECT id FROM orders FOR UPDATE")
            rows = read_facts(now=read_database_time())[IDLE_TRANSACTIONS]
            pid = holder.info.backend_pid
            # The session that only reads holds no rows.
            holding = [(row["pid"], row["application"], row["waiting"]) for row in rows]
            assert holding == [(pid, "by hand", 0)]
            (active,) = TRANSACTION_IDLE.find([rows[0] | {"seconds": 11.0}])
            since = r"does nothing in a transaction since \d\d:\d\d UTC, and holds rows that others may need"
            assert re.search(rf"session {pid} of \w+ \(by hand\) {since}: end it by", active.sentence)
            assert list(TRANSACTION_IDLE.find([rows[0] | {"seconds": 9.0}])) == []
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
            with pytest.raises(psycopg.OperationalError):
                holder.execute("SELECT 1")
    assert read_facts(now=read_database_time())[IDLE_TRANSACTIONS] == []


def test_an_index_that_is_invalid_is_named(db):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'orders_newest'::regclass")
    (sentence,) = needs()
    assert sentence.startswith("the index orders_newest is invalid, so statements read whole tables: run")


def test_a_job_is_not_late_in_a_start_nor_after_a_long_stillness():
    Heartbeat.objects.all().delete()
    beat("poll", ago=HOUR)
    beat("sums", ago=HOUR)
    web, worker = Presence(kind="web"), Presence(kind="worker")
    for _ in range(2):  # as all start, and as all wake
        web.beat()
        worker.beat()
        assert needs() == []
        Heartbeat.objects.filter(kind=None).update(beat_at=Now() - HOUR)
        Heartbeat.objects.exclude(kind=None).update(since=Now() - HOUR)
        assert len(needs()) == 2  # it is up for an hour
        Heartbeat.objects.exclude(kind=None).update(beat_at=Now() - HOUR)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "FATAL:  sorry, too many clients already",
            "PostgreSQL refuses new connections, and the API answers",
        ),
        ("connection failed: Connection refused", "PostgreSQL does not answer, and the API answers 503"),
    ],
)
def test_status_needs_no_session_to_say_what_is_wrong_with_postgresql(error, said, monkeypatch):
    def fail() -> None:
        raise OperationalError(error)

    monkeypatch.setattr("operations.management.commands.status.read_status", fail)
    with pytest.raises(CommandError, match=said):
        status()


def test_status_goes_on_without_valkey(settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    shown = json.loads(status("--json"))
    assert shown["providers"] is None and shown["consumers"] is None
    assert shown["needs"][0].startswith("Valkey does not answer") and "Valkey does not answer" in status()


def test_a_failed_job_needs_a_person_until_it_is_stopped():
    fail_a_job()
    assert len(needs()) == 1
    BulkJob.objects.stop(id=BulkJob.objects.get().id)
    assert needs() == []


def test_a_heartbeat_is_one_row_that_moves():
    beat("poll", ago=24 * HOUR)
    Heartbeat.beat(name="poll")
    age = Heartbeat.read_age(name="poll")
    assert Heartbeat.objects.count() == 1
    assert age is not None and age < 60
