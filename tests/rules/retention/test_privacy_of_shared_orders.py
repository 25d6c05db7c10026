"""An order has had several people's e-mails: what is whose in copies, archives, answers and old records."""

from __future__ import annotations

import datetime as dt
import json
import signal
import sys
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now

from tests.kit import warm
from tests.kit.months import Steps, fill, make_partition
from tests.kit.words import (
    ERASED_ADDRESS,
    DetachedPartition,
    EmailNotification,
    Erasure,
    IdempotencyKey,
    Order,
    OutboxEvent,
    erasure,
    new_id,
    pay_order,
    place_order,
    rollover,
    send_copy,
)
from tests.rules.retention.test_crashes import dying_environment
from tests.rules.retention.test_privacy import dead_event, grep, grep_archives
from tests.rules.retention.test_privacy_one_person import ANN, BOB, corrected, erase, export, mails, send_all
from tests.rules.retention.test_rollover import age_records

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]


def roll() -> None:
    rollover.rollover(report=Steps())


def archived(*addresses: str, order: uuid.UUID, back: int = 5) -> str:
    """Archive an e-mail of an order to each address, in an old month, drop the table, return its name."""
    month = make_partition(EmailNotification, back=back)
    for number, address in enumerate(addresses):
        id = fill(month, 1, order_id=order, recipient_email=address, to_name=f"To {address}")[0]
        moved = uuid.UUID(int=id.int + 1 + number)
        EmailNotification.objects.filter(id=id).update(id=moved, idempotency_key=str(moved))
    roll()
    age_records()
    roll()
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [month.name])
        assert cursor.fetchone() == (None,)
    return month.name


def next_month() -> None:
    Erasure.objects.update(requested_at=Now() - dt.timedelta(days=31))
    roll()


def whose(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["recipient_email"] for row in rows)


class TestArchives:
    def test_give_and_lose_only_the_emails_to_the_person(self, tmp_path):
        order = corrected()
        archived(BOB, ANN, order=order.id)
        assert whose(export(BOB)["email_notifications"]) == [BOB, BOB]
        assert whose(export(ANN)["email_notifications"]) == [ANN] * 3
        erase(BOB, archives_now=True)
        assert grep_archives(tmp_path, BOB) == [] and len(grep_archives(tmp_path, ANN)) == 1
        erase(ANN, archives_now=True)
        assert grep_archives(tmp_path, ANN) == []

    def test_tell_next_month_by_the_hash_alone_which_emails_are_erased(self, tmp_path):
        order = corrected()
        name = archived("Bob@Example.com", ANN, order=order.id)
        assert erase(BOB).archives == [name]
        assert grep(BOB) == []
        next_month()
        assert grep_archives(tmp_path, BOB) == [] and len(grep_archives(tmp_path, ANN)) == 1
        assert Erasure.objects.get().archives == []

    def test_are_searched_for_a_person_who_has_nothing_else_left(self, tmp_path):
        name = archived(BOB, ANN, order=new_id())
        assert len(export(BOB)["email_notifications"]) == 1
        assert erase(BOB).archives == [name]
        next_month()
        assert grep_archives(tmp_path, BOB) == [] and len(grep_archives(tmp_path, ANN)) == 1

    @pytest.mark.parametrize("other", ["joann@example.com", "ann@example.com.au", "o'ann@example.com"])
    def test_of_a_namesake_are_left_out_and_byte_for_byte_the_same(self, other):
        name = archived(other, order=new_id())
        before = DetachedPartition.objects.get(name=name).manifest
        assert export(ANN)["email_notifications"] == []
        erase(ANN, archives_now=True)
        assert Erasure.objects.get().archives == []
        assert DetachedPartition.objects.get(name=name).manifest == before

    def test_wait_for_everybody_because_only_reading_them_tells_whose_they_are(self, tmp_path):
        name = archived(BOB, ANN, order=new_id())
        assert erase("carl@example.com").archives == erase(BOB).archives == [name]
        next_month()
        assert grep_archives(tmp_path, BOB) == [] and len(grep_archives(tmp_path, ANN)) == 1

    def test_restored_beside_the_table_lose_only_the_emails_to_the_person(self):
        name = archived("BOB@example.com", ANN, order=corrected().id)
        call_command("partitions", "restore", name)
        erase(BOB)
        assert grep(BOB) == [] and f"{name}_restored" in grep(ANN)


