"""An export and an erasure are exactly one person's: in rows, copies, archives, answers, and old records."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from orders.privacy.persons import platform_emails
from tests.kit.mails import make_mail, make_mails
from tests.kit.months import age_records, fill, make_partition, roll
from tests.kit.orders import pay_order, place_order, refund_order
from tests.kit.people import (
    ANN,
    BOB,
    corrected,
    dead_event,
    erase,
    export,
    grep,
    grep_cold_files,
    keep_answer,
    keep_letter,
    mails,
    send_all,
)
from tests.kit.waiting import replace_time
from tests.kit.words import (
    ERASED_ADDRESS,
    DetachedPartition,
    DomainEvent,
    EmailNotification,
    Erasure,
    IdempotencyKey,
    InboundDeadLetter,
    Order,
    claim,
    erasure,
    key_hash,
    new_id,
    send_copy,
)

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]


class TestACorrectedOrder:
    def test_is_not_in_the_export_of_the_address_it_was_placed_with(self):
        corrected()
        document = export(BOB)
        assert document["orders"] == [] and document["outbox_events"] == []
        assert [mail["recipient_email"] for mail in document["email_notifications"]] == [BOB]
        assert ANN not in json.dumps(document, default=str)

    def test_stays_when_the_address_it_was_placed_with_is_erased(self):
        order = corrected()
        before = {mail.id: mail.body for mail in mails(ANN)}
        done = erase(BOB)
        assert done.counts["email_notifications"] == 1 and not done.counts.get("orders")
        order.refresh_from_db()
        assert (order.email, order.name) == (ANN, "Ann Example")
        assert {mail.id: mail.body for mail in mails(ANN)} == before
        assert "trackingUrl" in DomainEvent.objects.get(event_type="order.order.completed.v1").payload
        assert grep(BOB) == []
        refund_order(order_id=order.id)
        assert mails(ANN)[-1].status == "pending"

    def test_is_exported_and_erased_with_its_present_address(self):
        order = corrected()
        document = export(ANN)
        assert [order["id"] for order in document["orders"]] == [order.id]
        assert {mail["recipient_email"] for mail in document["email_notifications"]} == {ANN}
        assert BOB not in json.dumps(document, default=str)
        erase(ANN)
        order.refresh_from_db()
        assert (order.email, order.name, mails(ANN)) == (ERASED_ADDRESS, "", [])
        assert grep(ANN) == [] and len(mails(BOB)) == 1
        assert "trackingUrl" not in DomainEvent.objects.get(event_type="order.order.completed.v1").payload

    def test_has_each_address_erased_in_either_order_and_again(self):
        corrected()
        for address in (BOB, ANN, BOB):
            erase(address)
        assert grep(BOB) == [] and grep(ANN) == [] and grep("Ann Example") == []


#: Addresses of other people that have Ann's, or another one of these, as a part.
NAMESAKES = [
    *("joann@example.com", "jo.ann@example.com", "jo-ann@example.com", "jo_ann@example.com"),
    *("jo+ann@example.com", "o'ann@example.com", "ann@example.com.au", "ann@example.community"),
    *("ann@example.co-op.com", "ann@example.co", "ann+tea@example.com", "ann@mail.example.com"),
]


class TestNamesakes:
    """A person whose address is a part of another person's address."""

    def keep(self, address: str, *, escaped: str = "") -> None:
        """Keep an inbound dead letter and the answer of a refund that name an address."""
        written = "".join(
            f"\\u{ord(character):04X}" if character in escaped else character for character in address
        )
        text = f'{{"data": {{"payer": "{written}", "note": "\\n{written}\\t"}}}}'
        keep_letter(text, key=address, error=f"no: {text}")
        answer = {"id": str(uuid.uuid4()), "email": address, "name": "Jo", "last_error": f"<{address}>?"}
        keep_answer(key_hash(address), body=answer)

    def kept(self) -> tuple[list[Any], list[Any]]:
        events = InboundDeadLetter.objects.order_by("id").values_list("key", "envelope", "discarded_at")
        return list(events), sorted(IdempotencyKey.objects.values_list("key", "answer_body"))

    @pytest.mark.parametrize("escaped", ["", "@", "'+.-_", "@anexmplco.'+-_"])
    def test_keep_their_stored_answers_keys_and_dead_events(self, escaped):
        for other in NAMESAKES:
            self.keep(other, escaped=escaped)
        before = self.kept()
        document = export(ANN)
        assert (document["inbound_dead_letters"], document["idempotency_keys"]) == ([], [])
        erase(ANN)
        assert self.kept() == before

    @pytest.mark.parametrize("escaped", ["", "@", "@anexmplco.'+-_"])
    def test_are_found_and_erased_by_their_own_address(self, escaped):
        for number, other in enumerate([ANN, *NAMESAKES], start=1):
            self.keep(other, escaped=escaped)
            document = export(other)
            assert [row["key"] for row in document["inbound_dead_letters"]] == [other]
            assert [row["key"] for row in document["idempotency_keys"]] == [key_hash(other)]
            assert erase(other).counts == {"inbound_dead_letters": 1, "idempotency_keys": 1}
            assert InboundDeadLetter.objects.exclude(discarded_at=None).count() == number
        assert grep("example.co") == []

    def test_keep_their_orders_emails_and_events(self, tmp_path):
        for other in [ANN, *NAMESAKES]:
            order = place_order(user_id=uuid.uuid4(), email=other, name="Jo", total_amount=500)
            pay_order(order_id=order.id)
        send_all()
        assert len(export("ann@example.co")["email_notifications"]) == 1
        erase(ANN, force=True)
        left = Order.objects.exclude(email=ERASED_ADDRESS).values_list("email", flat=True)
        assert sorted(left) == sorted(NAMESAKES)
        assert {len(mails(other)) for other in NAMESAKES} == {1} and mails(ANN) == []


