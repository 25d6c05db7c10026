"""Races between sessions, with real locks.

Races for claims are in test_claims.
"""

from __future__ import annotations

import threading
import uuid

import pytest
from django.db import connections, transaction
from django_celery_beat.models import PeriodicTask

from config.beat import SingleBeat, install_schedule, schedule
from notifications import services as emails
from tests.kit.api import Api, make_token, order_body
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.races import together
from tests.kit.words import (
    EmailNotification,
    IdempotencyKey,
    InvalidTransition,
    Order,
    OutboxEvent,
    RefundExceedsBalance,
    Relay,
    cancel_order,
    notify,
    pay_order,
    refund_order,
    tasks,
    write_event,
)
from tests.rules.events.test_relay import Memory

pytestmark = pytest.mark.django_db(transaction=True)


def event(aggregate: uuid.UUID, sequence: int) -> None:
    write_event(
        aggregate_type="test",
        aggregate_id=aggregate,
        event_type="test.v1",
        sequence=sequence,
        payload={"text": f"{aggregate.hex[:4]} {sequence}"},
    )


def test_an_event_that_commits_late_is_published_though_later_positions_were():
    """A cursor on the sequence would have stepped over it."""
    broker = Memory()
    relay = Relay(using="default", transport=broker)
    written, commit = threading.Event(), threading.Event()
    slow = uuid.uuid4()

    def writer() -> None:
        try:
            with transaction.atomic():
                event(slow, 1)
                written.set()
                assert commit.wait(20)
        finally:
            connections.close_all()

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        assert written.wait(20)
        with transaction.atomic():
            event(uuid.uuid4(), 1)
        relay.step()
        assert len(broker.taken) == 1
    finally:
        commit.set()
        thread.join()
    relay.step()
    relay.close()
    assert len(broker.taken) == 2 and broker.taken[1].key == str(slow)
    assert OutboxEvent.objects.filter(published_at=None).count() == 0


def test_a_wake_up_comes_only_after_the_commit_and_never_after_a_rollback(monkeypatch):
    """A task that runs before its row is visible finds nothing, and the row waits for a poll."""
    woken: list[str] = []
    seen_by_another: list[int] = []

    def look(name: str) -> None:
        woken.append(name)
        seen_by_another.extend(together(1, lambda _: EmailNotification.objects.count()))

    monkeypatch.setattr(tasks.waker, "wake", lambda: look("mails"))
    monkeypatch.setattr(notify.waker, "wake", lambda: look("events"))
    order = make_order(status="pending")
    with transaction.atomic():
        pay_order(order_id=order.id)
        assert woken == []
    assert sorted(woken) == ["events", "mails"] and seen_by_another == [1, 1]
    woken.clear()
    with pytest.raises(RuntimeError), transaction.atomic():
        cancel_order(order_id=order.id)
        raise RuntimeError
    assert woken == []


def test_one_key_sent_ten_times_at_once_places_one_order():
    secret, body = make_token(), order_body()
    answers = together(10, lambda _: Api(secret).post("/api/v1/orders", body, key="once"))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert Order.objects.count() == 1 and OutboxEvent.objects.count() == 1
    assert IdempotencyKey.objects.filter(key="once").count() == 1
    assert {answer.json()["id"] for answer in answers if answer.status_code == 201} == {
        str(Order.objects.get().id)
    }


def test_changes_that_exclude_each_other_happen_one_after_the_other():
    """Whoever comes first; versions, events and money agree whatever it was."""
    for _ in range(5):
        order = make_order(status="pending", total_amount=1000)
        pay_order(order_id=order.id)

        def change(number: int, order: Order = order) -> str:
            try:
                if number % 3 == 0:
                    cancel_order(order_id=order.id)
                else:
                    refund_order(order_id=order.id, amount=400)
            except (InvalidTransition, RefundExceedsBalance):
                return "refused"
            return "done"

        done = together(6, change).count("done")
        order.refresh_from_db()
        sequences = OutboxEvent.objects.filter(aggregate_id=order.id).order_by("position")
        assert order.version == done + 2 and order.refunded_amount <= 1000
        # make_order wrote no event for placing.
        assert [one.sequence for one in sequences] == list(range(2, done + 3))


def test_two_persons_who_resend_the_same_dead_letters_make_each_due_once():
    ids = [make_mail(status="dead_lettered").id for _ in range(30)]
    results = together(4, lambda number: emails.resend(ids=ids if number % 2 else list(reversed(ids))))
    assert sum(len(changes) for changes, _ in results) == 30
    assert set(EmailNotification.objects.values_list("status", flat=True)) == {"pending"}


def test_a_resend_and_giving_up_at_once_leave_each_row_in_one_state_and_say_so():
    ids = [make_mail(status="dead_lettered").id for _ in range(30)]
    verbs = (emails.resend, emails.give_up)
    results = together(2, lambda number: verbs[number](ids=ids))
    resent, given_up = ({change.id for change in changes} for changes, _ in results)
    rows = dict(EmailNotification.objects.values_list("id", "status"))
    # A row that was given up may be resent afterwards, never the other way round.
    assert {id for id, status in rows.items() if status == "pending"} == resent
    assert {id for id, status in rows.items() if status == "discarded"} == given_up - resent
    assert resent | given_up == set(ids)


@pytest.mark.django_db(transaction=True, databases=["default", "direct"])
def test_beats_that_start_at_once_on_an_empty_database_both_start():
    """Found by tests/flows: the second met the first's half-written schedule."""
    for _ in range(5):
        PeriodicTask.objects.all().delete()
        together(4, lambda _: SingleBeat.setup_schedule(object.__new__(SingleBeat)))
        assert PeriodicTask.objects.count() == len(schedule())
    install_schedule()
    assert PeriodicTask.objects.count() == len(schedule())