def test_a_detached_day_loses_a_key_with_the_address_whoever_owns_the_order():
    day = make_partition(OutboxEvent, back=12)
    for address in (BOB, "jobob@example.com"):
        when = day.since + dt.timedelta(hours=1)
        OutboxEvent.objects.create(
            id=uuid.UUID(int=(round(when.timestamp() * 1000) << 80) | (new_id().int & ((1 << 76) - 1))),
            created_at=when,
            published_at=when,
            aggregate_type="order",
            aggregate_id=new_id(),
            event_type="order.order.paid.v1",
            sequence=1,
            payload={},
            metadata={"idempotencyKey": f"{address}-1"},
            shard=1,
        )
    roll()
    assert day.name in grep(f'"{BOB}') and not EmailNotification.objects.exists()
    assert erase(BOB).counts == {"outbox_events": 1}
    assert grep(f'"{BOB}') == [] and grep("jobob@example.com") == [day.name]


class TestCopies:
    def test_to_another_address_belong_to_that_address(self):
        order = place_order(user_id=uuid.uuid4(), email=BOB, name="Bob", total_amount=500)
        pay_order(order_id=order.id)
        send_all()
        send_copy(notification_id=mails(BOB)[0].id, recipient_email=ANN)
        send_all()
        assert whose(export(BOB)["email_notifications"]) == [BOB] and export(ANN)["orders"] == []
        assert whose(export(ANN)["email_notifications"]) == [ANN]
        erase(ANN)
        order.refresh_from_db()
        assert order.email == BOB and len(mails(BOB)) == 1 and grep(ANN) == []

    def test_that_wait_to_be_sent_to_another_address_are_sent_after_the_erasure(self):
        order = place_order(user_id=uuid.uuid4(), email=BOB, name="Bob", total_amount=500)
        pay_order(order_id=order.id)
        send_all()
        copy = send_copy(notification_id=mails(BOB)[0].id, recipient_email=ANN)
        erase(BOB, force=True)
        assert [(mail.id, mail.status) for mail in mails(ANN)] == [(copy, "pending")]
        with pytest.raises(erasure.InFlight):
            erase(ANN)
        erase(ANN, force=True)
        assert EmailNotification.objects.get(id=copy).status == "discarded" and grep(ANN) == []

    def test_being_sent_are_erased_when_their_outcome_is_known(self, monkeypatch):
        corrected()
        EmailNotification.objects.filter(recipient_email=BOB).update(
            status="processing", sent_at=None, claimed_at=Now(), claim_token=uuid.uuid4()
        )

        def settle(_: float) -> None:
            EmailNotification.objects.filter(status="processing").update(
                status="sent", sent_at=Now(), claimed_at=None, claim_token=None
            )

        monkeypatch.setattr(erasure.time, "sleep", settle)
        erase(BOB, force=True)
        assert grep(BOB) == [] and len(mails(ANN)) == 2


