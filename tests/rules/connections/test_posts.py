"""Posts of connected shops: each has its effects once, in the order of arrival, or a reason in words."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from notifications.changes.turns import find_overtaken
from notifications.content.copies import NotCopied, copy_email
from notifications.events import TOPICS
from runtime.process import cached_rows
from shop_connections import process
from shop_connections.changes import LATE
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_next, process_waiting, retry
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.events import told
from tests.kit.plain_shop import SOURCE, body_of, come_at_once, connect, plain_shop, post
from tests.kit.profiles import save_profile
from tests.kit.races import together
from tests.kit.words import DomainEvent, EmailNotification, Order, Pause, Status, give_up, our_id, resend

__all__ = ["plain_shop"]
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])
HOUR, MINUTE = dt.timedelta(hours=1), dt.timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _quiet(settings: Any) -> None:
    settings.FAST_PATH = False


def take(*bodies: bytes) -> None:
    """Post these bodies, and process all that waits."""
    for body in bodies:
        assert post(body).status_code == 202
    come_at_once()
    assert process_waiting(seconds=60) == "none"


def state_of(order_id: str) -> str:
    return Order.objects.get(id=our_id(source=SOURCE, id=order_id)).status


def emails_of(order_id: str) -> list[tuple[str, str]]:
    rows = EmailNotification.objects.filter(order_id=our_id(source=SOURCE, id=order_id)).order_by("id")
    return list(rows.values_list("event_type", "status"))


class TestEffects:
    def test_a_post_becomes_the_order_and_its_emails(self, plain_shop):
        take(body_of("A-1001", "placed", "paid"))
        assert state_of("A-1001") == "paid"
        assert emails_of("A-1001") == [("order.paid", "discarded")]
        row = ConnectionPost.objects.get()
        assert (row.reason, row.reference, row.done_at is not None) == ("", "A-1001", True)

    def test_a_post_about_something_else_is_done_without_an_effect(self, plain_shop):
        take(b"{}")
        assert ConnectionPost.objects.get().done_at is not None
        assert not Order.objects.exists()

    def test_a_repeated_post_changes_nothing(self, plain_shop):
        body = body_of("A-1001", "placed", "paid")
        take(body, body)
        assert Order.objects.get().version == 1
        assert len(emails_of("A-1001")) == 1

    def test_posts_are_processed_in_the_order_of_their_arrival(self, plain_shop):
        at = timezone.now()
        bodies = [body_of("A-1001", change, at=at) for change in ("placed", "paid", "completed")]
        take(*bodies)
        assert state_of("A-1001") == "completed"

    def test_a_save_without_a_change_is_remembered_so_that_an_earlier_one_comes_too_late(self, plain_shop):
        now = timezone.now()
        take(body_of("A-1001", "placed", "paid", at=now - HOUR))
        take(body_of("A-1001", at=now))
        assert Order.objects.get().reported_at == now
        take(body_of("A-1001", "completed", at=now - HOUR / 2))
        assert state_of("A-1001") == "paid"


class TestFailures:
    def test_an_unusable_post_has_its_reason_and_the_next_one_goes_on(self, plain_shop):
        take(body_of("A-1001", "placed"))
        take(body_of("A-1001", "paid", fault="the order has no currency"))
        take(body_of("A-1001", "completed"))
        assert state_of("A-1001") == "completed"
        row = ConnectionPost.objects.get(done_at=None)
        assert (row.reason, row.reference) == ("the order has no currency", "A-1001")

    @pytest.mark.parametrize(
        "body", [b"", b"nothing", b'{"id": "7"}', b"\xff\xfe", b"[" * 200, b'{"id":1,"id":2}']
    )
    def test_no_body_stops_the_line(self, plain_shop, body):
        take(body, body_of("A-1001", "placed"))
        assert state_of("A-1001") == "pending"
        assert ConnectionPost.objects.get(done_at=None).reason

    def test_a_fault_of_ours_names_itself(self, plain_shop):
        take(body_of("A-1001", "placed", crash="no such key"))
        assert ConnectionPost.objects.get().reason == "ZeroDivisionError: no such key"

    def test_a_post_that_fails_in_its_second_event_has_no_effect(self, plain_shop):
        body = body_of("A-1001", changes=[("placed", {}), ("paid", {"currency": "12"})])
        take(body)
        assert not Order.objects.exists()
        assert "currency" in ConnectionPost.objects.get().reason

    def test_an_unusable_post_can_be_tried_again(self, plain_shop):
        take(body_of("A-1001", "placed", fault="no"))
        row = ConnectionPost.objects.get()
        row.body = body_of("A-1001", "placed").decode()
        row.save()
        assert retry(ids=[row.id]) == [row.id]
        assert process_waiting(seconds=60) == "none"
        assert state_of("A-1001") == "pending"
        assert retry(ids=[row.id]) == []

    def test_a_crash_before_the_commit_repeats_and_doubles_nothing(self, plain_shop, monkeypatch):
        post(body_of("A-1001", "placed", "paid"))
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(ConnectionPost, "save", lambda *_, **__: 1 / 0)
            process_waiting(seconds=60)
        assert not Order.objects.exists()
        process_waiting(seconds=60)
        assert len(emails_of("A-1001")) == 1

    def test_an_order_of_another_source_is_not_touched(self, plain_shop):
        id = "0199aaaa-0000-7000-8000-000000000001"
        connect("shop-v")
        body = body_of(id, "placed")
        assert post(body, source="shop-v").status_code == 202
        take(body_of(id, "placed", "paid"))
        assert Order.objects.get().status == "pending"
        assert "belongs to shop-v" in ConnectionPost.objects.get(done_at=None).reason


class TestTheNewestFirst:
    """Of one order's posts the newest is enough, because each has the whole order."""

    def reasons(self) -> list[str]:
        return list(ConnectionPost.objects.order_by("id").values_list("reason", flat=True))

    def test_older_posts_of_the_order_are_done_without_being_read(self, plain_shop):
        now = timezone.now()
        take(
            body_of("A-1", "placed", at=now - 3 * MINUTE),
            body_of("A-1", "placed", "paid", at=now - MINUTE),
            body_of("A-1", fault="it cannot be read", at=now - 2 * MINUTE),
            body_of("A-2", "placed", at=now - 3 * MINUTE),
        )
        assert self.reasons() == [LATE, "", LATE, ""]
        assert (state_of("A-1"), state_of("A-2")) == ("paid", "pending")
        assert Order.objects.get(reference="A-1").version == 1

    def test_of_equal_times_the_one_that_came_last_is_the_newest(self, plain_shop):
        now = timezone.now() - MINUTE
        take(body_of("A-1", "placed", at=now), body_of("A-1", "placed", "paid", at=now))
        assert self.reasons() == [LATE, ""] and state_of("A-1") == "paid"

    def test_if_it_cannot_be_used_the_next_one_is_tried(self, plain_shop):
        now = timezone.now()
        take(
            body_of("A-1", "placed", at=now - 3 * MINUTE),
            body_of("A-1", "placed", "paid", at=now - 2 * MINUTE),
            body_of("A-1", fault="no", at=now - MINUTE),
        )
        assert self.reasons() == [LATE, "", "no"] and state_of("A-1") == "paid"

    def test_a_save_ahead_of_its_post_is_not_known_to_be_the_newest(self, plain_shop):
        now = timezone.now()
        take(
            body_of("A-1", "placed", at=now + dt.timedelta(days=300)),
            body_of("A-1", "placed", "paid", at=now - MINUTE),
        )
        assert LATE not in self.reasons() and state_of("A-1") == "paid"

    def test_a_save_without_a_certain_time_keeps_its_place_among_the_others(self, plain_shop):
        now = timezone.now()
        take(
            body_of("A-1", "placed", at=now - 2 * MINUTE),
            body_of("A-1", "placed", "paid", at=now + dt.timedelta(days=300)),
            body_of("A-1", "placed", "paid", "cancelled", at=now - MINUTE),
        )
        assert self.reasons() == ["", "", ""] and state_of("A-1") == "cancelled"

    def test_a_save_before_going_live_is_not_told_by_one_since_then(self, plain_shop):
        take(body_of("A-1", "placed"))
        live_at = timezone.now() - 5 * MINUTE
        Order.objects.update(reported_at=live_at - HOUR)
        ShopConnection.objects.update(state="live", live_at=live_at)
        take(
            body_of("A-1", "placed", "cancelled", at=live_at - MINUTE),
            body_of("A-1", "placed", "cancelled", at=live_at + MINUTE),
        )
        assert self.reasons()[1:] == ["", ""]
        assert emails_of("A-1") == [("order.cancelled", "discarded")]

    def test_thousands_of_posts_of_one_order_are_one_step(self, plain_shop):
        now = timezone.now()
        for number in range(100):
            post(body_of("A-1", "placed", "paid", at=now - number * dt.timedelta(seconds=1)))
        assert process_next(SOURCE) == "done"
        assert not ConnectionPost.objects.waiting().exists()


