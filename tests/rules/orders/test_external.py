"""Orders of a shop that keeps its own: created and moved by its events, in whatever order they come."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from orders.subscriptions import PUBLISHED_TOPICS
from runtime.binding import Binding
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.events import (
    PAID,
    SHOP,
    USER,
    cancellation,
    envelope,
    give,
    handle,
    new_id,
    received,
    story,
    tell,
    told,
    topic_of,
)
from tests.kit.months import any_times
from tests.kit.orders import pay_order, place_order
from tests.kit.races import together
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import (
    ERASED,
    ERASED_ADDRESS,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    ProcessedEvent,
    our_id,
    subscribed,
)

pytestmark = pytest.mark.django_db
EVERY_MAIL = [
    f"order.{change}"
    for change in ("placed", "paid", "confirmed", "completed", "cancelled", "refunded", "part_refunded")
]


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP, "shop-b"]
    settings.NOTIFY_ON = EVERY_MAIL
    settings.FAST_PATH = False


@pytest.fixture
def api() -> Api:
    return Api(make_token())


def state(order_id: str) -> dict[str, Any]:
    """Return what the order is, without the times of our own clock."""
    ours = {"id", "updated_at", "correlation_id", "traceparent"}
    columns = [field.attname for field in Order._meta.concrete_fields if field.attname not in ours]
    columns_of_order: dict[str, Any] = Order.objects.values(*columns).get(id=order_id)
    return columns_of_order


def mails(order_id: str) -> list[str]:
    """Return the e-mails as `<event>:<sequence>`; each must be there once."""
    keys = EmailNotification.objects.filter(order_id=order_id).values_list("idempotency_key", flat=True)
    return sorted(key.partition(":")[2] for key in keys)


def waiting_sessions() -> int:
    """Return the number of sessions that wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        number: int = cursor.fetchone()[0]
        return number


class TestStory:
    def test_a_shops_events_create_and_move_the_order_and_send_its_mails_and_no_events(self):
        id = new_id()
        for event in story(id):
            assert give(event) == "done"
        order = Order.objects.get(id=id)
        assert (order.source, order.status, order.version) == (SHOP, "refunded", 6)
        assert (order.email, order.name, order.refunded_amount) == ("ann@example.com", "Ann", 1000)
        assert order.items == [{"sku": "TEA", "name": "Tea", "quantity": 2, "unit_amount": 500}]
        assert order.paid_at and order.completed_at and order.paid_at < order.completed_at
        assert order.created_at.isoformat() == "2026-11-20T09:30:00+00:00"
        assert order.correlation_id == "their-work"
        assert mails(id) == [
            "order.completed:5",
            "order.confirmed:3",
            "order.paid:2",
            "order.part_refunded:4",
            "order.placed:1",
            "order.refunded:6",
        ]
        assert not DomainEvent.objects.exists() and not InboundDeadLetter.objects.exists()

    def test_a_cancellation_tells_its_reason_and_its_refund_counts(self):
        id = new_id()
        for event in cancellation(id):
            give(event)
        order = Order.objects.get(id=id)
        assert (order.status, order.refunded_amount) == ("cancelled", 1000)
        mail = EmailNotification.objects.get(order_id=id, event_type="order.cancelled")
        assert "Out of stock" in mail.body_text and mail.correlation_id == "their-work"

    def test_only_events_that_notify_on_lists_send_a_mail(self, settings):
        settings.NOTIFY_ON = ["order.paid"]
        id = new_id()
        for event in story(id):
            give(event)
        assert mails(id) == ["order.paid:2"]


