"""The admin of e-mails: find what is stuck, read why, resend it or give it up."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from tests.kit.jobs import LIST, act, run_jobs
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.orders import make_order
from tests.kit.people import staff_client
from tests.kit.words import BulkJob, EmailNotification, Status, dead_causes

pytestmark = pytest.mark.django_db


def press(client: Client, action: str, ids, **fields):
    data = {"action": action, "_selected_action": [str(id) for id in ids]} | fields
    return client.post(LIST, data, follow=True)


def test_the_list_asks_first_and_changes_nothing_until_it_is_answered(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED)
    page = press(admin_client, "resend", [mail.id])
    assert b"will be sent again" in page.content
    assert statuses() == {"dead_lettered": 1}
    assert not LogEntry.objects.exists()


def test_resending_makes_rows_due_logs_each_and_tells_what_it_left_alone(admin_client):
    dead = [make_mail(status=Status.DEAD_LETTERED) for _ in range(3)]
    sent = make_mail(status=Status.SENT)
    page = act(admin_client, "resend", [*(m.id for m in dead), sent.id], reason="SPF mended")
    assert statuses() == {"pending": 3, "sent": 1}
    assert b"Resend: 4 chosen" in page.content and b"it is sent" in page.content
    job = BulkJob.objects.get()
    assert (job.state, job.total, job.done_count, job.refused_count) == ("done", 4, 3, 1)
    messages = list(LogEntry.objects.values_list("change_message", flat=True))
    assert messages == [f"Resent (was dead_lettered). SPF mended (job {job.id})"] * 3


def test_a_reason_may_have_braces_in_it(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED)
    page = act(admin_client, "resend", [mail.id], reason="see {ticket} {0}")
    assert page.status_code == 200
    assert "Resent (was dead_lettered). see {ticket} {0} (job " in LogEntry.objects.get().change_message


def test_pressing_twice_is_harmless_and_says_so(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED)
    act(admin_client, "resend", [mail.id])
    page = act(admin_client, "resend", [mail.id])
    assert b"it is pending" in page.content
    assert LogEntry.objects.count() == 1


def test_a_ticked_row_that_somebody_gave_up_after_the_start_stays_given_up(admin_client):
    mails = [make_mail(status=Status.DEAD_LETTERED) for _ in range(2)]
    page = press(admin_client, "resend", [mail.id for mail in mails])
    answer = dict(page.context["hidden"]) | {"action": "resend", "confirmed": "yes"}
    admin_client.post(LIST + "bulk/", answer)
    later = Now() + dt.timedelta(seconds=1)
    EmailNotification.objects.filter(id=mails[0].id).update(status="discarded", updated_at=later)
    make_mail(status=Status.DEAD_LETTERED)
    run_jobs()
    assert statuses() == {"discarded": 1, "pending": 1, "dead_lettered": 1}


def test_a_job_takes_only_ids(admin_client):
    make_mail(status=Status.DEAD_LETTERED)
    answer = {"action": "resend", "confirmed": "yes", "ids": "all"}
    assert admin_client.post(LIST + "bulk/", answer).status_code == 404
    assert not BulkJob.objects.exists()


def test_giving_up_discards_dead_letters_and_what_keeps_failing_and_nothing_else(admin_client):
    mails = [make_mail(status=status) for status in (Status.DEAD_LETTERED, Status.FAILED, Status.PENDING)]
    act(admin_client, "give_up", [mail.id for mail in mails])
    assert statuses() == {"discarded": 2, "pending": 1}


def all_of(client: Client, action: str, query: str, **fields):
    one = EmailNotification.objects.earliest("id")
    data = {"action": action, "_selected_action": [str(one.id)], "select_across": "1"} | fields
    return client.post(LIST + query, data, follow=True)


def test_all_that_match_a_filter_are_resent_by_a_job(admin_client):
    make_mails(1200, status="dead_lettered")
    make_mails(5, status="sent")
    asked = all_of(admin_client, "resend", "?status=dead_lettered")
    assert b"<b>1,200</b> dead lettered: will be sent again" in asked.content
    answer = dict(asked.context["hidden"]) | {"action": "resend", "confirmed": "yes", "reason": "SPF mended"}
    page = admin_client.post(LIST + "bulk/", answer, follow=True)
    job = BulkJob.objects.get()
    assert page.redirect_chain[-1][0] == f"/admin/outbox/bulkjob/{job.id}/change/"
    assert b"SPF mended" in page.content
    run_jobs()
    assert statuses() == {"pending": 1200, "sent": 5}
    assert LogEntry.objects.count() == 1200
    progress = admin_client.get(f"/admin/outbox/bulkjob/{job.id}/progress/").json()
    assert (progress["state"], progress["done"], progress["left"], progress["percent"]) == (
        "done",
        1200,
        0,
        100,
    )


def test_all_that_a_search_found_are_resent_by_a_job(admin_client):
    make_mails(3, status="dead_lettered")
    asked = all_of(admin_client, "resend", "?q=user2@example.com")
    answer = dict(asked.context["hidden"]) | {"action": "resend", "confirmed": "yes"}
    admin_client.post(LIST + "bulk/", answer)
    run_jobs()
    assert statuses() == {"dead_lettered": 2, "pending": 1}
    assert set(BulkJob.objects.get().filter) == {"ids"}


def test_a_list_of_all_emails_is_not_changed_as_a_whole(admin_client):
    make_mails(3, status="dead_lettered")
    assert b"Filter by status first" in all_of(admin_client, "resend", "").content
    assert admin_client.post(LIST + "bulk/", {"action": "resend", "confirmed": "yes"}).status_code == 404
    assert statuses() == {"dead_lettered": 3}


def test_a_job_needs_the_permission_of_its_action_and_is_seen_and_stopped_by_whom_it_concerns():
    make_mails(3, status="dead_lettered")
    answer = {"action": "resend", "confirmed": "yes", "status": "dead_lettered"}
    viewer = staff_client("view_emailnotification", name="viewer")
    assert viewer.post(LIST + "bulk/", answer).status_code == 403
    support = staff_client("view_emailnotification", "resend_emailnotification", name="support")
    page = support.post(LIST + "bulk/", answer)
    assert support.get(LIST + "bulk/").status_code == 405
    assert b"Stop" in support.get(page.url).content
    other = staff_client("view_emailnotification", "discard_emailnotification", name="other")
    for client in (viewer, other):
        assert client.get(page.url).status_code in (403, 404)
    watcher = staff_client("view_bulkjob", name="watcher")
    assert b"Stop" not in watcher.get(page.url).content
    stop = page.url.replace("change", "stop")
    assert watcher.post(stop).status_code == 403
    assert b"Stopped." in support.post(stop, follow=True).content
    run_jobs()
    assert statuses() == {"dead_lettered": 3}
    assert b"had ended already" in support.post(stop, follow=True).content


@pytest.mark.parametrize("action", ["resend", "give_up"])
def test_without_its_permission_an_action_does_not_exist(action):
    client = staff_client("view_emailnotification")
    mail = make_mail(status=Status.DEAD_LETTERED)
    press(client, action, [mail.id])
    answer = {"action": action, "ids": str(mail.id), "confirmed": "yes"}
    assert client.post(LIST + "bulk/", answer).status_code == 403
    run_jobs()
    assert statuses() == {"dead_lettered": 1}
    page = client.get(reverse("admin:notifications_emailnotification_change", args=[mail.id]))
    assert page.status_code == 200
    assert b"Resend" not in page.content and b"Give up" not in page.content


def test_with_only_its_permission_an_action_works():
    client = staff_client("view_emailnotification", "resend_emailnotification")
    mail = make_mail(status=Status.DEAD_LETTERED)
    act(client, "resend", [mail.id])
    assert statuses() == {"pending": 1}


def test_nothing_can_be_added_changed_or_deleted_by_hand(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED)
    url = reverse("admin:notifications_emailnotification_change", args=[mail.id])
    assert admin_client.post(url, {"status": "sent", "recipient_email": "x@example.com"}).status_code == 403
    assert admin_client.get(LIST + "add/").status_code == 403
    assert admin_client.post(f"{LIST}{mail.id}/delete/", {"post": "yes"}).status_code == 403
    assert statuses() == {"dead_lettered": 1}


def test_the_preview_can_load_and_run_nothing(admin_client):
    mail = make_mail(body="<script>alert(1)</script>")
    answer = admin_client.get(f"{LIST}{mail.id}/preview/")
    assert answer["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    assert answer["X-Frame-Options"] == "SAMEORIGIN"
    assert staff_client().get(f"{LIST}{mail.id}/preview/").status_code == 403
    assert Client().get(f"{LIST}{mail.id}/preview/").status_code == 302


def test_a_hostile_error_or_name_is_shown_as_text(admin_client):
    evil = "<script>alert(1)</script>"
    mail = make_mail(
        status=Status.DEAD_LETTERED,
        last_error=evil,
        to_name=evil,
        body_text=evil,
        errors=[{"at": evil, "provider": evil, "outcome": evil, "text": evil}],
    )
    for url in (LIST, f"{LIST}{mail.id}/change/"):
        assert evil.encode() not in admin_client.get(url).content


@pytest.mark.parametrize(
    "term", ["alice@example.com", "ALICE@Example.com", "R-77", "order-id", "notification-id"]
)
def test_search_finds_by_address_reference_order_and_notification(admin_client, term):
    order = make_order(reference="R-77")
    mail = make_mail(order_id=order.id, recipient_email="alice@example.com")
    make_mail(recipient_email="mal-alice@example.com")
    query = {"order-id": str(order.id), "notification-id": str(mail.id)}.get(term, term)
    results = admin_client.get(LIST, {"q": query}).context["cl"].result_list
    assert [row.id for row in results] == [mail.id]


def test_filters_narrow_by_status_event_provider_and_age(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED, provider="sendgrid")
    make_mail(event_type="order.cancelled", status=Status.SENT)
    for query in ({"status": "dead_lettered"}, {"event_type": "order.paid"}, {"provider": "sendgrid"}):
        results = admin_client.get(LIST, query | {"age": "1h"}).context["cl"].result_list
        assert [row.id for row in results] == [mail.id]


ERRORS = [{"at": "2026-11-20T10:00:00+00:00"}, {"at": "2026-11-21T10:00:00.5+00:00"}]
FAILED_AT = b'<span title="2026-11-21T10:00:00+00:00">'


@pytest.mark.parametrize("query", ["?status=dead_lettered", "?cause={}"])
def test_a_list_of_dead_letters_shows_when_each_failed_last(admin_client, query):
    make_mail(status="dead_lettered", errors=ERRORS)
    make_mail(status="dead_lettered", errors=[])
    page = admin_client.get(LIST + query.format(dead_causes()[0].cause))
    assert [FAILED_AT in page.content, b">Failed<" in page.content] == [True, True]
    assert b">Next attempt<" not in page.content
    assert len(page.context["cl"].result_list) == 2


def test_other_lists_show_the_next_attempt_instead(admin_client):
    for status in ("dead_lettered", "failed"):
        make_mail(status=status, errors=ERRORS)
    for query in ("", "?status=failed"):
        page = admin_client.get(LIST + query)
        assert FAILED_AT not in page.content and b">Next attempt<" in page.content


@pytest.mark.parametrize(
    ("status", "errors", "is_shown"),
    [("dead_lettered", ERRORS, True), ("failed", ERRORS, False), ("dead_lettered", [], False)],
)
def test_the_page_of_a_dead_letter_shows_when_it_failed_last(admin_client, status, errors, is_shown):
    mail = make_mail(status=status, errors=errors)
    assert (FAILED_AT in admin_client.get(f"{LIST}{mail.id}/change/").content) is is_shown


def test_the_time_of_each_dead_letter_costs_no_statement_of_its_own(admin_client):
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(LIST + "?status=dead_lettered").status_code == 200
        return len(captured)

    make_mail(status="dead_lettered", errors=ERRORS)
    of_one = statements()
    for _ in range(20):
        make_mail(status="dead_lettered", errors=ERRORS)
    assert statements() == of_one


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "query", [{}, {"status": "dead_lettered"}, {"q": "User77@Example.com"}, {"age": "24h"}]
)
def test_a_page_over_many_rows_takes_few_statements_and_no_sequential_scan(admin_client, query):
    make_mails(60_000, status="sent")
    make_mails(500, status="dead_lettered")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE email_notifications")
    with CaptureQueriesContext(connection) as captured:
        assert admin_client.get(LIST, query).status_code == 200
    assert len(captured) < 10
    for statement in (entry["sql"] for entry in captured):
        if "email_notifications" in statement and statement.startswith("SELECT"):
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN (ANALYZE) " + statement)
                plan = "\n".join(row[0] for row in cursor.fetchall())
            scans = [line for line in plan.splitlines() if "Seq Scan" in line and "rows=0.00" not in line]
            assert not scans or "Limit" in plan.splitlines()[0], plan
