"""An erasure, and the replay of a dead letter that names the person."""

from __future__ import annotations

import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connections

from events.consuming.inbox import fail_replay
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.events import SHOP, envelope, give, new_id, told
from tests.kit.inbound_commands import PLACE
from tests.kit.months import Steps, dsn
from tests.kit.orders import cancel_order, complete_order, pay_order, place_order
from tests.kit.people import grep, keep_letter
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import (
    ERASED,
    ERASED_ADDRESS,
    HANDLERS,
    NAME,
    EmailNotification,
    InboundDeadLetter,
    Order,
    erase_person,
    replay_next,
)

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ADDRESS = "ann@example.com"


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]


def erase() -> None:
    erase_person(email=ADDRESS, report=Steps(), force=True)


def dead_command() -> InboundDeadLetter:
    """Keep a command to place an order of the person, whose replay an operator has requested."""
    event = envelope(PLACE, {"userId": str(uuid.uuid4()), "email": ADDRESS, "name": "Ann", "totalAmount": 5})
    letter = keep_letter(json.dumps(event), topic=PLACE, event_id=event["eventId"], consumer=NAME)
    assert InboundDeadLetter.objects.request_replay(ids=[letter.id]) == [letter.id]
    return letter


def test_an_erasure_during_a_replay_erases_the_order_that_the_replay_places():
    dead_command()
    placed, erased = threading.Event(), threading.Event()

    def place_slowly(event: Any) -> None:
        HANDLERS[PLACE](event)
        placed.set()
        assert erased.wait(PATIENCE)

    def replay() -> None:
        replay_next(consumer=NAME, handlers=HANDLERS | {PLACE: place_slowly})
        connections.close_all()

    def erase_meanwhile() -> None:
        erase()
        connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        replaying = pool.submit(replay)
        assert placed.wait(PATIENCE)
        erasing = pool.submit(erase_meanwhile)
        until(lambda: waits_for_a_lock() or erasing.done())
        erased.set()
        replaying.result(PATIENCE)
        erasing.result(PATIENCE)
    assert Order.objects.get().email == ERASED_ADDRESS
    assert grep(ADDRESS) == []
    letter = InboundDeadLetter.objects.get()
    assert letter.replayed_at and letter.discarded_at is None


def waits_for_a_lock() -> bool:
    with psycopg.connect(dsn()) as watcher:
        return watcher.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None


def test_a_replay_that_fails_after_the_erasure_writes_nothing_into_the_letter():
    letter = dead_command()

    def fail(event: Any) -> None:
        raise ValueError(f"no mailbox {event.data['email']}")

    replayed = replay_next(consumer=NAME, handlers=HANDLERS | {PLACE: fail})
    assert replayed is not None and replayed[1] is not None
    erase()
    fail_replay(letter=replayed[0], reason=str(replayed[1]))
    letter.refresh_from_db()
    assert (letter.envelope, letter.error, bool(letter.discarded_at)) == (ERASED, ERASED, True)
    assert not InboundDeadLetter.objects.replay_requested().exists()
    assert grep(ADDRESS) == []


def test_a_letter_is_found_by_the_shops_own_number_of_the_persons_order(settings):
    """The address in it is another one of the person."""
    settings.ORDER_SOURCES = []
    assert give(told("paid", "A-1", 2, email="ann@work.example", name="Ann", reference="A-1")) == "dead"
    settings.ORDER_SOURCES = [SHOP]
    assert give(told("completed", "A-1", 3, email=ADDRESS, name="Ann")) == "done"
    erase()
    letter = InboundDeadLetter.objects.get()
    assert (letter.envelope, bool(letter.discarded_at)) == (ERASED, True)
    assert grep("ann@work") == [] and Order.objects.get().email == ERASED_ADDRESS


def test_an_event_whose_dead_letter_was_erased_is_refused_over_http_because_it_had_no_effect():
    event = told("paid", new_id(), 1, email=ADDRESS, totalAmount="x")
    assert give(event) == "dead"
    api = Api(make_token())
    before = assert_problem(api.post("/api/v1/events", event), 422, "unusable-event")
    erase()
    assert InboundDeadLetter.objects.get().envelope == ERASED
    after = assert_problem(api.post("/api/v1/events", event), 422, "unusable-event")
    assert after["detail"] == before["detail"]


SECRET = "for-ann-7"


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_a_change_of_our_order_after_the_erasure_stores_no_text_about_the_person(end):
    """Nothing would find it later, because the order has no address any more."""
    order = place_order(user_id=uuid.uuid4(), email=ADDRESS, name="Ann", total_amount=5)
    pay_order(order_id=order.id)
    erase()
    if end == "completed":
        complete_order(order_id=order.id, tracking_url=f"https://parcels.example/{SECRET}")
    else:
        cancel_order(order_id=order.id, reason=f"Call me, {SECRET}")
    mail = EmailNotification.objects.get(event_type=f"order.{end}")
    assert (mail.status, mail.recipient_email) == ("suppressed", ERASED_ADDRESS)
    assert grep(SECRET) == []


def test_a_change_of_a_shops_order_after_the_erasure_stores_no_text_about_the_person():
    id = new_id()
    give(told("paid", id, 1, email=ADDRESS))
    erase()
    assert give(told("completed", id, 2, trackingUrl=f"https://parcels.example/{SECRET}")) == "done"
    assert EmailNotification.objects.get(event_type="order.completed").status == "suppressed"
    assert grep(SECRET) == []
