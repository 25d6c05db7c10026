"""`Idempotency-Key`: the work is done once, and every answer tells the same."""

from __future__ import annotations

import hashlib
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now

from notifications import services
from tests.kit.api import Api, assert_problem, make_token, order_body, row_counts
from tests.kit.mails import make_mail
from tests.kit.races import broken, together, wait_until_somebody_waits
from tests.kit.words import (
    ApiToken,
    DomainEvent,
    EmailNotification,
    IdempotencyKey,
    Order,
    key_hash,
)

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_same_request_gets_the_stored_answer_byte_for_byte(api):
    body = order_body(name="Zoë 😀")
    first = api.post("/api/v1/orders", body, key="k-1", X_Correlation_ID="one")
    again = api.post("/api/v1/orders", body, key="k-1", X_Correlation_ID="two")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["X-Correlation-ID"] == "two"
    assert Order.objects.count() == 1


def test_the_stored_answer_stays_though_the_order_moved_on(api):
    path = api.place()
    first = api.post(f"{path}/pay", key="pay")
    api.post(f"{path}/complete")
    again = api.post(f"{path}/pay", key="pay")
    assert again.status_code == 200 and again.content == first.content
    assert EmailNotification.objects.filter(event_type="order.paid").count() == 1


def test_white_space_and_the_order_of_fields_make_no_other_request(api):
    path = api.place()
    api.post(f"{path}/pay")
    assert api.post(f"{path}/refund", b'{"amount":5}', key="k").status_code == 200
    again = api.post(f"{path}/refund", b'\n{ "amount" : 5 }\n', key="k")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert Order.objects.get().refunded_amount == 5
    empty = [api.post(f"{path}/complete", body, key="c") for body in (None, {})]
    assert [r.status_code for r in empty] == [200, 200]
    body = order_body(name="Zoë")
    placed = api.post("/api/v1/orders", body, key="p")
    assert api.post("/api/v1/orders", dict(reversed(body.items())), key="p").content == placed.content


def test_another_body_or_path_under_the_same_key_is_422(api):
    first, second = api.place(), api.place()
    api.post(f"{first}/pay", key="k")
    for path, body in [
        (f"{first}/cancel", None),
        (f"{second}/pay", None),
        (f"{first}/refund", {"amount": 1}),
        ("/api/v1/orders", order_body()),
    ]:
        assert_problem(api.post(path, body, key="k"), 422, "idempotency-key-reused")
    assert Order.objects.filter(status="paid").count() == 1


def test_a_bad_body_under_a_key_that_has_an_answer_is_400(api):
    path = api.post("/api/v1/orders", order_body(), key="k").headers["Location"]
    assert_problem(api.post("/api/v1/orders", order_body(total_amount=0), key="k"), 400, "validation")
    api.post(f"{path}/pay", key="p")
    assert_problem(api.post(f"{path}/pay", {"x": 1}, key="p"), 400, "validation")


def test_a_key_is_its_tokens_own(api):
    body = order_body()
    ids = {caller.post("/api/v1/orders", body, key="k").json()["id"] for caller in (api, Api(make_token()))}
    assert len(ids) == 2


def test_a_refused_request_stores_nothing_and_may_be_sent_again(api):
    path = api.place()
    assert_problem(api.post(f"{path}/complete", key="k"), 409, "invalid-transition")
    assert_problem(api.post(f"{path}/refund", {"amount": 0}, key="k"), 400, "validation")
    assert_problem(api.post(f"/api/v1/orders/{uuid.uuid4()}/pay", key="k"), 404, "not-found")
    assert not IdempotencyKey.objects.filter(scope__startswith="token:").exists()
    api.post(f"{path}/pay")
    response = api.post(f"{path}/complete", key="k")
    assert response.status_code == 200 and "Idempotency-Replayed" not in response.headers


@pytest.mark.parametrize("table", ["orders", "outbox_events", "email_notifications", "idempotency_keys"])
def test_a_request_that_failed_in_one_table_left_nothing_and_works_again(api, settings, table):
    settings.NOTIFY_ON = ["order.placed"]
    body = order_body()
    with broken(table):
        assert_problem(api.post("/api/v1/orders", body, key="k"), 500, "internal")
    assert not any(rows.objects.exists() for rows in (Order, DomainEvent, EmailNotification, IdempotencyKey))
    assert api.post("/api/v1/orders", body, key="k").status_code == 201


