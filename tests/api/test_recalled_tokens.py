"""A change with a key begins without a read if its process has just read its token."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models.functions import Now
from django.urls import reverse

from runtime.database.postgres import cursor
from tests.kit.api import Api, assert_problem, make_token, order_body, row_counts
from tests.kit.orders import make_order
from tests.kit.races import together
from tests.kit.trips import count_trips
from tests.kit.waiting import replace_time
from tests.kit.words import ApiToken, EmailNotification, IdempotencyKey, Order, read_database_time
from web.api import first_read, views

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(monkeypatch) -> Api:
    """Return a client whose token this process has just read, with statements that stay prepared."""
    monkeypatch.setattr(cursor, "FIRST_USES", 1000)
    api = Api(make_token())
    for key in (None, "warm", None, "warmer"):
        first_read.forget()
        path = api.post("/api/v1/orders", order_body(), key=key).headers["Location"]
        assert api.post(f"{path}/pay", key=key and f"{key}-pay").status_code == 200
    return api


def place(api: Api, key: str = "k") -> str:
    location: str = api.post("/api/v1/orders", order_body(), key=key).headers["Location"]
    return location


class TestTrips:
    """A refused or repeated request asks for the token, and for the stored answer."""

    def test_an_order_is_placed_in_one_and_paid_in_two(self, api):
        assert count_trips(lambda: place(api)) == 1
        path = f"/api/v1/orders/{make_order().id}/pay"
        assert count_trips(lambda: api.post(path, key="p")) == 2
        assert Order.objects.filter(status="paid").count() == 5

    @pytest.mark.parametrize(("name", "trips"), [("place", 2), ("pay", 3)])
    def test_without_a_key_or_soon_after_the_start_of_a_process_there_is_one_more(self, api, name, trips):
        for key in (None, "k"):
            path, body = "/api/v1/orders", order_body()
            if name == "pay":
                path, body = f"/api/v1/orders/{make_order().id}/pay", {}
            first_read.forget()
            assert count_trips(lambda path=path, body=body, key=key: api.post(path, body, key=key)) == trips

    def test_a_refusal_is_four_and_leaves_everything_prepared(self, api):
        path = place(api)
        api.post(f"{path}/pay", key="p")
        for _ in range(3):
            assert count_trips(lambda: api.post(f"{path}/pay", key="q")) in (3, 4)
        other = make_order()
        assert count_trips(lambda: api.post(f"/api/v1/orders/{other.id}/pay", key="r")) == 2

    def test_a_repeat_is_two_of_a_placed_order_and_three_of_a_paid_one(self, api):
        path, body = place(api), order_body()
        api.post(f"{path}/pay", key="p")
        api.post("/api/v1/orders", body, key="again")
        for _ in range(3):
            paying = count_trips(lambda: api.post(f"{path}/pay", key="p"))
            placing = count_trips(lambda: api.post("/api/v1/orders", body, key="again"))
        assert (placing, paying) == (2, 3)

    def test_a_revoked_token_is_refused_by_its_save_and_then_by_the_read(self, api):
        path = f"/api/v1/orders/{make_order().id}/pay"
        ApiToken.objects.update(revoked_at=Now())
        assert count_trips(lambda: api.post(path, key="p")) == 4
        assert count_trips(lambda: api.post(path, key="p")) == 1  # it is not recalled any more


REQUESTS: dict[str, tuple[str, Any]] = {
    "a change": ("{order}/pay", None),
    "a new order": ("", order_body()),
    "a repeat": ("", "repeat"),
    "a refused change": ("{order}/complete", None),
    "a malformed body": ("{order}/pay", {"unknown": 1}),
    "no JSON": ("{order}/pay", b"{"),
    "a malformed id": ("/x/pay", None),
    "an unknown order": ("/6f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11/pay", None),
    "an unknown parameter": ("{order}/pay?a=1", None),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("end", ["revoked_at", "expires_at"])
def test_a_token_that_was_revoked_a_moment_ago_changes_nothing_and_learns_nothing(api, name, end):
    order, repeat = make_order(), order_body()
    assert api.post("/api/v1/orders", repeat, key="repeat").status_code == 201
    path, body = REQUESTS[name]
    ApiToken.objects.update(**{end: Now()})
    before = row_counts()
    path = "/api/v1/orders" + path.format(order=f"/{order.id}")
    key = "repeat" if body == "repeat" else "k"
    assert_problem(api.post(path, repeat if body == "repeat" else body, key=key), 401, "unauthenticated")
    assert row_counts() == before


def test_a_revoked_token_without_the_scope_is_401_too():
    api = Api(make_token(scopes=["orders:read"]))
    path = f"/api/v1/orders/{make_order().id}/pay"
    assert_problem(api.post(path, key="k"), 403, "forbidden")
    assert_problem(api.post(path, key="k"), 403, "forbidden")
    ApiToken.objects.update(revoked_at=Now())
    assert_problem(api.post(path, key="k"), 401, "unauthenticated")


def test_a_refusal_is_503_if_the_token_cannot_be_read(api, monkeypatch):
    def away(**_: Any) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr(views, "read_first", away)
    assert_problem(api.post("/api/v1/orders", {"unknown": 1}, key="k"), 503, "unavailable")


def test_a_token_is_read_again_after_five_seconds_and_for_each_get(api, monkeypatch):
    def trips(path: str, **more: Any) -> int:
        return count_trips(lambda: api.post(path, order_body(), **more))

    assert trips("/api/v1/orders", key="a") == 1
    later = time.monotonic() + first_read.RECALL_SECONDS
    replace_time(monkeypatch, first_read, monotonic=lambda: later)
    assert trips("/api/v1/orders", key="b") == 2
    monkeypatch.undo()
    assert count_trips(lambda: api.get("/api/v1/orders/x")) == 1


def test_a_revoked_token_of_a_source_learns_nothing_of_its_orders():
    bound = Api(make_token(source="shop-a"))
    path = f"/api/v1/orders/{make_order(source='shop-a').id}/pay"
    for key in "ab":
        assert_problem(bound.post(path, key=key), 409, "externally-owned")
    ApiToken.objects.update(revoked_at=Now())
    assert_problem(bound.post(path, key="c"), 401, "unauthenticated")


def test_repeats_and_reused_keys_are_answered_as_after_a_read(api):
    body = order_body()
    first = api.post("/api/v1/orders", body, key="k")
    again = api.post("/api/v1/orders", body, key="k")
    assert again.content == first.content and again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    assert_problem(api.post("/api/v1/orders", order_body(), key="k"), 422, "idempotency-key-reused")
    path = first.headers["Location"]
    assert_problem(api.post(f"{path}/pay", key="k"), 422, "idempotency-key-reused")
    paid = api.post(f"{path}/pay", key="p")
    assert api.post(f"{path}/pay", key="p").content == paid.content
    assert_problem(api.post(f"{path}/cancel", key="p"), 422, "idempotency-key-reused")
    assert EmailNotification.objects.filter(event_type="order.paid").count() == 5


def test_many_repeats_at_once_all_get_the_stored_answer(api):
    path = place(api)
    first = api.post(f"{path}/pay", key="p")
    answers = together(8, lambda _: api.post(f"{path}/pay", key="p"))
    assert {(answer.status_code, answer.content) for answer in answers} == {(200, first.content)}


@pytest.mark.parametrize("name", ["place", "pay"])
def test_an_expired_answer_is_deleted_and_its_key_used_again(api, name):
    path = "/api/v1/orders" if name == "place" else f"/api/v1/orders/{make_order().id}/pay"
    body = order_body() if name == "place" else None
    api.post(path, body, key="k")
    IdempotencyKey.objects.update(created_at=Now() - dt.timedelta(days=8))
    if name == "pay":
        path = f"/api/v1/orders/{make_order().id}/pay"
    answer = api.post(path, body, key="k")
    assert answer.status_code == (201 if name == "place" else 200)
    assert "Idempotency-Replayed" not in answer.headers
    again = api.post(path, body, key="k")
    assert again.content == answer.content and again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize("hours", [1, -1])
def test_an_orders_time_is_the_databases_whatever_happens_to_this_hosts_clock(api, monkeypatch, hours):
    real, real_datetime = time.time, dt.datetime

    class Moved(dt.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real_datetime.now(tz) + dt.timedelta(hours=hours)

    before = read_database_time()
    monkeypatch.setattr(dt, "datetime", Moved)
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    answer = api.post("/api/v1/orders", order_body(), key="k")
    monkeypatch.undo()
    assert answer.status_code == 201
    placed_at = Order.objects.get(id=answer.json()["id"]).created_at
    assert before - dt.timedelta(seconds=1) <= placed_at <= read_database_time()


def test_an_orders_time_goes_on_with_the_monotonic_clock(api, monkeypatch):
    api.get("/api/v1/orders/x")
    read_at = read_database_time()
    now = time.monotonic()
    replace_time(monkeypatch, first_read, monotonic=lambda: now + 3.0)
    answer = api.post("/api/v1/orders", order_body(), key="k")
    placed_at = Order.objects.get(id=answer.json()["id"]).created_at
    assert dt.timedelta(seconds=2) < placed_at - read_at < dt.timedelta(seconds=4)


def test_no_more_tokens_are_remembered_than_a_limit(monkeypatch):
    monkeypatch.setattr(first_read, "MOST_RECALLED", 3)
    first_read.forget()
    for _ in range(5):
        Api(make_token()).get("/api/v1/orders/x")
    assert len(first_read._recent) <= 3


def test_the_scopes_and_the_source_of_a_token_never_change_after_it_was_made(admin_client):
    """A process may recall them for some seconds."""
    make_token(scopes=["orders:read"])
    token = ApiToken.objects.get()
    url = reverse("admin:web_apitoken_change", args=[token.id])
    page = admin_client.get(url).content.decode()
    assert 'name="scopes"' not in page and 'name="source"' not in page
    values = {"name": "other", "scopes": ["orders:write"], "source": "shop-a"}
    assert admin_client.post(url, values).status_code == 403
    token.refresh_from_db()
    assert (token.name, token.scopes, token.source) == ("test", ["orders:read"], "")


def test_a_token_is_recalled_by_no_other_view_than_the_six_that_change_an_order(api):
    order = make_order(status="paid")
    parcel = f"/api/v1/orders/{order.id}/shipments"
    assert api.post(parcel, key="k").status_code == 201
    ApiToken.objects.update(revoked_at=Now())
    assert count_trips(lambda: assert_problem(api.post(parcel, key="l"), 401, "unauthenticated")) == 1
