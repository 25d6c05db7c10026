"""An export and an erasure are exactly one person's: their orders, and the e-mails addressed to them."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from orders.privacy.persons import own_mails
from tests.kit.mails import make_mail, make_mails
from tests.kit.months import Steps
from tests.kit.words import (
    ERASED_ADDRESS,
    EmailNotification,
    IdempotencyKey,
    InboundDeadLetter,
    Order,
    OutboxEvent,
    complete_order,
    erasure,
    pay_order,
    person_export,
    place_order,
    refund_order,
    send_copy,
)
from tests.rules.retention.test_privacy import grep

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ANN, BOB = "ann@example.com", "bob@example.com"


def send_all() -> None:
    EmailNotification.objects.filter(status="pending").update(status="sent", sent_at=Now())


def mails(address: str) -> list[EmailNotification]:
    return list(EmailNotification.objects.filter(recipient_email__iexact=address).order_by("id"))


def corrected(*, wrong: str = BOB) -> Order:
    """Place Ann's order with another person's address, pay it, correct the address, and complete it."""
    order = place_order(user_id=uuid.uuid4(), email=wrong, name="Ann Example", total_amount=500)
    pay_order(order_id=order.id)
    send_all()
    send_copy(notification_id=mails(wrong)[0].id, recipient_email=ANN, update_order=True)
    complete_order(order_id=order.id, tracking_url=f"https://track.example/{ANN}")
    send_all()
    order.refresh_from_db()
    assert order.email == ANN and len(mails(wrong)) == 1 and len(mails(ANN)) == 2
    return order


def export(email: str) -> dict[str, Any]:
    return person_export.export_person(email=email, report=Steps())


def erase(email: str, *, force: bool = False, archives_now: bool = False) -> erasure.ErasureReport:
    done = erasure.erase_person(email=email, report=Steps(), force=force)
    if archives_now:
        erasure.rewrite_archives(report=Steps())
    return done


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
        assert "trackingUrl" in OutboxEvent.objects.get(event_type="order.order.completed.v1").payload
        assert grep(BOB) == []
        refund_order(order_id=order.id)
        assert mails(ANN)[-1].status == "pending"

    def test_is_exported_and_erased_with_its_present_address(self):
        order = corrected()
        document = export(ANN)
        assert [one["id"] for one in document["orders"]] == [order.id]
        assert {mail["recipient_email"] for mail in document["email_notifications"]} == {ANN}
        assert BOB not in json.dumps(document, default=str)
        erase(ANN)
        order.refresh_from_db()
        assert (order.email, order.name, mails(ANN)) == (ERASED_ADDRESS, "", [])
        assert grep(ANN) == [] and len(mails(BOB)) == 1
        assert "trackingUrl" not in OutboxEvent.objects.get(event_type="order.order.completed.v1").payload

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
        written = "".join(f"\\u{ord(one):04X}" if one in escaped else one for one in address)
        text = f'{{"data": {{"payer": "{written}", "note": "\\n{written}\\t"}}}}'
        InboundDeadLetter.objects.create(
            topic="t", key=address, event_id=uuid.uuid4(), consumer="c", envelope=text, error=f"no: {text}"
        )
        answer = {"id": str(uuid.uuid4()), "email": address, "name": "Jo", "last_error": f"<{address}>?"}
        IdempotencyKey.objects.create(
            scope="token:1", key=f"refund:{address}", answer_status=200, answer_body=json.dumps(answer)
        )

    def kept(self) -> tuple[list[Any], list[Any]]:
        events = InboundDeadLetter.objects.order_by("id").values_list("key", "envelope", "discarded_at")
        return list(events), sorted(IdempotencyKey.objects.values_list("key", "answer_body"))

    @pytest.mark.parametrize("escaped", ["", "@", "'+.-_", "@anexmplco.'+-_"])
    def test_keep_their_stored_answers_keys_and_dead_events(self, escaped):
        for other in NAMESAKES:
            self.keep(other, escaped=escaped)
        before = self.kept()
        document = export(ANN)
        assert (document["dead_events"], document["idempotency_keys"]) == ([], [])
        erase(ANN)
        assert self.kept() == before

    @pytest.mark.parametrize("escaped", ["", "@", "@anexmplco.'+-_"])
    def test_are_found_and_erased_by_their_own_address(self, escaped):
        for number, other in enumerate([ANN, *NAMESAKES], start=1):
            self.keep(other, escaped=escaped)
            document = export(other)
            assert [one["key"] for one in document["dead_events"]] == [other]
            assert [one["key"] for one in document["idempotency_keys"]] == [f"refund:{other}"]
            assert erase(other).counts == {"dead_events": 1, "idempotency_keys": 1}
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
    make_mails(20_000, status="sent")
    make_mail(status="sent", recipient_email="Ann@Example.com")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE email_notifications")
    with CaptureQueriesContext(connection) as captured:
        assert own_mails("aNN@example.com").count() == 1
        assert len(export("aNN@example.com")["email_notifications"]) == 1
        erase("aNN@example.com")
    assert mails("ann@example.com") == []
    statements = [entry["sql"] for entry in captured if "UPPER(" in entry["sql"].upper()]
    read = [one for one in statements if 'FROM "email_notifications"' in one and one.startswith("SELECT")]
    assert len(read) >= 4
    plans = []
    for statement in read:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + statement.replace(" FOR UPDATE", ""))
            plans.append("\n".join(row[0] for row in cursor.fetchall()))
    for plan in plans:  # of another index only where it finds fewer rows
        # Partitions without a row may be read as they are.
        assert not [one for one in plan.splitlines() if "Seq Scan" in one and "rows=1 " not in one], plan
    assert sum("_upper_id_idx" in plan for plan in plans) >= 4, plans


def test_an_email_that_a_worker_claims_again_before_its_erasure_is_waited_for_and_erased(monkeypatch):
    place_order(user_id=uuid.uuid4(), email=ANN, total_amount=500)
    make_mail(recipient_email=ANN, status="processing", claimed_at=Now())
    rows, erase_live = EmailNotification.objects.filter(recipient_email=ANN), erasure._erase_live
    claims = iter([True])

    def settle(step: str, **facts: object) -> None:
        if step == "waiting":
            rows.update(status="failed", claimed_at=None, claim_token=None)

    def after_a_claim(*args: Any) -> Any:
        if rows.filter(status="failed").exists() and next(claims, False):
            EmailNotification.objects.claim(limit=1)
        return erase_live(*args)

    monkeypatch.setattr(erasure, "_erase_live", after_a_claim)
    erasure.erase_person(email=ANN, report=settle, force=True)
    assert next(claims, None) is None and mails(ANN) == [] and grep(ANN) == []
