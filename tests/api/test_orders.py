"""The API of orders, call by call."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest

from orders.api.serializers import OrderSerializer
from tests.kit.api import Api, assert_problem, make_token, order_body, row_counts
from tests.kit.races import together
from tests.kit.words import DomainEvent, EmailNotification, Order, id_time

FIELDS = [*(name for name, field in OrderSerializer().fields.items() if field.required), "email_language"]


def test_placing_answers_201_with_the_order_and_where_it_is(api):
    items = [{"sku": "T", "name": "Tea", "quantity": 2, "unit_amount": 995}]
    body = order_body(name=" Zoë ", currency="EUR", locale="de-AT", reference="R-7", items=items)
    response = api.post("/api/v1/orders", body)
    order = response.json()
    assert response.status_code == 201
    assert list(order) == FIELDS
    assert {key: order[key] for key in body} == body  # as sent: nothing is trimmed
    assert (order["status"], order["version"], order["refunded_amount"]) == ("pending", 1, 0)
    assert uuid.UUID(order["id"]).version == 7
    assert response.headers["Location"] == f"/api/v1/orders/{order['id']}"
    assert dt.datetime.fromisoformat(order["created_at"]).utcoffset() == dt.timedelta(0)
    assert api.get(response.headers["Location"]).json() == order


def test_what_is_left_out_has_its_default(api):
    order = api.post("/api/v1/orders", order_body()).json()
    assert (order["name"], order["currency"], order["locale"]) == ("", "USD", "en")
    assert (order["reference"], order["items"]) == ("", [])


@pytest.mark.parametrize(
    "fields",
    [
        {"total_amount": 1},
        {"total_amount": 10**12},
        {"name": ""},
        {"name": "x" * 200, "reference": "y" * 100},
        {"email": "o'brien+shop@sub.example.co.uk"},
        {"user_id": str(uuid.uuid1()).upper()},
        {"items": [{"sku": "s", "name": "n", "quantity": 10**6, "unit_amount": 0}] * 200},
        {"currency": "JPY", "locale": "fr"},
        {"currency": "KWD", "locale": "fr_CA"},
        {"locale": "nl"},
        {"locale": "de-US"},
        {"locale": "EN"},
        {"name": "", "reference": "", "items": []},
    ],
)
def test_values_at_the_border_are_taken(api, fields):
    """Each is answered as it was sent, but for a UUID, which is answered in lower case."""
    order = api.post("/api/v1/orders", order_body(**fields)).json()
    if "user_id" in fields:
        fields = {"user_id": fields["user_id"].lower()}
    assert {name: order[name] for name in fields} == fields
    assert api.get(f"/api/v1/orders/{order['id'].upper()}").json() == order


def test_a_token_that_only_writes_is_answered_with_the_order(db):
    response = Api(make_token(scopes=["orders:write"])).post("/api/v1/orders", order_body())
    assert response.status_code == 201 and list(response.json()) == FIELDS


@pytest.mark.parametrize(
    ("actions", "status", "version"),
    [(["pay", "complete"], "completed", 3), (["confirm", "pay"], "confirmed", 3)],
)
def test_a_change_answers_200_with_the_order_as_it_stands_after_it(api, actions, status, version):
    path = api.place()
    for action in actions:
        response = api.post(f"{path}/{action}")
        assert response.status_code == 200
    order = response.json()
    assert (order["status"], order["version"]) == (status, version)
    assert order == api.get(path).json()


#: For each way: the status then, the actions and the statuses that are allowed next. `part` refunds a part.
#: tests/rules/orders/test_services.py has the whole table. Two of these ways the status alone does not tell.
NEXT = [
    ("", "pending", "pay confirm cancel", "paid pending cancelled"),
    ("pay cancel", "cancelled", "refund", "cancelled"),
    ("pay part complete", "part_refunded", "refund", "part_refunded refunded"),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("way", "status", "actions", "statuses"), NEXT)
def test_a_change_that_is_not_allowed_names_the_status_and_what_is_allowed(
    api, way, status, actions, statuses
):
    path = api.place()
    for step in way.split():
        action, body = ("refund", {"amount": 1}) if step == "part" else (step, None)
        assert api.post(f"{path}/{action}", body).status_code == 200
    before = row_counts()
    for action in {"pay", "confirm", "complete", "cancel", "refund"} - set(actions.split()):
        for key in (None, f"key-{action}"):
            problem = assert_problem(api.post(f"{path}/{action}", key=key), 409, "invalid-transition")
            assert problem["current_status"] == status
            assert problem["allowed_actions"] == actions.split()
            assert problem["allowed_statuses"] == statuses.split()
            assert status in problem["detail"] and action in problem["detail"]
    assert row_counts() == before


@pytest.mark.django_db(transaction=True)
def test_refunding_more_than_is_left_says_what_is_left_and_changes_nothing(api):
    path = api.place()
    api.post(f"{path}/pay")
    api.post(f"{path}/refund", {"amount": 9_000})
    problem = assert_problem(api.post(f"{path}/refund", {"amount": 1_001}), 409, "refund-exceeds-balance")
    assert problem["left"] == 1_000
    assert api.get(path).json()["refunded_amount"] == 9_000


def test_a_cancellation_takes_a_reason_and_a_completion_a_tracking_url(api):
    first, second = api.place(), api.place()
    assert api.post(f"{first}/cancel", {"reason": "x" * 500}).status_code == 200
    api.post(f"{second}/pay")
    body = {"tracking_url": "https://parcels.example.com/t?n=1"}
    assert api.post(f"{second}/complete", body).status_code == 200
    mail = EmailNotification.objects.get(event_type="order.completed")
    assert body["tracking_url"] in mail.body_text


@pytest.mark.parametrize(
    "id", [uuid.uuid4(), "1", "0", "x", "%00", "%FF", "01890000000070008000000000000001", "{}"]
)
@pytest.mark.parametrize("tail", ["", "/notifications", "/events"])
def test_an_unknown_order_is_404(api, id, tail):
    assert_problem(api.get(f"/api/v1/orders/{id}{tail}"), 404, "not-found")


@pytest.mark.parametrize("id", [uuid.uuid4(), "1", "x"])
@pytest.mark.parametrize("action", ["pay", "confirm", "complete", "cancel", "refund"])
def test_changing_an_unknown_order_is_404(api, id, action):
    assert_problem(api.post(f"/api/v1/orders/{id}/{action}"), 404, "not-found")


def test_the_list_is_filtered_by_user_status_and_reference_newest_first(api):
    user = str(uuid.uuid4())
    paths = [api.place(user_id=user, reference=f"R{n % 2}") for n in range(4)]
    api.place()
    api.post(f"{paths[2]}/pay")

    def listed(query: str) -> list[str]:
        results = api.get(f"/api/v1/orders{query}").json()["results"]
        return [f"/api/v1/orders/{order['id']}" for order in results]

    assert listed(f"?user_id={user}") == paths[::-1]
    assert listed(f"?user_id={user}&status=paid") == [paths[2]]
    assert listed("?reference=R1") == [paths[3], paths[1]]
    assert listed("?status=refunded") == []
    assert len(listed("")) == 5


def test_an_orders_notifications_are_listed_oldest_first_without_bodies_and_say_from_when(api):
    path = api.place()
    for action in ("pay", "complete", "refund"):
        api.post(f"{path}/{action}")
    page = api.get(f"{path}/notifications").json()
    assert list(page) == ["next", "previous", "results", "since"]
    assert [mail["event_type"] for mail in page["results"]] == [
        "order.paid",
        "order.completed",
        "order.refunded",
    ]
    assert list(page["results"][0]) == [
        *("id", "order_id", "event_type", "recipient_email", "subject", "status", "retry_count"),
        *("max_retries", "last_error", "next_attempt_at", "provider", "provider_message_id"),
        *("created_at", "sent_at", "delivered_at", "bounced_at", "resend_of", "shop_copy_of"),
        *("profile", "failed_at", "ended_by"),
    ]
    since = dt.datetime.fromisoformat(page["since"])
    assert since < id_time(uuid.UUID(page["results"][0]["id"]))


def test_an_orders_events_are_listed_by_its_versions_and_hold_no_address(api):
    path = api.place(email="alice@example.com", name="Alice")
    for action in ("confirm", "pay", "refund"):
        api.post(f"{path}/{action}", X_Correlation_ID=f"c-{action}")
    response = api.get(f"{path}/events")
    page = response.json()
    events = page["results"]
    assert [(event["sequence"], event["event_type"]) for event in events] == [
        (1, "order.order.placed.v1"),
        (2, "order.order.paid.v1"),
        (3, "order.order.confirmed.v1"),
        (4, "order.order.refunded.v1"),
    ]
    assert list(events[0]) == [
        *("id", "event_type", "version", "sequence", "payload", "metadata", "created_at", "published_at")
    ]
    assert events[3]["metadata"]["correlationId"] == "c-refund"
    assert page["since"] and page["next"] is None
    assert b"alice" not in response.content.lower()


@pytest.mark.django_db(transaction=True)
def test_partial_refunds_at_the_same_time_add_up_exactly(api):
    path = api.place(total_amount=10_000)
    api.post(f"{path}/pay")

    def refund(_: int):
        # Two wait for the order at a time, and others are told to come again.
        while (answer := api.post(f"{path}/refund", {"amount": 600})).status_code == 503:
            assert answer.headers["Retry-After"] == "1"
        return answer

    responses = together(20, refund)
    codes = sorted(response.status_code for response in responses)
    assert codes == [200] * 16 + [409] * 4
    assert {r.json()["left"] for r in responses if r.status_code == 409} == {400}
    done = sorted(r.json()["refunded_amount"] for r in responses if r.status_code == 200)
    assert done == [600 * n for n in range(1, 17)]
    order = api.post(f"{path}/refund").json()
    assert (order["status"], order["refunded_amount"]) == ("refunded", 10_000)
    events = DomainEvent.objects.filter(event_type__contains="refunded").order_by("sequence")
    assert sum(event.payload["amount"] for event in events) == 10_000
    assert EmailNotification.objects.filter(event_type__contains="refunded").count() == 17
    assert Order.objects.get().version == 19


@pytest.mark.django_db(transaction=True)
def test_of_many_payments_at_the_same_time_one_is_done(api):
    path = api.place()
    codes = sorted(r.status_code for r in together(12, lambda _: api.post(f"{path}/pay")))
    assert codes == [200] + [409] * 11
    assert EmailNotification.objects.count() == 1
