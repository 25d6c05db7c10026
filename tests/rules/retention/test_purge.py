"""What is not partitioned is deleted in small batches that wait for nobody."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import psycopg
import pytest
from axes.models import AccessAttempt
from django.db import connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from notifications.models import ProviderTest
from retention.partitions.locks import OWNER_DATABASE
from runtime.models import AuditRow
from tests.kit.months import dsn
from tests.kit.words import (
    ApiToken,
    BulkJob,
    IdempotencyKey,
    InboundDeadLetter,
    Pause,
    ProcessedEvent,
    new_id,
    purge,
)
from web.proxies import mask_address

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def ago(**span: float):
    return Now() - dt.timedelta(**span)


def run() -> Counter[str]:
    gone = Counter[str]()
    for table, rule in purge.rules():
        gone[table] += purge.purge(table=table, rule=rule)
    return gone


def test_keeps_keys_for_7_days_processed_events_for_30_and_tokens_for_30_after_their_end():
    for days in (6.9, 7.1):
        IdempotencyKey.objects.create(scope="token:1", key=str(days), created_at=ago(days=days))
    for days in (29, 31):
        ProcessedEvent.objects.create(
            event_id=new_id(), consumer=str(days), event_type="x", processed_at=ago(days=days)
        )
    for name, end in {"none": None, "soon": ago(days=-1), "over": ago(days=29), "gone": ago(days=31)}.items():
        ApiToken.objects.create(name=name, prefix="op_", digest=name, scopes=[], expires_at=end)
    gone = run()
    assert (gone["idempotency_keys"], gone["processed_events"], gone["api_tokens"]) == (1, 1, 1)
    assert IdempotencyKey.objects.get().key == "6.9"
    assert ProcessedEvent.objects.get().consumer == "29"
    assert set(ApiToken.objects.values_list("name", flat=True)) == {"none", "soon", "over"}


def test_keeps_the_signatures_of_providers_posts_for_eight_hours_and_ten_minutes():
    for minutes in (489, 491):
        for scope in ("webhook:mailgun", "token:1"):
            IdempotencyKey.objects.create(scope=scope, key=str(minutes), created_at=ago(minutes=minutes))
    assert run()["idempotency_keys"] == 1
    left = IdempotencyKey.objects.values_list("scope", "key").order_by("scope", "key")
    assert list(left) == [("token:1", "489"), ("token:1", "491"), ("webhook:mailgun", "489")]


def test_finds_old_signatures_without_reading_the_answers_of_requests():
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "INSERT INTO idempotency_keys"
            " (scope, key, request_hash, answer_body, answer_location, created_at)"
            " SELECT CASE WHEN n % 50 = 0 THEN 'webhook:mailgun' ELSE 'token:1' END, n::text, '', '', '',"
            " now() - interval '1 day' FROM generate_series(1, 20000) AS n"
        )
        cursor.execute("ANALYZE idempotency_keys")
    ((table, rule),) = [(table, rule) for table, rule in purge.rules() if "webhook" in rule.keep]
    with CaptureQueriesContext(connections[OWNER_DATABASE]) as captured:
        assert purge.purge(table=table, rule=rule) == 400
    (statement,) = [query["sql"] for query in captured if "DELETE" in query["sql"]]
    with connections["default"].cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}")
        assert "idempotency_keys_webhook_age" in str(cursor.fetchall())


def test_deletes_a_revoked_token_after_30_days_although_it_never_expires():
    for name, revoked in {"live": None, "fresh": ago(days=29), "gone": ago(days=31)}.items():
        ApiToken.objects.create(name=name, prefix="op_", digest=name, scopes=[], revoked_at=revoked)
    assert run()["api_tokens"] == 1
    assert set(ApiToken.objects.values_list("name", flat=True)) == {"live", "fresh"}


def test_keeps_ended_jobs_for_90_days_and_unfinished_ones_for_ever():
    ends = {"young": 89, "old": 91, "running": None}
    for name, days in ends.items():
        state = BulkJob.State.RUNNING if days is None else BulkJob.State.FAILED
        finished = None if days is None else ago(days=days)
        BulkJob.objects.create(
            action=name, username="ann", state=state, created_at=ago(days=400), finished_at=finished
        )
    assert run()["bulk_jobs"] == 1
    assert set(BulkJob.objects.values_list("action", flat=True)) == {"young", "running"}


def test_keeps_the_audit_log_as_long_as_archives(settings):
    settings.ARCHIVE_YEARS = 2
    for days in (729, 733):
        AuditRow.objects.create(kind="email", who="ann", act=str(days), at=ago(days=days))
    assert run()["audit_rows"] == 1
    assert AuditRow.objects.get().act == "729"


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("203.0.113.9", "203.0.113.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("203.0.113.0/24", "203.0.113.0/24"),
        ("", ""),
    ],
)
def test_shortens_an_address_of_the_audit_after_90_days(address, kept):
    for days in (89, 91):
        AuditRow.objects.create(kind="email", who="ann", act=str(days), at=ago(days=days), address=address)
    assert run()["audit_rows"] == (address != kept)
    assert dict(AuditRow.objects.values_list("act", "address")) == {"89": address, "91": kept}
    assert kept == mask_address(address) or "/" in address


def test_keeps_the_newest_ten_thousand_wrong_passwords_of_30_days():
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "INSERT INTO axes_accessattempt (user_agent, ip_address, username, http_accept, path_info,"
            " attempt_time, get_data, post_data, failures_since_start)"
            " SELECT '', NULL, n::text, '', '', now() - n * interval '1 second', '', '', 1"
            " FROM generate_series(1, 12345) AS n"
        )
    assert run()["axes_accessattempt"] == 2345
    assert not AccessAttempt.objects.filter(username__in=["10001", "12345"]).exists()
    assert AccessAttempt.objects.filter(username__in=["1", "10000"]).count() == 2
    assert run()["axes_accessattempt"] == 0
    AccessAttempt.objects.filter(username="1").update(attempt_time=ago(days=31))
    assert run()["axes_accessattempt"] == 1


def test_keeps_a_pause_until_it_ends():
    Pause.objects.create(part="relay", paused_at=ago(days=5000))
    run()
    assert Pause.objects.exists()


def dead_letter(days: float, **columns: object) -> None:
    event = {"topic": str(days), "event_id": new_id(), "consumer": "c", "envelope": "{}", "error": "no"}
    InboundDeadLetter.objects.create(**event, failed_at=ago(days=days), **columns)


def test_keeps_inbound_dead_letters_for_90_days_also_undecided_ones():
    for days in (InboundDeadLetter.KEPT_DAYS - 1, InboundDeadLetter.KEPT_DAYS + 1):
        dead_letter(days, order_id=new_id())
    assert run()["inbound_dead_letters"] == 1
    assert InboundDeadLetter.objects.get().topic == "89"


def test_empties_an_inbound_dead_letter_of_an_unknown_order_after_7_days():
    dead_letter(6)
    dead_letter(8)
    dead_letter(8.5, order_id=new_id())
    dead_letter(9, replay_requested_at=ago(days=1))  # its consumer is paused
    for _ in range(2):
        run()
        rows = InboundDeadLetter.objects.order_by("-failed_at")
        assert [(row.topic, row.envelope, bool(row.discarded_at)) for row in rows] == [
            ("6", "{}", False),
            ("8", "[erased]", True),
            ("8.5", "{}", False),
            ("9", "{}", False),
        ]


def test_deletes_in_batches(monkeypatch):
    monkeypatch.setattr(purge, "BATCH", 10)
    IdempotencyKey.objects.bulk_create(
        IdempotencyKey(scope="token:1", key=str(n), created_at=ago(days=8)) for n in range(25)
    )
    rule = dict(reversed(purge.rules()))["idempotency_keys"]
    with CaptureQueriesContext(connections[OWNER_DATABASE]) as queries:
        assert purge.purge(table="idempotency_keys", rule=rule) == 25
    assert sum("DELETE" in query["sql"] for query in queries) == 3


def test_waits_for_no_row_that_someone_holds():
    for n in range(3):
        IdempotencyKey.objects.create(scope="token:1", key=str(n), created_at=ago(days=8))
    with psycopg.connect(dsn()) as holding:
        holding.execute("SELECT 1 FROM idempotency_keys WHERE key = '1' FOR UPDATE")
        assert run()["idempotency_keys"] == 2
    assert run()["idempotency_keys"] == 1


def test_keeps_a_test_of_a_provider_for_7_days():
    for days in (6, 8):
        ProviderTest.objects.create(provider="sendgrid", address_hash="x", sent_at=ago(days=days))
    assert run()["provider_tests"] == 1