def test_a_persons_emails_are_found_in_any_case_and_by_an_index():
    make_mails(3000, status="sent")
    make_mail(status="sent", recipient_email="Ann@Example.com")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE email_notifications")
    with CaptureQueriesContext(connection) as captured:
        assert platform_emails("aNN@example.com").count() == 1
        assert len(export("aNN@example.com")["email_notifications"]) == 1
        erase("aNN@example.com")
    assert mails("ann@example.com") == []
    statements = [entry["sql"] for entry in captured if "UPPER(" in entry["sql"].upper()]
    read = [
        statement
        for statement in statements
        if 'FROM "email_notifications"' in statement and statement.startswith("SELECT")
    ]
    assert len(read) >= 4
    plans = []
    for statement in read:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + statement.replace(" FOR UPDATE", ""))
            plans.append("\n".join(row[0] for row in cursor.fetchall()))
    for plan in plans:  # of another index only where it finds fewer rows
        # Partitions without a row may be read as they are.
        assert not [line for line in plan.splitlines() if "Seq Scan" in line and "rows=1 " not in line], plan
    assert sum("_upper_id_idx" in plan for plan in plans) >= 4, plans


def test_an_email_that_a_worker_claims_again_before_its_erasure_is_waited_for_and_erased():
    place_order(user_id=uuid.uuid4(), email=ANN, total_amount=500)
    make_mail(recipient_email=ANN, status="processing", claimed_at=Now())
    rows, claimed = EmailNotification.objects.filter(recipient_email=ANN), []

    def settle(step: str, **facts: object) -> None:
        if step == "waiting":
            rows.update(status="failed", claimed_at=None, claim_token=None)

    def claim_first(execute: Any, sql: str, *arguments: Any) -> Any:
        if "FOR UPDATE" in sql and 'FROM "orders"' in sql and rows.filter(status="failed") and not claimed:
            claimed.extend(claim(limit=1))
        return execute(sql, *arguments)

    with connection.execute_wrapper(claim_first):  # before the erasure locks an order whose e-mail it found
        erasure.erase_person(email=ANN, report=settle, force=True)
    assert claimed and mails(ANN) == [] and grep(ANN) == []


