"""The API of notifications: state, lists, sending again."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db.models.functions import Now

from runtime.audit import Actor
from tests.kit.api import assert_problem, row_counts
from tests.kit.mails import make_mail
from tests.kit.words import EmailNotification, claim, new_id, pauses

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_notification_shows_its_state_and_not_its_body(api):
    mail = make_mail(body="<p>secret body</p>", last_error="503 busy", status="failed", retry_count=2)
    response = api.get(f"/api/v1/notifications/{mail.id}")
    shown = response.json()
    assert response.status_code == 200
    assert list(shown) == [
        *("id", "order_id", "event_type", "recipient_email", "subject", "status", "retry_count"),
        *("max_retries", "last_error", "next_attempt_at", "provider", "provider_message_id"),
        *("created_at", "sent_at", "delivered_at", "bounced_at", "resend_of", "shop_copy_of"),
        *("profile", "failed_at", "ended_by"),
    ]
    assert (shown["id"], shown["order_id"]) == (str(mail.id), str(mail.order_id))
    assert (shown["status"], shown["retry_count"], shown["max_retries"]) == ("failed", 2, 3)
    assert dt.datetime.fromisoformat(shown["next_attempt_at"]) == mail.next_attempt_at
    assert (shown["sent_at"], shown["provider"]) == (None, "")
    assert b"secret body" not in response.content


def test_a_dead_letter_has_the_time_of_its_last_failed_attempt(api):
    errors = [{"at": "2026-11-20T10:00:00+00:00"}, {"at": "2026-11-21T10:00:00.5+00:00"}]
    shown = [
        api.get(f"/api/v1/notifications/{make_mail(status=status, errors=attempts).id}").json()["failed_at"]
        for status, attempts in (("dead_lettered", errors), ("failed", errors), ("dead_lettered", []))
    ]
    assert shown == ["2026-11-21T10:00:00.500000Z", None, None]


@pytest.mark.parametrize("status", ["sent", "dead_lettered", "discarded", "suppressed", "processing"])
def test_a_notification_that_nothing_is_planned_for_has_no_next_attempt(api, status):
    mail = make_mail(status=status)
    assert api.get(f"/api/v1/notifications/{mail.id}").json()["next_attempt_at"] is None


@pytest.mark.parametrize(
    "id", [uuid.uuid4(), new_id(), "1", "x", "%00", uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]
)
def test_an_unknown_notification_is_404(api, id):
    assert_problem(api.get(f"/api/v1/notifications/{id}"), 404, "not-found")
    assert_problem(api.post(f"/api/v1/notifications/{id}/resend"), 404, "not-found")
    assert_problem(api.post(f"/api/v1/notifications/{id}/discard"), 404, "not-found")


def test_the_list_is_filtered_by_status_recipient_and_order_newest_first(api):
    dead = make_mail(status="dead_lettered", recipient_email="bob@example.com")
    sent = make_mail(status="sent", recipient_email="Bob@Example.com", order_id=dead.order_id)
    other = make_mail(recipient_email="jobob@example.com")

    def listed(query: str) -> list[str]:
        return [mail["id"] for mail in api.get(f"/api/v1/notifications{query}").json()["results"]]

    assert listed("") == [str(mail.id) for mail in (other, sent, dead)]
    assert listed("?status=dead_lettered") == [str(dead.id)]
    for address in ("bob@example.com", "BOB@example.com"):
        assert listed(f"?recipient_email={address}") == [str(sent.id), str(dead.id)]
    assert listed(f"?order_id={dead.order_id}") == [str(sent.id), str(dead.id)]
    assert listed(f"?order_id={dead.order_id}&status=sent") == [str(sent.id)]


@pytest.mark.parametrize("status", ["dead_lettered", "discarded", "failed"])
def test_a_notification_that_did_not_go_out_is_sent_again_with_all_its_retries(api, status):
    mail = make_mail(status=status, retry_count=3, next_attempt_at=Now() + dt.timedelta(hours=1))
    response = api.post(f"/api/v1/notifications/{mail.id}/resend", {})
    assert response.status_code == 202
    shown = response.json()
    assert (shown["status"], shown["retry_count"]) == ("pending", 0)
    assert EmailNotification.objects.due().filter(id=mail.id).exists()


@pytest.mark.parametrize("status", ["pending", "processing", "sent"])
def test_a_notification_in_another_state_is_not_and_the_answer_says_why(api, status):
    mail = make_mail(status=status)
    before = row_counts()
    problem = assert_problem(api.post(f"/api/v1/notifications/{mail.id}/resend"), 409, "not-resendable")
    assert status in problem["detail"] and problem["current_status"] == status
    assert problem["until"] is None
    assert row_counts() == before


def test_a_held_notification_is_not_and_the_answer_says_until_when(api):
    mail = make_mail(
        status="failed",
        errors=[{"at": dt.datetime.now(dt.UTC).isoformat(), "outcome": "ambiguous"}],
        next_attempt_at=Now() + dt.timedelta(minutes=2),
    )
    problem = assert_problem(api.post(f"/api/v1/notifications/{mail.id}/resend"), 409, "not-resendable")
    assert dt.datetime.fromisoformat(problem["until"]) == mail.next_attempt_at
    assert "held" in problem["detail"]


def test_a_resend_takes_no_body(api):
    mail = make_mail(status="dead_lettered")
    assert_problem(api.post(f"/api/v1/notifications/{mail.id}/resend", {"x": 1}), 400, "validation")
    mail.refresh_from_db()
    assert mail.status == "dead_lettered"


def test_pressing_twice_sends_once(api):
    mail = make_mail(status="dead_lettered")
    assert api.post(f"/api/v1/notifications/{mail.id}/resend").status_code == 202
    assert_problem(api.post(f"/api/v1/notifications/{mail.id}/resend"), 409, "not-resendable")


@pytest.mark.parametrize("status", ["dead_lettered", "discarded", "suppressed", "failed"])
def test_an_erased_email_is_not_resent(api, status):
    mail = make_mail(status=status, recipient_email="erased@privacy.invalid")
    problem = assert_problem(api.post(f"/api/v1/notifications/{mail.id}/resend"), 409, "not-resendable")
    assert "its data was erased" in problem["detail"] and problem["current_status"] == status
    mail.refresh_from_db()
    assert mail.status == status


@pytest.mark.parametrize("status", ["pending", "failed", "dead_lettered"])
def test_an_unsent_notification_is_given_up_once(api, status):
    mail = make_mail(status=status)
    response = api.post(f"/api/v1/notifications/{mail.id}/discard", {}, key="k")
    assert (response.status_code, response.json()["status"]) == (200, "discarded")
    assert response.json()["next_attempt_at"] is None
    again = api.post(f"/api/v1/notifications/{mail.id}/discard", {}, key="k")
    assert (again.status_code, again.json()) == (200, response.json())
    problem = assert_problem(api.post(f"/api/v1/notifications/{mail.id}/discard"), 409, "not-discardable")
    assert problem["current_status"] == "discarded"


def test_a_notification_is_given_up_while_delivery_is_paused_and_stays_so(api):
    pauses.pause(parts=["delivery"], reason="", by=Actor("x"))
    mail, other = make_mail(), make_mail()
    assert api.post(f"/api/v1/notifications/{mail.id}/discard").status_code == 200
    pauses.resume(parts=["delivery"], by=Actor("x"))
    assert [email.id for email in claim(limit=5)] == [other.id]


@pytest.mark.parametrize("status", ["processing", "sent", "discarded", "suppressed"])
def test_a_notification_in_another_state_is_not_given_up_and_the_answer_says_why(api, status):
    mail = make_mail(status=status)
    before = row_counts()
    problem = assert_problem(api.post(f"/api/v1/notifications/{mail.id}/discard"), 409, "not-discardable")
    assert problem["detail"] == (f"It is not given up: it is {status}, not dead_lettered, failed or pending.")
    assert (problem["current_status"], problem["until"]) == (status, None)
    assert row_counts() == before
    mail.refresh_from_db()
    assert mail.status == status


@pytest.mark.parametrize("status", ["pending", "failed", "dead_lettered"])
def test_a_held_notification_is_not_given_up_and_the_answer_says_until_when(api, status, settings):
    settings.AMBIGUOUS_HOLD_SECONDS = 600
    doubt = {"at": dt.datetime.now(dt.UTC).isoformat(), "outcome": "ambiguous"}
    mail = make_mail(status=status, errors=[doubt])
    problem = assert_problem(api.post(f"/api/v1/notifications/{mail.id}/discard"), 409, "not-discardable")
    wait = dt.datetime.fromisoformat(problem["until"]) - dt.datetime.now(dt.UTC)
    assert "held" in problem["detail"] and 590 < wait.total_seconds() <= 600


def test_giving_up_takes_no_body(api):
    mail = make_mail()
    assert_problem(api.post(f"/api/v1/notifications/{mail.id}/discard", {"x": 1}), 400, "validation")
    mail.refresh_from_db()
    assert mail.status == "pending"