class TestOneAtATime:
    def test_another_worker_leaves_a_connection_that_is_worked_on(self, plain_shop):
        post(body_of("A-1001", "placed"))
        with connections["direct"].cursor() as other:
            other.execute("SELECT pg_advisory_lock(hashtext('connection_posts'), hashtext(%s))", [SOURCE])
            try:
                assert process_waiting(seconds=60) == "busy"
                assert not Order.objects.exists()
            finally:
                other.execute("SELECT pg_advisory_unlock_all()")
        assert process_waiting(seconds=60) == "none"
        assert Order.objects.exists()

    def test_a_shop_with_many_posts_lets_those_of_others_in_between(self, plain_shop, monkeypatch):
        connect("shop-x")
        for source, order_id in ((SOURCE, "A-1"), (SOURCE, "A-2"), (SOURCE, "A-3"), ("shop-x", "B-1")):
            post(body_of(order_id, "placed"), source=source)
        done = []
        monkeypatch.setattr(process, "_tell", lambda row, result: done.append(row.reference))
        assert process_waiting(seconds=60) == "none"
        assert done == ["A-1", "B-1", "A-2", "A-3"]

    def test_several_workers_process_each_post_once_and_in_order(self, plain_shop):
        for number in range(10):
            for count in (1, 2, 3):
                post(body_of(f"A-{number}", *("placed", "paid", "completed")[:count]))

        def work(_: int) -> None:
            while process_waiting(seconds=60) == "busy":
                time.sleep(0.01)

        together(4, work)
        assert ConnectionPost.objects.exclude(done_at=None).count() == 30
        assert {state_of(f"A-{number}") for number in range(10)} == {"completed"}
        assert 10 <= EmailNotification.objects.count() <= 20

    def test_a_pause_of_the_consumers_and_a_connection_that_is_off_leave_posts_waiting(self, plain_shop):
        post(body_of("A-1001", "placed"))
        Pause.objects.create(part=Pause.Part.CONSUMERS)
        process_waiting(seconds=60)
        Pause.objects.all().delete()
        ShopConnection.objects.update(state="off")
        process_waiting(seconds=60)
        assert ConnectionPost.objects.waiting().count() == 1
        ShopConnection.objects.update(state="trial")
        process_waiting(seconds=60)
        assert ConnectionPost.objects.waiting().count() == 0