class TestArrivals:
    def test_every_order_of_arrival_leads_to_the_same_order_and_the_same_mails(self):
        expected = None
        for arrival in itertools.permutations(range(4)):
            id = new_id()
            events = cancellation(id)
            assert [give(events[index]) for index in arrival] == ["done"] * 4
            outcome = (state(id), mails(id))
            expected = expected or outcome  # the first arrival is in order
            assert outcome == expected, arrival
        assert expected is not None and expected[0]["status"] == "cancelled"
        assert not InboundDeadLetter.objects.exists() and not DomainEvent.objects.exists()

    @pytest.mark.parametrize("seed", range(12))
    def test_shuffled_and_repeated_events_lead_to_the_same_as_the_story_in_order(self, seed):
        chance = random.Random(seed)
        plain, shuffled = new_id(), new_id()
        for event in story(plain):
            give(event)
        events = story(shuffled)
        again = [event | {"eventId": new_id()} for event in chance.choices(events, k=4)]  # with other ids
        arrivals = [*events, *chance.choices(events, k=4), *again]
        chance.shuffle(arrivals)
        results = [give(event) for event in arrivals]
        assert results.count("repeat") == 4 and results.count("done") == len(arrivals) - 4
        assert state(plain) == state(shuffled)
        assert None not in (state(plain)["paid_at"], state(plain)["completed_at"])
        assert mails(plain) == mails(shuffled)

    def test_every_prefix_of_an_arrival_shows_the_highest_sequence_so_far(self):
        for arrival in itertools.permutations(range(4)):
            id = new_id()
            events, highest = cancellation(id), 0
            for index in arrival:
                give(events[index])
                highest = max(highest, index + 1)
                assert state(id)["version"] == highest
                assert state(id)["status"] == events[highest - 1]["data"]["status"]

    def test_a_late_mail_tells_of_its_own_change_and_goes_to_the_newest_address(self):
        id = new_id()
        events = story(id)
        for index in (5, 0):
            give(events[index])
        late = EmailNotification.objects.get(event_type="order.placed")
        assert late.recipient_email == "ann@example.com"
        assert "refunded" not in late.body_text.lower()

    @pytest.mark.parametrize("days", [0, 8])
    def test_a_mail_is_not_sent_again_when_its_event_comes_with_another_id(self, days):
        id = new_id()
        give(told("placed", id, 1))
        give(told("paid", id, 2))
        with any_times():
            EmailNotification.objects.update(created_at=Now() - dt.timedelta(days=days))
            for change, sequence in (("placed", 1), ("paid", 2), ("placed", 1)):
                assert give(told(change, id, sequence)) == "done"
            assert mails(id) == ["order.paid:2", "order.placed:1"]

    @pytest.mark.django_db(transaction=True)
    def test_an_overtaken_event_under_two_ids_at_once_sends_one_mail(self):
        id = new_id()
        give(told("paid", id, 2))

        def late() -> str:
            try:
                return give(told("placed", id, 1))
            finally:
                connections.close_all()

        with ThreadPoolExecutor(2) as pool:
            with transaction.atomic():  # so that both have begun before one of them reads the e-mails
                Order.objects.select_for_update().get(id=id)
                both = [pool.submit(late), pool.submit(late)]
                until(lambda: waiting_sessions() == 2)
            assert [future.result(PATIENCE) for future in both] == ["done"] * 2
        assert mails(id) == ["order.paid:2", "order.placed:1"]

    @pytest.mark.django_db(transaction=True)
    def test_two_consumers_that_make_the_same_order_at_once_make_one_and_both_mails(self):
        for _ in range(5):
            id = new_id()
            first = [told("placed", id, 1), told("paid", id, 2), told("confirmed", id, 3)]
            assert together(3, lambda number, first=first: give(first[number])) == ["done"] * 3
            assert (state(id)["status"], state(id)["version"]) == ("confirmed", 3)
            assert len(mails(id)) == 3