class TestStoredAnswers:
    def answer(self, key: str, **fields: Any) -> None:
        body = json.dumps(fields, ensure_ascii=False)
        IdempotencyKey.objects.create(scope="token:1", key=key, answer_status=201, answer_body=body)

    def body(self, key: str) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(IdempotencyKey.objects.get(key=key).answer_body)
        return body

    def both(self) -> Order:
        """Store the answers to a placing with Bob's address and to a later copy to Ann's."""
        order = corrected()
        self.answer("place", id=str(order.id), email=BOB, name="Ann Example", items=[{"name": "Tea"}])
        self.answer("copy", id=str(new_id()), order_id=str(order.id), recipient_email=ANN, subject="Paid")
        self.answer(
            "resend", id=str(new_id()), order_id=str(order.id), recipient_email=BOB, subject="Paid",
            last_error="550",
        )  # fmt: skip
        return order

    def test_that_name_the_person_keep_only_their_ids_and_the_others_stay(self):
        order = self.both()
        erase(BOB)
        assert self.body("copy")["recipient_email"] == ANN and self.body("copy")["subject"] == "Paid"
        assert self.body("place") == {"id": str(order.id)}
        assert self.body("resend").keys() == {"id", "order_id"}

    def test_of_the_persons_orders_keep_only_their_ids_whomever_else_they_name(self):
        self.both()
        erase(ANN)
        assert [self.body(key).keys() for key in ("place", "copy", "resend")] == [
            {"id"},
            {"id", "order_id"},
            {"id", "order_id"},
        ]

    def test_are_exported_without_the_address_of_somebody_else(self):
        order = self.both()
        self.answer(f"{BOB}-2", id=str(order.id), email=ANN, name="Ann")
        for email, other, count in ((BOB, ANN, 3), (ANN, BOB, 4)):
            answers = export(email)["idempotency_keys"]
            assert len(answers) == count
            assert other not in json.dumps(answers, default=str)


class TestDeadEvents:
    def test_are_exported_without_the_address_of_somebody_else(self):
        order = corrected()
        dead_event(json.dumps({"data": {"orderId": str(order.id), "payer": BOB, "receipt": ANN}}))
        for email, other in ((BOB, ANN), (ANN, BOB)):
            document = export(email)
            assert len(document["dead_events"]) == 1
            assert other not in json.dumps(document, default=str)

    def test_lose_no_key_of_an_order_that_names_somebody_else_to_an_export(self):
        order = corrected()
        OutboxEvent.objects.filter(aggregate_id=order.id).update(metadata={"idempotencyKey": f"{BOB}-1"})
        assert export(BOB)["outbox_events"] == []
        assert BOB not in json.dumps(export(ANN), default=str)
        erase(BOB)
        assert grep(BOB) == []
        assert "trackingUrl" in OutboxEvent.objects.get(event_type="order.order.completed.v1").payload


def test_do_not_keep_an_order_that_is_corrected_during_the_erasure(monkeypatch):
    order = place_order(user_id=uuid.uuid4(), email=BOB, name="Ann Example", total_amount=500)
    record = erasure._record

    def correct_after(*args: Any) -> Any:
        recorded = record(*args)
        Order.objects.filter(id=order.id).update(email=ANN)
        return recorded

    monkeypatch.setattr(erasure, "_record", correct_after)
    erase(BOB, force=True)
    order.refresh_from_db()
    assert (order.email, order.name) == (ANN, "Ann Example")


DYING = """
import os, signal, sys
import django
django.setup()
from orders.privacy import erasure

name = sys.argv[1]
real = getattr(erasure, name)

def die(*args, **options):
    real(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(erasure, name, die)
erasure.erase_person(email=sys.argv[2], report=lambda step, **facts: None, force=True)
erasure.rewrite_archives(report=lambda step, **facts: None)
"""


@pytest.mark.parametrize(
    "name",
    [
        "_record",
        "_erase_live",
        "erase_rows",
        "_erase_late",
        "erase_answers",
        "erase_from_archive",
    ],
)
def test_an_erasure_killed_right_after_this_function_is_ended_by_the_next_and_is_of_one_person(
    name, tmp_path
):
    order = corrected()
    archived(BOB, ANN, order=order.id)
    call_command("partitions", "restore", DetachedPartition.objects.get().name)
    command = [sys.executable, "-c", DYING, name, BOB]
    died = warm.run(command, environment=dying_environment(tmp_path), timeout=60)
    assert died.returncode == -signal.SIGKILL
    erase(BOB, archives_now=True)
    assert grep(BOB) == [] and grep_archives(tmp_path, BOB) == []
    order.refresh_from_db()
    assert order.email == ANN and len(mails(ANN)) == 2 and len(grep_archives(tmp_path, ANN)) == 1


@pytest.mark.parametrize("verb", ["export", "erase"])
def test_nobody_is_the_address_that_replaces_erased_ones(verb):
    with pytest.raises(CommandError, match="every erased person"):
        call_command("privacy", verb, "--email", ERASED_ADDRESS.upper())
