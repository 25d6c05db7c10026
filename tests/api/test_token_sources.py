"""A token that is bound to a source: it sees and sends what its shop owns, and learns nothing else."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.urls import reverse

from tests.kit.api import ENDPOINTS, ID, Api, assert_problem, make_token, order_body, row_counts
from tests.kit.events import PAID, SHOP, envelope, new_id, order, tell, told
from tests.kit.events import status as status_of
from tests.kit.people import staff_client
from tests.kit.words import ApiToken, EmailNotification, Order, ProcessedEvent

URL = "/api/v1/events"
OTHER = "shop-b"
COLLEAGUE = "colleague@staff.example"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("two_shops")]


def theirs(kind: str) -> Order:
    """Return an order that SHOP does not own, with an e-mail."""
    if kind == "ours":
        return order()
    tell("paid", id := new_id(), 1, source=OTHER)
    return Order.objects.get(id=id)


@pytest.mark.parametrize("kind", ["ours", "another shop's"])
def test_each_call_with_the_id_of_others_answers_as_for_an_unknown_id(bound, api, kind):
    foreign = theirs(kind)
    mail = EmailNotification.objects.filter(order_id=foreign.id).first() or _mail_of(foreign)
    EmailNotification.objects.filter(id=mail.id).update(status="dead_lettered", ended_by="provider")
    before = row_counts()
    for method, path, _ in ENDPOINTS:
        if str(ID) not in path:
            continue
        id = mail.id if "/notifications/" in path and not path.endswith("notifications") else foreign.id
        here, unknown = path.replace(str(ID), str(id)), path.replace(str(ID), str(uuid.uuid4()))
        answer, same = bound.request(method, here), bound.request(method, unknown)
        assert_problem(answer, 404, "not-found")
        assert answer.content == same.content, path
    assert row_counts() == before
    assert api.get(f"/api/v1/orders/{foreign.id}").status_code == 200


def _mail_of(placed: Order) -> EmailNotification:
    Api(make_token()).post(f"/api/v1/orders/{placed.id}/pay")
    return EmailNotification.objects.get(order_id=placed.id)


def test_lists_have_the_rows_of_its_own_source(bound, api):
    theirs("ours"), theirs("another shop's")
    tell("paid", id := new_id(), 1)
    orders, mails = bound.get("/api/v1/orders").json(), bound.get("/api/v1/notifications").json()
    assert [result["id"] for result in orders["results"]] == [id]
    assert [result["order_id"] for result in mails["results"]] == [id]
    assert len(api.get("/api/v1/orders").json()["results"]) == 3
    for path in ("", "/notifications", "/events", "/timeline"):
        assert bound.get(f"/api/v1/orders/{id}{path}").status_code == 200
    mail = mails["results"][0]["id"]
    assert bound.get(f"/api/v1/notifications/{mail}").status_code == 200
    EmailNotification.objects.filter(id=mail).update(status="dead_lettered", ended_by="provider")
    assert bound.post(f"/api/v1/notifications/{mail}/resend").status_code == 202
    EmailNotification.objects.filter(id=mail).update(status="sent", sent_at=Now())
    assert bound.post(f"/api/v1/notifications/{mail}/copies").status_code == 201


def test_it_changes_its_orders_by_events_alone(bound):
    tell("placed", id := new_id(), 1)
    assert_problem(bound.post(f"/api/v1/orders/{id}/pay"), 409, "externally-owned")
    problem = assert_problem(bound.post("/api/v1/orders", order_body()), 403, "forbidden")
    assert problem["source"] == SHOP


def test_it_sends_order_events_of_its_own_source_alone(bound):
    placed = order()
    own, others = told("paid", new_id(), 1), told("paid", new_id(), 1, source=OTHER)
    payment = envelope(PAID, {"orderId": str(placed.id)}) | {"source": SHOP}
    mixed = told("paid", new_id(), 1) | {"source": OTHER}
    gateway = told("paid", new_id(), 1, source=OTHER) | {"source": SHOP}
    for refused in (others, payment, mixed, gateway):
        assert_problem(bound.post(URL, refused), 403, "forbidden")
    answer = bound.post(URL, [others, own, payment, mixed, gateway]).json()["results"]
    assert [each["result"] for each in answer] == ["refused", "processed", *["refused"] * 3]
    assert ProcessedEvent.objects.count() == 1 and status_of(placed) == "pending"


@pytest.mark.parametrize("kind", ["ours", "another shop's"])
def test_it_is_not_told_who_owns_an_order_with_the_same_id(bound, api, kind):
    foreign = theirs(kind)
    event: dict[str, Any] = told("paid", str(foreign.id), 9)
    problem = assert_problem(bound.post(URL, event), 422, "unusable-event")
    assert OTHER not in problem["detail"] and "this system" not in problem["detail"]
    assert "belongs to" in api.post(URL, event).json()["detail"]


def test_a_token_without_a_source_speaks_for_all(api):
    placed = order()
    events = [
        told("paid", new_id(), 1),
        told("paid", new_id(), 1, source=OTHER),
        envelope(PAID, {"orderId": str(placed.id)}),
    ]
    answer = api.post(URL, events).json()["results"]
    assert [each["result"] for each in answer] == ["processed"] * 3


def test_a_shop_that_left_order_sources_is_refused(bound, settings):
    settings.ORDER_SOURCES = [OTHER]
    problem = assert_problem(bound.post(URL, told("paid", new_id(), 1)), 422, "unusable-event")
    assert "ORDER_SOURCES" in problem["detail"]


def test_tokens_create_binds_a_token_and_the_list_shows_it(db):
    out, err = io.StringIO(), io.StringIO()
    options = ("--scope", "events:write", "--source")
    call_command("tokens", "create", "shop", *options, SHOP, stdout=out, stderr=err)
    assert ApiToken.objects.get().source == SHOP and "until" not in err.getvalue()
    assert Api(out.getvalue().strip()).post(URL, told("paid", new_id(), 1)).status_code == 200
    call_command("tokens", "create", "later", *options, "shop-c", stdout=out, stderr=err)
    assert "Events of shop-c are refused until" in err.getvalue()
    listed = io.StringIO()
    call_command("tokens", "list", stdout=listed)
    assert f"only {SHOP}" in listed.getvalue()
    for wrong in ("order-service", "x" * 101, "a\nb"):
        with pytest.raises(CommandError, match="ORDER_SOURCES"):
            call_command("tokens", "create", "wrong", *options, wrong)
    assert ApiToken.objects.count() == 2


@pytest.fixture
def copied() -> EmailNotification:
    """Return the copy of an e-mail of SHOP's that an operator sent to a colleague, with a reason."""
    tell("paid", id := new_id(), 1)
    mail = EmailNotification.objects.get(order_id=id)
    EmailNotification.objects.filter(id=mail.id).update(status="sent", sent_at=Now())
    operator = staff_client("copy_emailnotification", "view_emailnotification", name="olga")
    form = {"recipient_email": COLLEAGUE, "reason": "VIP. Perhaps a thief."}
    assert operator.post(reverse("admin:orders_order_copy", args=[mail.id]), form).status_code == 302
    EmailNotification.objects.filter(resend_of=mail.id).update(
        status="dead_lettered",
        ended_by="provider",
        last_error=f"550 <{COLLEAGUE}> is full",
        errors=[{"at": "2026-11-01T00:00:00Z", "outcome": "permanent", "text": f"<{COLLEAGUE}> is full"}],
    )
    return EmailNotification.objects.get(resend_of=mail.id)