class TestOwners:
    def test_our_own_events_that_come_back_are_left_alone(self):
        order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
        pay_order(order_id=order.id)
        before = Order.objects.values().get(id=order.id)
        for event in DomainEvent.objects.all():
            back = envelope(event.event_type, event.payload, source="order-service", metadata=event.metadata)
            message = received(event.event_type, back)
            assert handle(message, published_topics=PUBLISHED_TOPICS) == "own"
        assert Order.objects.values().get(id=order.id) == before
        assert not ProcessedEvent.objects.exists() and not InboundDeadLetter.objects.exists()

    @pytest.mark.parametrize("spoilt", [{"source": "a-gateway"}, {"source": None}])
    def test_the_producer_is_that_of_the_metadata(self, spoilt):
        event = told("placed", new_id(), 1) | spoilt
        if spoilt["source"] is None:
            del event["source"]
        assert give(event) == "done"
        assert Order.objects.get().source == SHOP

    def test_a_text_is_an_id_too_and_becomes_the_reference_where_there_is_none(self):
        tell("placed", "A-7", 1, reference=None)
        tell("paid", "A-7", 2, reference=None, userId="customer 12")
        order = Order.objects.get()
        assert order.id == our_id(source=SHOP, id="A-7") != our_id(source="shop-b", id="A-7")
        assert (order.reference, order.status) == ("A-7", "paid")
        assert order.user_id == our_id(source=SHOP, id="customer 12")

    def test_the_topics_are_read_only_where_the_settings_ask_for_them(self, settings):
        assert set(subscribed()) >= PUBLISHED_TOPICS
        settings.ORDER_SOURCES = []
        assert not PUBLISHED_TOPICS & set(subscribed())

    @pytest.mark.parametrize("action", ["pay", "confirm", "complete", "cancel", "refund"])
    def test_the_api_refuses_to_move_it_and_says_who_owns_it(self, api: Api, action):
        id = new_id()
        tell("paid", id, 2)
        before = state(id)
        problem = assert_problem(api.post(f"/api/v1/orders/{id}/{action}"), 409, "externally-owned")
        assert problem["source"] == SHOP
        assert problem["detail"] == "The order belongs to shop-a. Only shop-a can change it."
        assert state(id) == before
        assert api.get(f"/api/v1/orders/{id}").json()["source"] == SHOP
        assert "source" not in api.get(api.place()).json()

    def test_payment_and_stock_events_do_not_move_it(self):
        id = new_id()
        tell("placed", id, 1)
        assert handle(received(PAID, envelope(PAID, {"orderId": id}))) == "dead"
        assert "belongs to shop-a" in InboundDeadLetter.objects.get().error
        assert state(id)["status"] == "pending"

    def test_an_event_of_another_system_that_names_it_is_not_its_owners(self):
        id = new_id()
        tell("placed", id, 1)
        shops_event = envelope(PAID, {"orderId": id}, source="shop-b")
        for event, is_owners in (
            (told("paid", id, 2, source="shop-b"), False),
            (shops_event, False),
            (told("paid", id, 2, status="?"), True),
            (envelope(PAID, {"orderId": id}), True),  # of a service, about this order
        ):
            assert give(event) == "dead"
            letter = InboundDeadLetter.objects.latest("id")
            assert (
                Binding(frozenset({SHOP})).only(InboundDeadLetter.objects.filter(id=letter.id)).exists()
                is is_owners
            )
            assert not Binding(frozenset({"shop-b"})).only(InboundDeadLetter.objects.all()).exists()

    @pytest.mark.django_db(transaction=True)
    def test_its_address_is_corrected_in_the_shop(self, api: Api):
        id = new_id()
        tell("paid", id, 2)
        mail = EmailNotification.objects.get()
        EmailNotification.objects.filter(id=mail.id).update(status="discarded", ended_by="person")
        body = {"recipient_email": "new@example.com", "update_order": True}
        path = f"/api/v1/notifications/{mail.id}/copies"
        problem = assert_problem(api.post(path, body), 409, "not-copyable")
        assert "shop-a owns the order" in problem["detail"]
        assert api.post(path, body | {"update_order": False}).status_code == 201
        assert state(id)["email"] == "ann@example.com"

    def test_the_admin_shows_the_owner(self, admin_client: Client):
        id = new_id()
        tell("placed", id, 1)
        for address in (
            reverse("admin:orders_order_change", args=[id]),
            reverse("admin:orders_order_changelist"),
        ):
            assert SHOP in admin_client.get(address).content.decode()

    def test_an_erased_person_stays_erased(self):
        id = new_id()
        tell("placed", id, 1)
        Order.objects.filter(id=id).update(email=ERASED_ADDRESS, name="")
        tell("paid", id, 2)
        order = Order.objects.get(id=id)
        assert (order.status, order.email, order.name) == ("paid", ERASED_ADDRESS, "")
        assert [item["name"] for item in order.items] == [ERASED]
        mail = EmailNotification.objects.get(event_type="order.paid")
        assert (mail.status, mail.recipient_email) == ("suppressed", ERASED_ADDRESS)
        assert "Ann" not in mail.body_text + mail.body


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "spoilt", "reason"),
        [
            ("placed", {"totalAmount": "1000"}, "data.totalAmount: This must be a whole number of"),
            ("placed", {"orderId": 7}, "data.orderId: This must be a string."),
            ("placed", {"orderId": ""}, "data.orderId"),
            ("placed", {"status": "paid"}, "data.status: After this event an order is pending."),
            ("placed", {"status": "shipped"}, "data.status: Unknown status. Use pending, paid, "),
            ("placed", {"refundedAmount": 1}, "that is pending, this must be 0."),
            ("placed", {"name": "Ann\r\nBcc: x@example.com"}, "data.name: Control characters"),
            ("placed", {"currency": "secret"}, "data.currency: This must be three capital letters"),
            ("refunded", {"amount": 5}, "data.refundedAmount: This field is required."),
            ("refunded", {"amount": 5, "refundedAmount": 999}, "that is refunded, this must be the total."),
            ("part_refunded", {"amount": 5, "refundedAmount": 1000}, "data.refundedAmount"),
            ("refunded", {"refundedAmount": 1000}, "data.amount: This field is required."),
            (
                "part_refunded",
                {"amount": 6, "refundedAmount": 5},
                "data.amount: This must be at most refundedAmount, which includes this refund.",
            ),
        ],
    )
    def test_wrong_data_is_a_dead_letter_with_its_reason_and_changes_nothing(self, change, spoilt, reason):
        assert tell(change, new_id(), 1, **spoilt) == "dead"
        letter = InboundDeadLetter.objects.get()
        assert reason in letter.error and "secret" not in letter.error
        note = DomainEvent.objects.get()
        assert (note.event_type, note.payload["errorMessage"]) == (f"{topic_of(change)}.dlt", letter.error)
        assert not Order.objects.exists() and not EmailNotification.objects.exists()

    @pytest.mark.parametrize("sequence", [None, 0, -1, True, "2", 1.5, 2**31])
    def test_a_sequence_that_is_none(self, sequence):
        assert tell("placed", new_id(), sequence) == "dead"
        assert "metadata.sequence" in InboundDeadLetter.objects.get().error

    def test_a_producer_that_the_settings_do_not_name(self):
        assert tell("placed", new_id(), 1, source="shop-c") == "dead"
        assert "its producer 'shop-c' is not in ORDER_SOURCES" in InboundDeadLetter.objects.get().error

    def test_an_order_of_another_system(self):
        id = new_id()
        ours = place_order(user_id=uuid.UUID(USER), email="a@example.com", total_amount=500)
        tell("placed", id, 1)
        before = [state(id), state(str(ours.id))]
        assert tell("paid", id, 2, source="shop-b") == "dead"
        assert tell("paid", str(ours.id), 2) == "dead"
        first, second = InboundDeadLetter.objects.order_by("id")
        assert "the order belongs to shop-a, not to shop-b" in first.error
        assert "the order belongs to this system, not to shop-a" in second.error
        assert [state(id), state(str(ours.id))] == before

    def test_fields_that_are_not_known_and_nulls_are_ignored(self):
        assert tell("paid", new_id(), 2, shippingMethod={"name": "post"}, locale=None) == "done"
        assert Order.objects.get().locale == "en"

    @pytest.mark.parametrize("change", ["placed", "paid", "cancelled", "refunded"])
    @pytest.mark.parametrize("name", ["totalAmount", "refundedAmount", "amount", "currency"])
    @pytest.mark.parametrize("is_null", [True, False])
    def test_money_that_is_null_or_named_in_another_case_is_refused(self, change, name, is_null):
        id = new_id()
        details = {"amount": 1000, "refundedAmount": 1000} if change == "refunded" else {}
        event = told(change, id, 1, **details)
        event["data"][name if is_null else name.upper()] = None
        if name == "amount" and change != "refunded":  # it is no field of this event
            assert give(event) == "done"
            return
        assert give(event) == "dead"
        said = "null" if is_null else f"Use {name}."
        error = InboundDeadLetter.objects.get().error
        assert f"data.{name if is_null else name.upper()}: " in error
        assert said in error
        assert not Order.objects.filter(id=id).exists()