class TestTrial:
    def go_live(self, at: dt.datetime) -> None:
        ShopConnection.objects.update(state="live", live_at=at)

    def test_an_email_of_a_trial_is_written_and_says_why_it_is_not_sent(self, plain_shop):
        take(body_of("A-1001", "placed", "paid"))
        email = EmailNotification.objects.get()
        assert (email.status, email.last_error) == (Status.DISCARDED, "not sent: trial")
        assert email.body and email.recipient_email

    @pytest.mark.parametrize(("minutes", "status"), [(-1, "discarded"), (0, "pending"), (1, "pending")])
    def test_the_time_of_a_change_decides_whether_it_is_history(self, plain_shop, minutes, status):
        live_at = timezone.now() - HOUR
        take(body_of("A-1001", "placed", at=live_at - HOUR))
        self.go_live(live_at)
        take(body_of("A-1001", "paid", at=live_at + dt.timedelta(minutes=minutes)))
        assert emails_of("A-1001")[-1:] == [("order.paid", status)]

    def test_a_later_change_of_an_older_order_sends(self, plain_shop):
        take(body_of("A-1001", "placed", "paid"))
        self.go_live(timezone.now())
        take(body_of("A-1001", "completed"))
        assert emails_of("A-1001") == [("order.paid", "discarded"), ("order.completed", "pending")]

    def test_news_that_is_too_old_is_a_dead_letter(self, plain_shop, settings):
        self.go_live(timezone.now() - 100 * HOUR)
        take(body_of("A-1001", "placed", "paid", at=timezone.now() - 80 * HOUR))
        email = EmailNotification.objects.get()
        assert (email.status, email.last_error) == ("dead_lettered", "too old: its change came 3 days late")

    def test_the_shop_copy_of_old_news_is_a_dead_letter_with_its_event_too(self, plain_shop, settings):
        settings.EMAIL_EVENTS = True
        save_profile(SOURCE, copy_to="office@example.com")
        self.go_live(timezone.now() - 100 * HOUR)
        take(body_of("A-1001", "placed", "paid", at=timezone.now() - 80 * HOUR))
        assert emails_of("A-1001") == [("order.paid", "dead_lettered")] * 2
        events = DomainEvent.objects.filter(event_type=TOPICS[Status.DEAD_LETTERED])
        ids = EmailNotification.objects.values_list("id", flat=True)
        assert sorted(events.values_list("aggregate_id", flat=True)) == sorted(ids)

    def test_it_cannot_be_resent_copied_or_given_up(self, plain_shop):
        take(body_of("A-1001", "placed", "paid"))
        email = EmailNotification.objects.get()
        changes, (refusal,) = resend(ids=[email.id])
        assert (changes, refusal.reason) == ([], "it is not sent: trial")
        assert give_up(ids=[email.id])[0] == []
        with transaction.atomic(), pytest.raises(NotCopied, match="it is not sent: trial"):
            copy_email(id=email.id)
        assert list(EmailNotification.objects.values_list("status")) == [("discarded",)]

    def test_no_way_leads_to_a_second_try(self, plain_shop, admin_client):
        take(body_of("A-1001", "placed", "paid"))
        email = EmailNotification.objects.get()
        api = Api(make_token())
        for path, slug in (("resend", "not-resendable"), ("copies", "not-copyable")):
            answer = api.post(f"/api/v1/notifications/{email.id}/{path}", {} if path == "copies" else None)
            assert assert_problem(answer, 409, slug)["detail"].count("not sent: trial") == 1
        page = f"/admin/notifications/emailnotification/{email.id}/"
        text = admin_client.get(f"{page}change/").content.decode()
        assert "Not sent: trial." in text and 'value="resend"' not in text
        admin_client.post(f"{page}act/", {"action": "resend"})
        assert list(EmailNotification.objects.values_list("status")) == [("discarded",)]

    def test_it_overtakes_no_email_that_was_live(self, plain_shop):
        self.go_live(timezone.now() - HOUR)
        take(body_of("A-1001", "placed", "paid"))
        ShopConnection.objects.update(state="trial")
        take(body_of("A-1001", "cancelled"))
        assert emails_of("A-1001") == [("order.paid", "pending"), ("order.cancelled", "discarded")]
        assert find_overtaken(EmailNotification.objects.filter(status="pending")) == {}

    @pytest.mark.parametrize("names", [[], [SOURCE]])  # the shop must be named for events of a broker
    def test_it_is_the_same_for_events_over_the_api(self, plain_shop, settings, names):
        settings.ORDER_SOURCES = names
        cached_rows.refresh()
        api = Api(make_token(scopes=["events:write"]))
        event = told("paid", "A-1001", 1, source=SOURCE)
        answer = api.post("/api/v1/events", event).json()
        assert (answer["email"], answer["reason"]) == ("none", "not sent: trial")
        assert emails_of("A-1001") == [("order.paid", "discarded")]
