"""Commands of other services do what the API, the admin and a management command do, once for each event."""

from __future__ import annotations

import threading
import uuid

import pytest

from tests.kit.events import envelope, handle, order, received, status
from tests.kit.inbound_commands import CANCEL, CLEAN_UP, COMPLETE, PLACE, RESEND, give, reason
from tests.kit.mails import make_mail
from tests.kit.orders import pay_order
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    Heartbeat,
    Order,
    keep_partitions,
    rollover,
    subscribed,
)
from tests.kit.words import mail_services as services

pytestmark = pytest.mark.django_db


def dead_mails(count: int) -> list[EmailNotification]:
    mails = [make_mail() for _ in range(count)]
    ids = [mail.id for mail in mails]
    EmailNotification.objects.filter(id__in=ids).update(
        status="dead_lettered", ended_by="provider", last_error="400 no"
    )
    return mails


def states() -> list[str]:
    return sorted(EmailNotification.objects.values_list("status", flat=True))


class TestOrders:
    def test_place_order_places_one_with_its_event_however_often_the_command_comes(self):
        item = {"sku": "TEA", "name": "Tea", "quantity": 2, "unitAmount": 250}
        data = {"userId": str(uuid.uuid4()), "email": "a@example.com", "totalAmount": 500, "items": [item]}
        command = envelope(PLACE, data)
        assert [handle(received(PLACE, command)) for _ in range(3)] == ["done", "repeat", "repeat"]
        placed = Order.objects.get()
        assert (placed.source, placed.status, placed.total_amount) == ("", "pending", 500)
        assert placed.items[0]["unit_amount"] == 250
        event = DomainEvent.objects.get()
        assert event.event_type == "order.order.placed.v1"
        assert event.metadata["correlationId"] == "saga-1"
        assert event.metadata["idempotencyKey"] == f"event:{command['eventId']}"

    def test_complete_and_cancel_move_an_order_as_the_api_does(self):
        completed, cancelled = order(), order()
        pay_order(order_id=completed.id)
        assert give(COMPLETE, orderId=str(completed.id), trackingUrl="https://p.example/1") == "done"
        assert give(CANCEL, orderId=str(cancelled.id), reason="Out of tea") == "done"
        assert (status(completed), status(cancelled)) == ("completed", "cancelled")
        assert "Out of tea" in EmailNotification.objects.get(event_type="order.cancelled").body_text
        assert DomainEvent.objects.filter(event_type="order.order.completed.v1").exists()

    def test_what_the_api_would_refuse_is_a_dead_letter(self):
        placed = order()
        assert give(COMPLETE, orderId=str(placed.id)) == "dead"
        assert "An order that is pending cannot be changed by 'complete'" in reason()
        assert status(placed) == "pending"

    @pytest.mark.parametrize(
        ("topic", "data", "said"),
        [
            (PLACE, {"email": "a@example.com", "totalAmount": 5}, "data.userId: This field is required."),
            (
                PLACE,
                {"total_amount": 5},
                "data.total_amount: Unknown field. Use userId, email, ",
            ),
            (CANCEL, {"orderId": str(uuid.UUID(int=5))}, "There is no order"),
            (CANCEL, {"orderId": "5"}, "data.orderId: This must be a UUID"),
            (CANCEL, {"orderId": str(uuid.UUID(int=5)), "reason": "a\nb"}, "data.reason: Control"),
            (RESEND, {"notificationIds": []}, "data.notificationIds"),
            (RESEND, {"ids": []}, "data.ids: Unknown field. Use notificationIds."),
            (CLEAN_UP, {"days": 1}, "data.days: Unknown field. Remove it"),
        ],
    )
    def test_a_command_that_is_not_valid(self, topic, data, said):
        assert give(topic, **data) == "dead"
        assert said in reason()
        assert not Order.objects.exists()

    def test_commands_are_read_only_where_the_settings_ask_for_them(self, settings):
        assert PLACE not in subscribed()
        settings.EVENT_COMMANDS = True
        assert {PLACE, COMPLETE, CANCEL, RESEND, CLEAN_UP} <= set(subscribed())


class TestEmails:
    def test_resend_error_emails_resends_those_that_are_named(self):
        mails = dead_mails(3)
        assert give(RESEND, notificationIds=[str(mails[0].id), str(uuid.uuid4())]) == "done"
        assert states() == ["dead_lettered", "dead_lettered", "pending"]

    def test_resend_error_emails_without_names_resends_all_but_those_that_are_suppressed(self, monkeypatch):
        monkeypatch.setattr(services, "CHUNK", 2)
        dead_mails(5)
        make_mail()
        EmailNotification.objects.filter(status="pending").update(status="suppressed", ended_by="suppressed")
        command = envelope(RESEND, {})
        assert handle(received(RESEND, command)) == "done"
        assert states() == ["pending"] * 5 + ["suppressed"]
        EmailNotification.objects.filter(status="pending").update(status="dead_lettered", ended_by="provider")
        assert handle(received(RESEND, command)) == "repeat"
        assert states() == ["dead_lettered"] * 5 + ["suppressed"]

    def test_clean_up_sent_emails_has_a_rollover_run_before_its_day_and_once(self):
        Heartbeat.beat(name=rollover.ROLLED_OVER)
        assert not rollover.is_due(interval_seconds=86_400)
        assert give(CLEAN_UP) == "done"
        assert rollover.is_due(interval_seconds=86_400)
        Heartbeat.beat(name=rollover.ROLLED_OVER)
        assert not rollover.is_due(interval_seconds=86_400)

    def test_keep_partitions_ends_its_wait_for_a_request_that_came_after_it_began(self, monkeypatch):
        Heartbeat.beat(name=rollover.REQUESTED)
        Heartbeat.objects.update(beat_at="2026-01-01T00:00Z")
        stopped, waits = threading.Event(), []

        def waited(event: threading.Event, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                give(CLEAN_UP)
            elif len(waits) > 2:
                event.set()

        monkeypatch.setattr(keep_partitions.health, "wait", waited)
        assert keep_partitions.wait(stopped=stopped, seconds=3600)
        assert len(waits) == 2 and waits[0] == keep_partitions.POLL_SECONDS