SECRETS = (COLLEAGUE, "olga", "VIP", "thief")


def test_no_answer_has_an_operators_reason_name_or_colleague(bound, api, copied):
    order_id, mail = copied.order_id, copied.id
    paths = [f"/orders/{order_id}{path}" for path in ("", "/notifications", "/events", "/timeline")]
    paths += ["/orders", "/notifications", f"/notifications/{mail}"]
    answers = [bound.get(f"/api/v1{path}") for path in paths]
    # Without an address, a copy of the copy goes to the colleague, too.
    answers.append(bound.post(f"/api/v1/notifications/{mail}/copies"))
    answers.append(bound.post(f"/api/v1/notifications/{mail}/resend"))
    assert {answer.status_code for answer in answers} == {200, 201, 202}
    for answer in answers:
        assert not [secret for secret in SECRETS if secret in answer.content.decode()]
    everything = api.get(f"/api/v1/orders/{order_id}/timeline").content.decode()
    assert [secret for secret in SECRETS if secret in everything] == [*SECRETS]


def test_a_timeline_still_tells_that_a_copy_was_sent(bound, copied):
    entries = bound.get(f"/api/v1/orders/{copied.order_id}/timeline").json()["results"]
    told_of = [(entry["notification_id"], entry["text"], entry["by"]) for entry in entries]
    assert (str(copied.resend_of), f"Copied as {copied.id}.", "") in told_of
    saved = f"E-mail order.paid for another address saved, a copy of {copied.resend_of}"
    assert (str(copied.id), saved, "") in told_of


def test_a_filter_does_not_find_a_copy_by_an_address_that_it_hides(bound, api, copied):
    path = f"/api/v1/notifications?recipient_email={COLLEAGUE}"
    assert bound.get(path).json()["results"] == []
    assert [result["id"] for result in api.get(path).json()["results"]] == [str(copied.id)]
    theirs_too = f"/api/v1/notifications?recipient_email={Order.objects.get().email.upper()}"
    assert [result["resend_of"] for result in bound.get(theirs_too).json()["results"]] == [None]


def test_it_reads_the_address_of_a_copy_to_the_orders_own(bound, copied):
    answer = bound.post(f"/api/v1/notifications/{copied.resend_of}/copies").json()
    assert answer["recipient_email"] == Order.objects.get().email