class TestCurrency:
    @pytest.mark.parametrize("change", ["paid", "completed", "cancelled", "refunded", "part_refunded"])
    def test_an_order_keeps_its_currency(self, change):
        id = new_id()
        refunds = {"refunded": 1000, "part_refunded": 300}
        amount = refunds.get(change)
        details = {"amount": amount, "refundedAmount": amount} if amount else {}
        tell("placed", id, 1)
        before = state(id)
        for currency in ("USD", ""):
            event = told(change, id, 2, currency=currency, **details)
            if not currency:  # without a currency, the event is in USD
                del event["data"]["currency"]
            assert give(event) == "dead"
            error = InboundDeadLetter.objects.latest("id").error
            assert "data.currency: The event is in USD, the order in EUR." in error
        assert state(id) == before and mails(id) == ["order.placed:1"]
        assert tell(change, id, 2, **details) == "done"

    def test_a_late_event_in_another_currency_sends_no_mail(self):
        id = new_id()
        tell("paid", id, 2)
        assert tell("placed", id, 1, currency="USD") == "dead"
        assert mails(id) == ["order.paid:2"]

    def test_an_event_without_an_email_corrects_the_currency(self):
        id = new_id()
        tell("paid", id, 2, currency="USD", notify=False)
        assert tell("refunded", id, 3, amount=1000, refundedAmount=1000) == "dead"
        assert tell("paid", id, 3, notify=False) == "done"
        assert tell("refunded", id, 4, amount=1000, refundedAmount=1000) == "done"
        assert (state(id)["currency"], mails(id)) == ("EUR", ["order.refunded:4"])

    def test_another_owner_learns_no_currency(self):
        id = new_id()
        tell("placed", id, 1)
        assert tell("paid", id, 2, source="shop-b", currency="USD") == "dead"
        assert "EUR" not in InboundDeadLetter.objects.get().error


class TestHistory:
    def test_history_is_stored_without_an_email_and_what_follows_it_is_sent(self):
        id = new_id()
        assert tell("completed", id, 5, notify=False, placedAt="2019-05-01T10:00:00Z") == "done"
        order = Order.objects.get(id=id)
        assert (order.status, order.version, order.created_at.year) == ("completed", 5, 2019)
        assert order.completed_at is None  # the event has the time of the import
        assert not EmailNotification.objects.exists()
        assert tell("refunded", id, 6, refundedAmount=1000, amount=1000) == "done"
        assert EmailNotification.objects.get().event_type == "order.refunded"
        assert tell("paid", id, 2, notify=False) == "done"
        assert EmailNotification.objects.count() == 1 and Order.objects.get(id=id).status == "refunded"

    def test_history_that_comes_after_the_live_event_takes_nothing_back(self):
        id = new_id()
        assert tell("paid", id, 2) == "done"
        before = Order.objects.values().get(id=id)
        assert tell("paid", id, 2, notify=False, email="old@example.com") == "done"
        after = Order.objects.values().get(id=id)
        assert after | {"updated_at": before["updated_at"]} == before
        assert EmailNotification.objects.get().recipient_email == "ann@example.com"