def archived(*addresses: str, order: uuid.UUID) -> str:
    """Archive an e-mail of an order to each address, in an old month, drop the table, return its name."""
    month = make_partition(EmailNotification, back=5)
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
        erase(BOB, cold_files_now=True)
        assert grep_cold_files(tmp_path, BOB) == [] and len(grep_cold_files(tmp_path, ANN)) == 1
        erase(ANN, cold_files_now=True)
        assert grep_cold_files(tmp_path, ANN) == []

    def test_tell_next_month_by_the_hash_alone_which_emails_are_erased(self, tmp_path):
        order = corrected()
        name = archived("Bob@Example.com", ANN, order=order.id)
        assert erase(BOB).cold_files == [name]
        assert grep(BOB) == []
        next_month()
        assert grep_cold_files(tmp_path, BOB) == [] and len(grep_cold_files(tmp_path, ANN)) == 1
        assert Erasure.objects.get().cold_files == []

    def test_are_searched_for_a_person_who_has_nothing_else_left(self, tmp_path):
        name = archived(BOB, ANN, order=new_id())
        assert len(export(BOB)["email_notifications"]) == 1
        assert erase(BOB).cold_files == [name]
        next_month()
        assert grep_cold_files(tmp_path, BOB) == [] and len(grep_cold_files(tmp_path, ANN)) == 1

    @pytest.mark.parametrize("other", ["joann@example.com", "ann@example.com.au", "o'ann@example.com"])
    def test_of_a_namesake_are_left_out_and_byte_for_byte_the_same(self, other):
        name = archived(other, order=new_id())
        before = DetachedPartition.objects.get(name=name).manifest
        assert export(ANN)["email_notifications"] == []
        erase(ANN, cold_files_now=True)
        assert Erasure.objects.get().cold_files == []
        assert DetachedPartition.objects.get(name=name).manifest == before

    def test_wait_for_everybody_because_only_reading_them_tells_whose_they_are(self, tmp_path):
        name = archived(BOB, ANN, order=new_id())
        assert erase("carl@example.com").cold_files == erase(BOB).cold_files == [name]
        next_month()
        assert grep_cold_files(tmp_path, BOB) == [] and len(grep_cold_files(tmp_path, ANN)) == 1

    def test_restored_beside_the_table_lose_only_the_emails_to_the_person(self):
        name = archived("BOB@example.com", ANN, order=corrected().id)
        call_command("partitions", "restore", name)
        erase(BOB)
        assert grep(BOB) == [] and f"{name}_restored" in grep(ANN)


def test_a_detached_day_loses_a_key_with_the_address_whoever_owns_the_order():
    day = make_partition(DomainEvent, back=12)
    for address in (BOB, "jobob@example.com"):
        when = day.since + dt.timedelta(hours=1)
        DomainEvent.objects.create(
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
        with pytest.raises(erasure.NotFinished):
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

        replace_time(monkeypatch, erasure, sleep=settle)
        erase(BOB, force=True)
        assert grep(BOB) == [] and len(mails(ANN)) == 2


class TestStoredAnswers:
    def answer(self, order: Order, key: str, **fields: Any) -> None:
        keep_answer(key, body=fields, order_id=order.id)

    def body(self, key: str) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(IdempotencyKey.objects.get(key=key).answer_body)
        return body

    def both(self) -> Order:
        """Store the answers to a placing with Bob's address and to a later copy to Ann's."""
        order = corrected()
        self.answer(order, "place", id=str(order.id), email=BOB, name="Ann Example", items=[{"name": "Tea"}])
        copied = {"id": str(new_id()), "order_id": str(order.id), "recipient_email": ANN, "subject": "Paid"}
        self.answer(order, "copy", **copied)
        self.answer(
            order, "resend", id=str(new_id()), order_id=str(order.id), recipient_email=BOB, subject="Paid",
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
        self.answer(order, "pay", id=str(order.id), email=ANN, name="Ann")
        for email, other, count in ((BOB, ANN, 2), (ANN, BOB, 4)):
            answers = export(email)["idempotency_keys"]
            assert len(answers) == count
            assert other not in json.dumps(answers, default=str)


class TestDeadEvents:
    def test_are_exported_without_the_address_of_somebody_else(self):
        order = corrected()
        dead_event(json.dumps({"data": {"orderId": str(order.id), "payer": BOB, "receipt": ANN}}))
        for email, other in ((BOB, ANN), (ANN, BOB)):
            document = export(email)
            assert len(document["inbound_dead_letters"]) == 1
            assert other not in json.dumps(document, default=str)

    def test_lose_no_key_of_an_order_that_names_somebody_else_to_an_export(self):
        order = corrected()
        DomainEvent.objects.filter(aggregate_id=order.id).update(metadata={"idempotencyKey": f"{BOB}-1"})
        assert export(BOB)["outbox_events"] == []
        assert BOB not in json.dumps(export(ANN), default=str)
        erase(BOB)
        assert grep(BOB) == []
        assert "trackingUrl" in DomainEvent.objects.get(event_type="order.order.completed.v1").payload


def test_do_not_keep_an_order_that_is_corrected_during_the_erasure():
    order = place_order(user_id=uuid.uuid4(), email=BOB, name="Ann Example", total_amount=500)

    def correct(step: str, **facts: object) -> None:
        if step == "recorded":
            Order.objects.filter(id=order.id).update(email=ANN)

    erasure.erase_person(email=BOB, report=correct, force=True)
    order.refresh_from_db()
    assert (order.email, order.name) == (ANN, "Ann Example")


@pytest.mark.parametrize("verb", ["export", "erase"])
def test_nobody_is_the_address_that_replaces_erased_ones(verb):
    with pytest.raises(CommandError, match="every erased person"):
        call_command("privacy", verb, "--email", ERASED_ADDRESS.upper())
