"""POST /notifications/{id}/copies: an ended e-mail once more, to a corrected address if wanted."""

from __future__ import annotations

import uuid

import pytest

from tests.kit.api import Api, assert_problem, make_token, row_counts
from tests.kit.mails import make_mail
from tests.kit.orders import make_order, pay_order
from tests.kit.words import (
    EmailNotification,
    Order,
    Suppression,
    SuppressionReason,
    new_id,
    suppress,
)

pytestmark = pytest.mark.django_db(transaction=True)


def ended(status: str = "sent", **fields: object) -> EmailNotification:
    return make_mail(status=status, order_id=make_order(email="alice@exampel.com").id, **fields)


def path(mail: EmailNotification) -> str:
    return f"/api/v1/notifications/{mail.id}/copies"


@pytest.mark.parametrize("status", ["sent", "dead_lettered", "discarded", "suppressed"])
def test_an_ended_email_is_copied_and_stays_as_it_is(api, status):
    mail = ended(status, retry_count=3)
    before = EmailNotification.objects.filter(id=mail.id).values().get()
    response = api.post(path(mail), {})
    shown = response.json()
    assert response.status_code == 201
    assert response.headers["Location"] == f"/api/v1/notifications/{shown['id']}"
    assert api.get(response.headers["Location"]).json() == shown
    assert (shown["resend_of"], shown["status"], shown["retry_count"]) == (str(mail.id), "pending", 0)
    copy = EmailNotification.objects.get(id=shown["id"])
    for column in ("order_id", "event_type", "recipient_email", "to_name", "locale", "subject", "body"):
        assert getattr(copy, column) == getattr(mail, column)
    assert copy.body_text == mail.body_text
    assert EmailNotification.objects.due().filter(id=copy.id).exists()
    assert EmailNotification.objects.filter(id=mail.id).values().get() == before


def test_a_copy_goes_to_the_corrected_address_and_the_order_keeps_its_own(api):
    mail = ended("dead_lettered")
    shown = api.post(path(mail), {"recipient_email": "alice@example.com"}).json()
    assert shown["recipient_email"] == "alice@example.com"
    assert Order.objects.get(id=mail.order_id).email == "alice@exampel.com"


def test_update_order_corrects_the_order_and_later_emails_go_there(api):
    mail = ended("dead_lettered")
    order = Order.objects.get(id=mail.order_id)
    body = {"recipient_email": "alice@example.com", "update_order": True}
    assert api.post(path(mail), body).status_code == 201
    corrected = api.get(f"/api/v1/orders/{order.id}").json()
    assert (corrected["email"], corrected["version"]) == ("alice@example.com", order.version)
    pay_order(order_id=order.id)
    paid = EmailNotification.objects.filter(order_id=order.id, event_type="order.paid").latest("id")
    assert paid.recipient_email == "alice@example.com"


@pytest.mark.parametrize("status", ["pending", "processing", "failed"])
def test_an_unfinished_email_is_not_copied_and_the_answer_says_why(api, status):
    mail = ended(status)
    before = row_counts()
    problem = assert_problem(api.post(path(mail), {}), 409, "not-copyable")
    assert status in problem["detail"] and problem["current_status"] == status
    assert row_counts() == before


def test_no_copy_goes_to_a_suppressed_address(api):
    mail = ended()
    suppress([SuppressionReason("Bounced@example.com", Suppression.Reason.HARD_BOUNCE)])
    before = row_counts()
    body = {"recipient_email": "bounced@example.com", "update_order": True}
    problem = assert_problem(api.post(path(mail), body), 409, "not-copyable")
    assert "suppressed: the address bounced" in problem["detail"]
    assert row_counts() == before
    assert Order.objects.get(id=mail.order_id).email == "alice@exampel.com"


def test_no_copy_is_made_of_an_erased_email_whatever_the_address(api):
    mail = ended(recipient_email="erased@privacy.invalid")
    problem = assert_problem(api.post(path(mail), {"recipient_email": "a@example.com"}), 409, "not-copyable")
    assert "erased" in problem["detail"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"recipient_email": "nobody"}, "#/recipient_email"),
        ({"recipient_email": None}, "#/recipient_email"),
        ({"recipient_email": "a@example.com", "update_order": "true"}, "#/update_order"),
        ({"recipient_email": "a@example.com", "update_order": 1}, "#/update_order"),
        ({"update_order": True}, "#/recipient_email"),
        ({"to": "a@example.com"}, "#/to"),
    ],
)
def test_a_bad_body_changes_nothing(api, body, pointer):
    mail = ended()
    before = row_counts()
    problem = assert_problem(api.post(path(mail), body), 400, "validation")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert row_counts() == before


@pytest.mark.parametrize("id", [uuid.uuid4(), new_id(), "x", uuid.UUID(int=0)])
def test_an_unknown_email_is_404(api, id):
    assert_problem(api.post(f"/api/v1/notifications/{id}/copies", {}), 404, "not-found")


def test_the_same_key_makes_one_copy(api):
    mail = ended()
    first = api.post(path(mail), {}, key="copy-1")
    again = api.post(path(mail), {}, key="copy-1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content and again.headers["Idempotency-Replayed"] == "true"
    assert EmailNotification.objects.filter(resend_of=mail.id).count() == 1


def test_a_copy_can_be_copied(api):
    first = ended()
    copy = api.post(path(first), {}).json()
    EmailNotification.objects.filter(id=copy["id"]).update(status="dead_lettered", ended_by="provider")
    assert api.post(f"/api/v1/notifications/{copy['id']}/copies", {}).json()["resend_of"] == copy["id"]


def test_a_token_without_the_scope_makes_no_copy(db):
    mail = ended()
    other = Api(make_token(scopes=["notifications:read", "orders:write"]))
    assert_problem(other.post(path(mail), {}), 403, "forbidden")
