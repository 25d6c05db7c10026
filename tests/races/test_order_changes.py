"""Changes of one order at once, also between a first read and its statement, or its snapshot and its lock."""

from __future__ import annotations

import hashlib
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from events.publishing import notify
from notifications import wake
from orders.models import OrderRefund, RefundWay
from tests.kit.api import Api, assert_problem, make_token, order_body, row_counts
from tests.kit.events import REFUNDED, envelope, handle, received
from tests.kit.mails import make_mail
from tests.kit.orders import cancel_order, confirm_order, make_order, pay_order, refund_order
from tests.kit.races import together, wait_until_somebody_waits
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import (
    ApiToken,
    DomainEvent,
    EmailNotification,
    IdempotencyKey,
    InvalidTransition,
    Order,
    RefundExceedsBalance,
    key_hash,
    order_services,
    send_copy,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def after_the_read(monkeypatch) -> Callable[..., None]:
    """Return a function that has each of some events happen after one read of a change."""

    def arrange(name: str, *events: Callable[[], object]) -> None:
        decide, pending = getattr(order_services, name), list(reversed(events))

        def decided(*arguments, **values):
            if pending:
                happen = pending.pop()
                together(1, lambda _: happen())
            return decide(*arguments, **values)

        monkeypatch.setattr(order_services, name, decided)

    return arrange


def pay(order: Order, api: Api, key: str | None = "k"):
    return api.post(f"/api/v1/orders/{order.id}/pay", key=key)


def mails_of(order: Order) -> list[str]:
    return list(EmailNotification.objects.filter(order_id=order.id).values_list("event_type", flat=True))


def behind_a_lock(hold: Callable[[], object], request: Callable[[], object]):
    """Send a request while `hold` is uncommitted, commit once it waits, and return its answer."""

    def send():
        try:
            return request()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            hold()
            future = pool.submit(send)
            wait_until_somebody_waits()
        return future.result(PATIENCE)


def test_one_key_sent_ten_times_at_once_pays_once_and_tells_the_same():
    order, secret = make_order(), make_token()
    answers = together(10, lambda _: pay(order, Api(secret)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({answer.content for answer in answers if answer.status_code == 200}) == 1
    assert Order.objects.get().version == 2
    assert mails_of(order) == ["order.paid"]
    assert DomainEvent.objects.count() == IdempotencyKey.objects.count() == 1


def test_two_keys_at_once_pay_once_and_the_other_is_told_why():
    for _ in range(5):
        order, secret = make_order(), make_token()
        answers = together(2, lambda number, s=secret, o=order: pay(o, Api(s), f"k{number}"))
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        assert mails_of(order) == ["order.paid"]
        assert IdempotencyKey.objects.count() == 1
        IdempotencyKey.objects.all().delete()


def test_a_request_whose_order_moved_after_its_read_is_decided_by_the_order_as_it_is(after_the_read):
    order, api = make_order(), Api(make_token())
    after_the_read("pay", lambda: cancel_order(order_id=order.id))
    assert_problem(pay(order, api), 409, "invalid-transition")
    assert mails_of(order) == ["order.cancelled"]
    assert not IdempotencyKey.objects.exists()


def test_the_same_key_that_was_answered_after_the_read_is_replayed(after_the_read):
    order, api = make_order(), Api(make_token())
    first = []
    after_the_read("pay", lambda: first.append(pay(order, api)))
    again = pay(order, api)
    assert again.content == first[0].content
    assert again.headers["Idempotency-Replayed"] == "true" and "Idempotency-Replayed" not in first[0].headers
    assert mails_of(order) == ["order.paid"]


def test_the_same_key_that_placed_after_the_read_is_replayed(after_the_read):
    api, body, first = Api(make_token()), order_body(), []
    after_the_read("place", lambda: first.append(api.post("/api/v1/orders", body, key="k")))
    again = api.post("/api/v1/orders", body, key="k")
    assert again.content == first[0].content and again.headers["Idempotency-Replayed"] == "true"
    assert Order.objects.count() == DomainEvent.objects.count() == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_stock_that_was_reserved_after_the_read_is_not_forgotten(after_the_read, key):
    """It keeps the order's version."""
    order, api = make_order(), Api(make_token())
    after_the_read("pay", lambda: confirm_order(order_id=order.id))
    assert pay(order, api, key).json()["status"] == "confirmed"
    assert Order.objects.get().stock_reserved_at is not None


def test_stock_that_was_reserved_before_is_answered_and_stored_without_a_change():
    order, api = make_order(), Api(make_token())
    path = f"/api/v1/orders/{order.id}/confirm"
    first = api.post(path)
    written = Order.objects.get().updated_at
    answer, again = api.post(path, key="k"), api.post(path, key="k")
    assert answer.content == again.content == first.content
    assert again.headers["Idempotency-Replayed"] == "true"
    assert Order.objects.get().updated_at == written


def test_an_address_that_was_corrected_after_the_read_gets_the_mail(after_the_read):
    order, api = make_order(email="alice@exampel.com"), Api(make_token())
    after_the_read("pay", lambda: Order.objects.update(email="alice@example.com"))
    assert pay(order, api).json()["email"] == "alice@example.com"
    assert EmailNotification.objects.get().recipient_email == "alice@example.com"


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("name", ["pay", "place"])
def test_a_token_that_was_revoked_after_the_read_changes_nothing(after_the_read, name, key):
    order, api = make_order(), Api(make_token())
    path = f"/api/v1/orders/{order.id}/pay" if name == "pay" else "/api/v1/orders"
    before = row_counts()
    after_the_read(name, lambda: ApiToken.objects.update(revoked_at=Now()))
    assert_problem(api.post(path, None if name == "pay" else order_body(), key=key), 401, "unauthenticated")
    assert row_counts() == before


def test_the_same_change_that_commits_between_snapshot_and_row_lock_is_replayed():
    order, secret = make_order(), make_token()
    first = pay(make_order(), Api(secret), "other")  # for its columns only
    stored = IdempotencyKey.objects.get(key=key_hash("other"))

    def first_request():
        pay_order(order_id=order.id)
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO idempotency_keys (scope, key, request_hash, answer_status, answer_body,"
                " answer_location) VALUES (%s, %s, %s, 200, 'the first answer', '')",
                [stored.scope, key_hash("k"), request_hash(order)],
            )

    assert first.status_code == 200
    again = behind_a_lock(first_request, lambda: pay(order, Api(secret)))
    assert (again.status_code, again.content) == (200, b"the first answer")
    assert Order.objects.get(id=order.id).version == 2
    assert mails_of(order) == ["order.paid"]


def request_hash(order: Order) -> str:
    return hashlib.sha256(f"POST /api/v1/orders/{order.id}/pay\n{{}}".encode()).hexdigest()


def test_another_change_that_commits_between_snapshot_and_row_lock_decides():
    order, secret = make_order(), make_token()
    refused = behind_a_lock(lambda: cancel_order(order_id=order.id), lambda: pay(order, Api(secret)))
    assert_problem(refused, 409, "invalid-transition")
    assert mails_of(order) == ["order.cancelled"]


def test_a_key_that_another_session_stores_uncommitted_is_waited_for_and_replayed():
    """Nobody holds the key's lock, so the primary key alone must stop the second answer."""
    secret, body = make_token(), order_body()
    scope = f"token:{ApiToken.objects.get().id}"
    placed = Api(secret).post("/api/v1/orders", body, key="k")
    stored = IdempotencyKey.objects.get(key=key_hash("k"), scope=scope)
    IdempotencyKey.objects.all().delete()
    again = behind_a_lock(
        lambda: IdempotencyKey.objects.create(
            scope=scope,
            key=key_hash("k"),
            request_hash=stored.request_hash,
            answer_status=201,
            answer_body=stored.answer_body,
            answer_location=stored.answer_location,
        ),
        lambda: Api(secret).post("/api/v1/orders", body, key="k"),
    )
    assert again.content == placed.content and again.headers["Idempotency-Replayed"] == "true"
    assert Order.objects.count() == DomainEvent.objects.count() == 1


def test_a_payment_that_waited_for_a_corrected_address_mails_the_new_one():
    """The order keeps its version."""
    order, secret, corrected = make_order(email="alice@exampel.com"), make_token(), "alice@example.com"
    mail = make_mail(status="dead_lettered", order_id=order.id)
    correct = partial(send_copy, notification_id=mail.id, recipient_email=corrected, update_order=True)
    answer = behind_a_lock(correct, lambda: pay(order, Api(secret)))
    paid = EmailNotification.objects.get(event_type="order.paid", resend_of=None, status="pending")
    assert (answer.json()["email"], paid.recipient_email) == (corrected, corrected)
    assert Order.objects.get().email == corrected


def test_a_payment_that_waited_for_reserved_stock_confirms_the_order():
    order, secret = make_order(), make_token()
    answer = behind_a_lock(lambda: confirm_order(order_id=order.id), lambda: pay(order, Api(secret)))
    assert (answer.json()["status"], answer.json()["version"]) == ("confirmed", 3)


def test_requests_without_a_key_exclude_each_other():
    order, secret = make_order(), make_token()
    answers = Counter(together(8, lambda _: pay(order, Api(secret), None).status_code))
    assert answers[200] == 1 and set(answers) <= {200, 409, 503}, answers
    assert mails_of(order) == ["order.paid"]


def test_six_requests_that_wait_for_one_order_leave_the_process_to_others():
    """Two wait in PostgreSQL, and four are told at once to come again."""
    order, other, secret = make_order(), make_order(), make_token()

    def pay_the_locked(number: int):
        try:
            return pay(order, Api(secret), f"k{number}")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        with transaction.atomic():
            Order.objects.select_for_update().get(id=order.id)
            futures = [pool.submit(pay_the_locked, number) for number in range(6)]
            until(lambda: sum(future.done() for future in futures) == 4, "four are refused")
            wait_until_somebody_waits(count=2)
            assert together(1, lambda _: pay(other, Api(secret)))[0].status_code == 200
        answers = [future.result(PATIENCE) for future in futures]
    told = Counter(answer.status_code for answer in answers)
    assert told == {503: 4, 200: 1, 409: 1}
    for answer in answers:
        if answer.status_code == 503:
            assert_problem(answer, 503, "unavailable")
            assert answer.headers["Retry-After"] == "1"
    assert Order.objects.get(id=order.id).version == 2


@pytest.mark.parametrize("key", [None, "k"])
def test_a_request_that_waits_too_long_for_its_order_is_503_and_changes_nothing(key):
    order, secret = make_order(), make_token()

    def pay_impatiently(_: int):
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        return pay(order, Api(secret), key)

    before = row_counts()
    with transaction.atomic():
        Order.objects.select_for_update().get(id=order.id)
        (refused,) = together(1, pay_impatiently)
    problem = assert_problem(refused, 503, "unavailable")
    assert "Other requests are changing this order" in problem["detail"]
    assert row_counts() == before
    assert pay(order, Api(secret), key).status_code == 200


def test_the_order_of_a_frozen_process_is_free_again_when_its_session_ends():
    """The server ends a session that idles in a transaction, so no process can keep an order for ever."""
    order, secret = make_order(), make_token()
    program = (
        "import psycopg, sys, time; connection = psycopg.connect(sys.argv[1]);"
        " connection.execute(\"SET idle_in_transaction_session_timeout = '1s'\");"
        " connection.execute('SELECT 1 FROM orders FOR UPDATE'); print('locked', flush=True); time.sleep(60)"
    )
    url = connection.get_connection_params()
    dsn = psycopg.conninfo.make_conninfo(
        **{name: url[name] for name in ("host", "port", "user", "password", "dbname") if url.get(name)}
    )
    with subprocess.Popen([sys.executable, "-c", program, dsn], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"locked\n"
            process.send_signal(signal.SIGSTOP)
            until(lambda: pay(order, Api(secret)).status_code == 200)  # the server's second may be long
        finally:
            process.kill()


def test_nothing_is_read_or_sent_between_the_lock_of_an_order_and_its_save(monkeypatch, settings):
    settings.NOTIFY_ON = ["order.paid", "order.confirmed"]
    order, api = make_order(stock_reserved_at=Now()), Api(make_token())
    pay(make_order(), api, "first")  # whatever is loaded once is loaded now

    def refuse(*_: object, **__: object):
        raise AssertionError("a socket was used")

    render = order_services.new_emails

    def rendered(**values: object):
        with monkeypatch.context() as patch:
            for name in ("connect", "send", "sendall", "recv"):
                patch.setattr(socket.socket, name, refuse, raising=False)
            return render(**values)

    monkeypatch.setattr(order_services, "new_emails", rendered)
    with CaptureQueriesContext(connection) as captured:
        assert pay(order, api).json()["status"] == "confirmed"
    texts = [query["sql"] for query in captured]
    (lock,) = (number for number, text in enumerate(texts) if "FOR UPDATE" in text)
    assert "UPDATE orders" in texts[lock + 1] and texts[lock + 2] == "COMMIT", texts


def test_changes_that_exclude_each_other_happen_one_after_the_other():
    """Whoever comes first, versions, events and money agree."""
    for _ in range(5):
        order = make_order(total_amount=1000)
        pay_order(order_id=order.id)

        def change(number: int, order: Order = order) -> bool:
            try:
                if number % 3 == 0:
                    cancel_order(order_id=order.id)
                else:
                    refund_order(order_id=order.id, amount=400)
            except (InvalidTransition, RefundExceedsBalance):
                return False
            return True

        done = sum(together(6, change))
        order.refresh_from_db()
        sequences = DomainEvent.objects.filter(aggregate_id=order.id).order_by("position")
        assert order.version == done + 2 and order.refunded_amount <= 1000
        # make_order wrote no event for placing.
        assert [event.sequence for event in sequences] == list(range(2, done + 3))


def test_wake_ups_come_after_the_commit_of_a_change_and_only_then(monkeypatch, settings):
    """A worker that was woken before finds nothing."""
    settings.FAST_PATH = True
    seen: list[int] = []
    for waker in (wake.waker, notify.waker):
        monkeypatch.setattr(
            waker, "wake", lambda *_: seen.extend(together(1, lambda _: DomainEvent.objects.count()))
        )
    order, api = make_order(), Api(make_token())
    assert pay(order, api).status_code == 200
    assert seen == [1, 1]
    assert pay(order, api).status_code == 200
    assert_problem(pay(order, api, "other"), 409, "invalid-transition")
    with pytest.raises(RuntimeError), transaction.atomic():
        cancel_order(order_id=order.id)
        raise RuntimeError
    assert seen == [1, 1]
    with transaction.atomic():
        cancel_order(order_id=order.id)
        assert seen == [1, 1]
    assert seen == [1, 1, 2, 2]


def test_one_refund_that_comes_by_both_ways_at_once_counts_once():
    """The API and the inbox have locks of their own, and meet at the order."""
    secret = make_token()
    for round in range(5):
        order = make_order(total_amount=1000)
        pay_order(order_id=order.id)
        data = {"orderId": str(order.id), "amount": 392, "refundId": "re_1"}
        events = [received(REFUNDED, envelope(REFUNDED, data)) for _ in range(2)]
        path, body = f"/api/v1/orders/{order.id}/refund", {"amount": 392, "refund_id": "re_1"}
        ways = [
            lambda path=path, body=body: Api(secret).post(path, body).status_code,
            *(lambda event=event: handle(event) for event in events),
        ]
        ways = ways[round % 3 :] + ways[: round % 3]
        answers = together(3, lambda number, ways=ways: ways[number]())
        assert sorted(map(str, answers)) == ["200", "done", "done"]
        order.refresh_from_db()
        assert (order.refunded_amount, order.version) == (392, 3)
        assert OrderRefund.objects.filter(order=order).count() == 1
        assert mails_of(order).count("order.part_refunded") == 1


def test_a_refund_that_waits_for_the_same_one_is_its_repeat():
    order, secret = make_order(total_amount=1000), make_token()
    pay_order(order_id=order.id)
    first = partial(refund_order, order_id=order.id, amount=392, refund_id="re_1", way=RefundWay.EVENT)
    path = f"/api/v1/orders/{order.id}/refund"
    answer = behind_a_lock(first, lambda: Api(secret).post(path, {"amount": 392, "refund_id": "re_1"}))
    assert (answer.status_code, answer.json()["refunded_amount"]) == (200, 392)


@pytest.mark.drill
def test_a_repeat_that_races_its_first_request_is_never_told_that_the_order_is_paid():
    """20,000 rounds of two threads: each answers with the payment or that the first request still runs."""
    secret, rounds = make_token(), 20_000
    turn = threading.Barrier(2)
    orders = [Order(user_id=uuid.uuid4(), email="a@example.com", total_amount=1) for _ in range(rounds)]
    Order.objects.bulk_create(orders, batch_size=1000)

    told: Counter[str] = Counter()
    for some in (orders[start : start + 1000] for start in range(0, rounds, 1000)):

        def pay_some(_: int, some: Sequence[Order] = some) -> None:
            api = Api(secret)
            for order in some:
                turn.wait(PATIENCE)
                answer = pay(order, api, str(order.id)).json()
                told[answer["status"] if "type" not in answer else answer["type"].rpartition(":")[2]] += 1

        together(2, pay_some)
    assert set(told) <= {"paid", "idempotency-in-progress"}, told
    assert told["paid"] >= rounds
    assert Order.objects.filter(status="paid", version=2).count() == rounds
    assert DomainEvent.objects.count() == rounds