def test_a_request_that_crashed_after_its_statement_is_answered_when_it_comes_again(api, monkeypatch):
    def commit(atomic, *error):
        end(atomic, *error)
        raise RuntimeError("the process met its end")

    body, end = order_body(), transaction.Atomic.__exit__
    with monkeypatch.context() as broken_off:
        broken_off.setattr(transaction.Atomic, "__exit__", commit)
        assert_problem(api.post("/api/v1/orders", body, key="k"), 500, "internal")
    again = api.post("/api/v1/orders", body, key="k")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json()["id"] == str(Order.objects.get().id)


def test_while_the_first_request_runs_the_second_waits_and_gets_its_answer(api):
    """The first one waits for the order's row."""
    path = api.place()

    def pay(_: int = 0):
        try:
            return api.post(f"{path}/pay", key="k")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            Order.objects.select_for_update().get()
            answers = pool.map(pay, range(2))
            wait_until_somebody_waits(count=2)
        first, again = sorted(answers, key=lambda answer: "Idempotency-Replayed" in answer.headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert "Idempotency-Replayed" not in first.headers and again.headers["Idempotency-Replayed"] == "true"
    assert first.content == again.content
    assert Order.objects.get().version == 2


def test_a_key_that_another_session_has_for_too_long_is_409_until_it_is_done(api):
    path, body = api.place(), order_body()
    scope = f"token:{ApiToken.objects.get().id}"

    def place_and_pay(_: int) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        return [api.post("/api/v1/orders", body, key="place"), api.post(f"{path}/pay", key="pay")]

    before = row_counts()
    with transaction.atomic():
        for key in ("place", "pay"):
            IdempotencyKey.objects.create(scope=scope, key=key_hash(key))
        (refused,) = together(1, place_and_pay)
        transaction.set_rollback(True)
    for response in refused:
        problem = assert_problem(response, 409, "idempotency-in-progress")
        assert set(problem) == {"type", "title", "status", "detail", "help"}
        assert response.headers["Retry-After"] == "1"
    assert row_counts() == before
    assert [response.status_code for response in place_and_pay(0)] == [201, 200]


@pytest.fixture
def before_the_resend(monkeypatch):
    """Return a function that has an event happen between the request's first read and its work."""

    def arrange(happen):
        resend, pending = services.resend, [happen]

        def resent(**values):
            if pending:
                event = pending.pop()
                together(1, lambda _: event())
            return resend(**values)

        monkeypatch.setattr(services, "resend", resent)

    return arrange


def test_a_first_resend_that_commits_just_before_the_second_takes_the_lock_is_replayed(
    api, before_the_resend
):
    mail = make_mail(status="dead_lettered")
    path, first = f"/api/v1/notifications/{mail.id}/resend", []
    before_the_resend(lambda: first.append(api.post(path, key="k")))
    again = api.post(path, key="k")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.content == first[0].content and first[0].status_code == 202


@pytest.mark.parametrize("key", ["k", None])
def test_a_resend_whose_token_is_revoked_before_it_takes_the_lock_changes_nothing(
    api, before_the_resend, key
):
    mail = make_mail(status="dead_lettered")
    before_the_resend(lambda: ApiToken.objects.update(revoked_at=Now()))
    refused = api.post(f"/api/v1/notifications/{mail.id}/resend", key=key)
    assert_problem(refused, 401, "unauthenticated")
    assert EmailNotification.objects.get().status == "dead_lettered"


def test_a_key_older_than_seven_days_is_free_again(api):
    api.post("/api/v1/orders", order_body(), key="k")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE idempotency_keys SET created_at = now() - interval '7 days 1 second'")
    body = order_body()
    fresh = api.post("/api/v1/orders", body, key="k")
    assert fresh.status_code == 201 and "Idempotency-Replayed" not in fresh.headers
    assert api.post("/api/v1/orders", body, key="k").content == fresh.content
    assert Order.objects.count() == 2


def test_a_repeat_after_its_key_has_expired_owes_no_second_email(api):
    path = api.place()
    assert api.post(f"{path}/pay", key="k").status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("UPDATE idempotency_keys SET created_at = now() - interval '8 days'")
    assert_problem(api.post(f"{path}/pay", key="k"), 409, "invalid-transition")
    IdempotencyKey.objects.all().delete()
    assert_problem(api.post(f"{path}/pay", key="k"), 409, "invalid-transition")
    assert EmailNotification.objects.get().event_type == "order.paid"


def test_a_key_of_six_days_is_still_kept(api):
    body = order_body()
    first = api.post("/api/v1/orders", body, key="k")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE idempotency_keys SET created_at = now() - interval '6 days 23 hours'")
    assert api.post("/api/v1/orders", body, key="k").content == first.content


@pytest.mark.parametrize(
    ("bare", "other"), [("abc", '"abc"'), ('a"b\\c', r'"a\"b\\c"'), ("x" * 255, f'"{"x" * 255}"')]
)
def test_a_quoted_key_means_the_same_as_the_bare_one(api, bare, other):
    body = order_body()
    first = api.post("/api/v1/orders", body, key=bare)
    assert api.post("/api/v1/orders", body, key=other).content == first.content


@pytest.mark.parametrize("joined", ["k,k", "k, k", '"k","k"', "k , k"])
def test_a_key_that_was_sent_twice_in_a_request_is_that_key_once(api, joined):
    body = order_body()
    first = api.post("/api/v1/orders", body, key=joined)
    assert api.post("/api/v1/orders", body, key="k").content == first.content


def test_two_keys_in_one_request_are_one_key_with_a_comma(api):
    body = order_body()
    keys = ("k", "l", "k,l", "l,k", "k,k,l", '"k,l,m"')
    assert len({api.post("/api/v1/orders", body, key=key).json()["id"] for key in keys}) == len(keys)
    assert api.post("/api/v1/orders", body, key="k,l,k,l").headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize(
    "key", ["", " ", '""', "a b", '"a', '"a"b', r'"a\c"', "x" * 256, "\xe9", "a\tb", '"a b"', "\x7f", '"']
)
def test_a_malformed_key_is_400_and_nothing_is_done(api, key):
    path = api.place()
    before = row_counts()
    for response in (
        api.post("/api/v1/orders", order_body(), key=key),
        api.post(f"{path}/pay", key=key),
        api.post(f"{path}/refund", {"amount": 1}, key=key),
    ):
        assert assert_problem(response, 400, "validation")["errors"][0]["in"] == "header"
    assert row_counts() == before


def test_a_hash_of_the_key_stands_in_the_events_envelope(api):
    path = api.post("/api/v1/orders", order_body(), key='"shop-1"').headers["Location"]
    assert api.get(f"{path}/events").json()["results"][0]["metadata"]["idempotencyKey"] == key_hash("shop-1")


def test_a_resend_under_a_key_is_done_once(api):
    mail = make_mail(status="dead_lettered")
    path = f"/api/v1/notifications/{mail.id}/resend"
    first, again = api.post(path, key="k"), api.post(path, key="k")
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.content == first.content and again.headers["Idempotency-Replayed"] == "true"


def test_identical_refunds_at_once_are_one_refund(api):
    path = api.place()
    api.post(f"{path}/pay")
    answers = together(6, lambda _: api.post(f"{path}/refund", {"amount": 4000}, key="k"))
    answers.append(api.post(f"{path}/refund", {"amount": 4000}, key="k"))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({answer.content for answer in answers if answer.status_code == 200}) == 1
    for refused in (answer for answer in answers if answer.status_code == 409):
        assert_problem(refused, 409, "idempotency-in-progress")
    assert Order.objects.get().refunded_amount == 4000


def test_refunds_under_other_keys_at_once_are_told_what_is_left(api):
    path = api.place(total_amount=4990)
    api.post(f"{path}/pay")
    answers = together(3, lambda n: api.post(f"{path}/refund", {"amount": 4000}, key=f"k{n}"))
    done, *refused = sorted(answers, key=lambda answer: answer.status_code)
    assert done.json()["refunded_amount"] == Order.objects.get().refunded_amount == 4000
    assert [assert_problem(answer, 409, "refund-exceeds-balance")["left"] for answer in refused] == [990, 990]
    assert IdempotencyKey.objects.filter(key__in=[key_hash(f"k{n}") for n in range(20)]).count() == 1


def test_two_hundred_identical_requests_at_once_place_one_order_and_owe_one_email(api, settings):
    settings.NOTIFY_ON = ["order.placed"]
    body = order_body()

    def send_ten(_: int) -> list[tuple[int, bytes]]:
        responses = [api.post("/api/v1/orders", body, key="same") for _ in range(10)]
        return [(response.status_code, response.content) for response in responses]

    answers = [answer for ten in together(20, send_ten) for answer in ten]
    assert len(answers) == 200
    done = {content for status, content in answers if status == 201}
    refused = [json.loads(content) for status, content in answers if status != 201]
    assert len(done) == 1
    assert all(problem["type"].endswith("idempotency-in-progress") for problem in refused)
    assert all(problem["status"] == 409 for problem in refused)
    assert Order.objects.count() == EmailNotification.objects.count() == DomainEvent.objects.count() == 1


def test_a_stored_answer_holds_the_hash_of_its_request_and_not_the_request(api):
    body = order_body()
    api.post("/api/v1/orders", body, key="k")
    stored = IdempotencyKey.objects.get(key=key_hash("k"))
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    assert stored.request_hash == hashlib.sha256(f"POST /api/v1/orders\n{canonical}".encode()).hexdigest()
