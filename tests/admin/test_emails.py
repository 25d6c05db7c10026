"""The admin of e-mails: find what is stuck, read why, resend it or give it up."""

from __future__ import annotations

import datetime as dt
import html
import re

import pytest
from django.db.models.functions import Now
from django.test import Client

from runtime.audit import Actor
from tests.kit.acts import acts, told_acts
from tests.kit.admin import JOBS, MAILS, listed, press, statements_of
from tests.kit.jobs import act, run_jobs
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.orders import make_order
from tests.kit.people import staff_client
from tests.kit.words import (
    BulkJob,
    EmailNotification,
    Status,
    Suppression,
    SuppressionReason,
    dead_causes,
    email_actions,
    give_up,
    new_id,
    pauses,
    resend,
    suppress,
    transitions,
)

pytestmark = pytest.mark.django_db
BULK = f"{MAILS}bulk/"


def confirm(client, asked, **fields: str):
    """Answer the page that asks whether to begin a job."""
    answer = dict(asked.context["hidden"]) | {"action": "resend", "confirmed": "yes"} | fields
    return client.post(BULK, answer, follow=True)


def press_on_all(client, query: str = ""):
    """Tick a whole list, and press `resend`."""
    return press(
        client, MAILS + query, "resend", EmailNotification.objects.earliest("id").id, select_across="1"
    )


class TestCauses:
    def test_have_the_providers_codes_where_their_titles_are_the_same(self, admin_client):
        for error in ("550 5.1.1 no such user", "400 the address does not exist", "452 4.2.2 mailbox full"):
            make_mail(status=Status.DEAD_LETTERED, provider="smtp", last_error=error)
        for page in (f"{MAILS}causes/", "/admin/"):
            shown = re.findall(r"The address does not exist[^<]*", admin_client.get(page).content.decode())
            title = "The address does not exist"
            assert sorted(shown) == [f"{title} (400)", f"{title} (550 5.1.1)"], page


class TestTickedRows:
    def test_are_unchanged_until_the_question_is_answered(self, admin_client):
        mail = make_mail(status=Status.DEAD_LETTERED)
        assert b"will be sent again" in press(admin_client, MAILS, "resend", mail.id).content
        assert admin_client.get(BULK).status_code == 405
        assert statuses() == {"dead_lettered": 1} and not acts().exists()

    def test_are_made_due_and_logged_and_the_page_tells_what_was_left_alone(self, admin_client):
        dead = [make_mail(status=Status.DEAD_LETTERED) for _ in range(3)]
        sent = make_mail(status=Status.SENT)
        page = act(admin_client, "resend", [*(m.id for m in dead), sent.id], reason="see {ticket} {0}")
        assert statuses() == {"pending": 3, "sent": 1}
        assert b"Resend: 4 chosen" in page.content and b"it is sent" in page.content
        job = BulkJob.objects.get()
        assert (job.state, job.total, job.done_count, job.refused_count) == ("done", 4, 3, 1)
        said = f"Resent (was dead_lettered). (job {job.id}) see {{ticket}} {{0}}"
        assert told_acts() == [said] * 3

    def test_are_resent_once_though_the_button_is_pressed_twice(self, admin_client):
        mail = make_mail(status=Status.DEAD_LETTERED)
        act(admin_client, "resend", [mail.id])
        assert b"it is pending" in act(admin_client, "resend", [mail.id]).content
        assert acts().count() == 1

    def test_stay_given_up_if_somebody_gave_them_up_after_the_start(self, admin_client):
        mails = [make_mail(status=Status.DEAD_LETTERED) for _ in range(2)]
        confirm(admin_client, press(admin_client, MAILS, "resend", *(mail.id for mail in mails)))
        later = Now() + dt.timedelta(seconds=1)
        EmailNotification.objects.filter(id=mails[0].id).update(
            status="discarded", ended_by="person", updated_at=later
        )
        make_mail(status=Status.DEAD_LETTERED)
        run_jobs()
        assert statuses() == {"discarded": 1, "pending": 1, "dead_lettered": 1}

    def test_are_given_up_if_they_are_unsent_and_nobody_sends_them_now(self, admin_client):
        states = (Status.DEAD_LETTERED, Status.FAILED, Status.PENDING, Status.PROCESSING, Status.SENT)
        act(admin_client, "give_up", [make_mail(status=status).id for status in states])
        assert statuses() == {"discarded": 3, "processing": 1, "sent": 1}

    @pytest.mark.parametrize(
        "answer", [{"ids": "all"}, {}], ids=["something else than ids", "neither ids nor a filter"]
    )
    def test_are_named_by_ids_or_by_a_filter(self, admin_client, answer):
        make_mail(status=Status.DEAD_LETTERED)
        answer |= {"action": "resend", "confirmed": "yes"}
        assert admin_client.post(BULK, answer).status_code == 404
        assert not BulkJob.objects.exists()

    @pytest.mark.parametrize("action", ["resend", "give_up"])
    def test_are_changed_only_with_the_permission_of_the_action(self, action):
        permission = {"resend": "resend_emailnotification", "give_up": "discard_emailnotification"}[action]
        viewer = staff_client("view_emailnotification")
        mail = make_mail(status=Status.DEAD_LETTERED)
        press(viewer, MAILS, action, mail.id)
        answer = {"action": action, "ids": str(mail.id), "confirmed": "yes"}
        assert viewer.post(BULK, answer).status_code == 403
        run_jobs()
        assert statuses() == {"dead_lettered": 1}
        page = viewer.get(f"{MAILS}{mail.id}/change/").content
        assert b'name="action"' not in page
        act(staff_client("view_emailnotification", permission, name="allowed"), action, [mail.id])
        assert statuses() == {{"resend": "pending", "give_up": "discarded"}[action]: 1}

    @pytest.mark.parametrize("name", email_actions())
    def test_are_changed_after_a_question_that_says_what_the_action_does(self, admin_client, name):
        action = email_actions()[name]
        mails = {status: make_mail(status=status) for status in Status}
        page = html.unescape(
            press(admin_client, MAILS, name, *(mail.id for mail in mails.values())).content.decode()
        )
        for status in Status:
            words = status.replace("_", " ")
            changed, left = f"{words}: will be {action.will_be}.", f"{words}: will be left alone."
            assert (changed in page, left in page) == (status in action.before, status not in action.before)
        assert action.advice in page and f'value="Yes, {action.title.lower()}"' in page
        assert f'<option value="{name}">{action.title}</option>' in admin_client.get(MAILS).content.decode()


class TestAWholeList:
    def test_of_a_filter_is_resent_by_a_job(self, admin_client):
        make_mails(1200, status="dead_lettered")
        make_mails(5, status="sent")
        asked = press_on_all(admin_client, "?status=dead_lettered")
        assert b"<b>1,200</b> dead lettered: will be sent again" in asked.content
        page = confirm(admin_client, asked, reason="SPF mended")
        job = BulkJob.objects.get()
        assert page.redirect_chain[-1][0] == f"{JOBS}{job.id}/change/" and b"SPF mended" in page.content
        run_jobs()
        assert statuses() == {"pending": 1200, "sent": 5}
        progress = admin_client.get(f"{JOBS}{job.id}/progress/").json()
        shown = [progress[name] for name in ("state", "done", "left", "percent")]
        assert shown == ["done", 1200, 0, 100]

    def test_of_a_search_is_resent_by_a_job_on_its_ids(self, admin_client):
        make_mails(3, status="dead_lettered")
        confirm(admin_client, press_on_all(admin_client, "?q=user2@example.com"))
        run_jobs()
        assert statuses() == {"dead_lettered": 2, "pending": 1}
        assert set(BulkJob.objects.get().filter) == {"ids"}

    def test_of_a_column_in_the_address_is_not_changed(self, admin_client):
        make_mails(3, status="dead_lettered")
        assert press_on_all(admin_client, "?status=dead_lettered&profile=shop-a").status_code == 400
        assert statuses() == {"dead_lettered": 3} and not BulkJob.objects.exists()

    def test_of_all_emails_is_not_changed(self, admin_client):
        make_mails(3, status="dead_lettered")
        assert b"Filter by status first" in press_on_all(admin_client).content
        assert statuses() == {"dead_lettered": 3}


class TestTheList:
    @pytest.mark.parametrize("by", ["address", "address in capitals", "reference", "order", "notification"])
    def test_is_searched_by_each_name_of_an_email(self, admin_client, by):
        order = make_order(reference="R-77")
        mail = make_mail(order_id=order.id, recipient_email="alice@example.com")
        make_mail(recipient_email="mal-alice@example.com")
        terms = {
            "address": "alice@example.com",
            "address in capitals": "ALICE@Example.com",
            "reference": "R-77",
            "order": str(order.id),
            "notification": str(mail.id),
        }
        assert listed(admin_client, MAILS, q=terms[by]) == [mail.id]

    def test_is_narrowed_by_status_event_provider_and_age(self, admin_client):
        mail = make_mail(status=Status.DEAD_LETTERED, provider="sendgrid")
        make_mail(event_type="order.cancelled", status=Status.SENT)
        for query in ({"status": "dead_lettered"}, {"event_type": "order.paid"}, {"provider": "sendgrid"}):
            assert listed(admin_client, MAILS, age="1h", **query) == [mail.id]


ERRORS = [{"at": "2026-11-20T10:00:00+00:00"}, {"at": "2026-11-21T10:00:00.5+00:00"}]
FAILED_AT = b'<time datetime="2026-11-21T10:00:00+00:00"'


class TestTheLastFailure:
    @pytest.mark.parametrize("query", ["?status=dead_lettered", "?cause={}"])
    def test_is_in_a_list_of_dead_letters(self, admin_client, query):
        make_mail(status="dead_lettered", errors=ERRORS)
        make_mail(status="dead_lettered", errors=[])
        page = admin_client.get(MAILS + query.format(dead_causes()[0].cause))
        assert FAILED_AT in page.content and b">Failed<" in page.content
        assert b">Next attempt<" not in page.content
        assert len(page.context["cl"].result_list) == 2

    @pytest.mark.parametrize("query", ["", "?status=failed"])
    def test_is_not_in_other_lists_of_which_that_of_waiting_emails_shows_the_next_attempt(
        self, admin_client, query
    ):
        for status in ("dead_lettered", "failed"):
            make_mail(status=status, errors=ERRORS)
        page = admin_client.get(MAILS + query)
        assert FAILED_AT not in page.content and (b">Next attempt<" in page.content) == bool(query)

    @pytest.mark.parametrize(
        ("status", "errors", "is_shown"),
        [("dead_lettered", ERRORS, True), ("failed", ERRORS, False), ("dead_lettered", [], False)],
    )
    def test_is_on_the_page_of_a_dead_letter(self, admin_client, status, errors, is_shown):
        mail = make_mail(status=status, errors=errors, last_error="400: no")
        page = admin_client.get(f"{MAILS}{mail.id}/change/").content
        assert (FAILED_AT in page) is is_shown and b"400: no" in page

    def test_costs_no_statement_of_its_own(self, admin_client):
        counts = []
        for rows in (1, 20):
            for _ in range(rows):
                make_mail(status="dead_lettered", errors=ERRORS)
            counts.append(len(statements_of(admin_client, MAILS, status="dead_lettered")))
        assert counts[0] == counts[1]


def test_the_preview_can_load_and_run_nothing(admin_client):
    mail = make_mail(body="<script>alert(1)</script>")
    answer = admin_client.get(f"{MAILS}{mail.id}/preview/")
    assert answer["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    assert answer["X-Frame-Options"] == "SAMEORIGIN"
    assert staff_client().get(f"{MAILS}{mail.id}/preview/").status_code == 403
    assert Client().get(f"{MAILS}{mail.id}/preview/").status_code == 302


def test_a_hostile_error_or_name_is_shown_as_text(admin_client):
    evil = "<script>alert(1)</script>"
    texts = dict.fromkeys(("last_error", "to_name", "body_text"), evil)
    error = dict.fromkeys(("at", "provider", "outcome", "text"), evil)
    mail = make_mail(status=Status.DEAD_LETTERED, errors=[error], **texts)
    for url in (MAILS, f"{MAILS}{mail.id}/change/"):
        assert evil.encode() not in admin_client.get(url).content


class TestOneEmail:
    """The page of one e-mail says why it is in its state, and offers the button that helps."""

    def page(self, client: Client, mail: EmailNotification) -> str:
        return str(client.get(f"{MAILS}{mail.id}/change/").content.decode())

    def primary(self, client: Client, mail: EmailNotification) -> list[str]:
        """Return the texts of the main buttons."""
        return re.findall(r'class="button default"[^>]*>([^<]*)<', self.page(client, mail))

    @pytest.mark.parametrize(
        ("status", "button"),
        [
            ("pending", []),
            ("processing", []),
            ("failed", ["Send now"]),
            ("dead_lettered", ["Resend"]),
            ("discarded", ["Resend"]),
            ("suppressed", ["Resend"]),
            ("sent", ["Send a copy to another address …"]),
        ],
    )
    def test_has_one_main_button_that_fits_its_state(self, admin_client, status, button):
        assert self.primary(admin_client, make_mail(status=status)) == button

    def test_to_a_wrong_address_is_rather_copied_than_resent(self, admin_client):
        mail = make_mail(status="dead_lettered", provider="sendgrid", last_error="550 5.1.1 No such user")
        assert self.primary(admin_client, mail) == ["Send a copy to another address …"]
        assert 'value="resend"' in self.page(admin_client, mail)

    def test_that_is_suppressed_says_where_to_lift_it(self, admin_client):
        mail = make_mail(status="suppressed", last_error="not sent: hard bounce")
        suppress([SuppressionReason(mail.recipient_email, Suppression.Reason.HARD_BOUNCE)])
        page = self.page(admin_client, mail)
        assert "Not sent: hard bounce." in page and "lifts the suppression and resends it" in page
        assert 'value="resend"' not in page

    def test_says_why_it_waits(self, admin_client):
        order = make_order()
        first = make_mail(order_id=order.id, order_version=2, event_type="order.paid")
        later = make_mail(order_id=order.id, order_version=3, event_type="order.completed")
        assert "the next free worker takes it" in self.page(admin_client, first)
        assert "The earlier e-mail order.paid of its order goes first." in self.page(admin_client, later)
        pauses.pause(parts=["delivery"], reason="a sale", by=Actor("x"))
        assert ": a sale." in self.page(admin_client, first)

    @pytest.mark.parametrize(
        ("status", "ended_by", "last_error"),
        [
            ("suppressed", "suppressed", "not sent: the address bounced"),
            ("discarded", "overtaken", "overtaken by order.cancelled"),
            ("dead_lettered", "age", "too old: it waited 3 days for a provider"),
        ],
    )
    def test_that_was_resent_no_longer_says_why_it_was_not_sent_before(
        self, admin_client, status, ended_by, last_error
    ):
        mail = make_mail(status=status, ended_by=ended_by, last_error=last_error)
        assert resend(ids=[mail.id])[0]
        page = self.page(admin_client, mail)
        assert "the next free worker takes it" in page and "The last attempt failed" not in page
        assert give_up(ids=[mail.id])[0]
        assert "It was given up and is not sent." in self.page(admin_client, mail)

    @pytest.mark.parametrize(
        ("reported", "mark", "said", "advice"),
        [
            ({}, "sent", "Sendgrid accepted it at", "look in the spam folder"),
            ({"delivered_at": Now()}, "delivered", "server took it at", "look in the spam folder"),
            (
                *({"delivered_at": Now(), "complained_at": Now()}, "marked as spam", "marked it as spam at"),
                "Do not send it again",
            ),
            ({"bounced_at": Now()}, "bounced", "server returned it at", "Correct the address"),
        ],
    )
    def test_says_what_the_provider_reported_and_what_to_tell_the_customer(
        self, admin_client, reported, mark, said, advice
    ):
        page = self.page(admin_client, make_mail(status="sent", provider="sendgrid", **reported))
        assert f">{mark}</span>" in page and said in page and advice in page

    def test_that_was_copied_elsewhere_says_that_it_can_be_given_up(self, admin_client):
        mail = make_mail(status="dead_lettered", provider="sendgrid", last_error="550 5.1.1 No such user")
        assert "give this one up" not in self.page(admin_client, mail)
        copy = {"resend_of": mail.id, "order_id": mail.order_id, "recipient_email": "new@example.com"}
        make_mail(status="sent", **copy)
        assert "give this one up" in self.page(admin_client, mail)

    def test_has_its_trail_and_who_did_what(self, admin_client):
        error = {
            "at": "2026-11-01T10:00:00+00:00",
            "provider": "ses",
            "outcome": "transient",
            "text": "503 busy",
        }
        mail = make_mail(status="dead_lettered", errors=[error], last_error="503 busy", provider="ses")
        admin_client.post(f"{MAILS}{mail.id}/act/", {"action": "resend"})
        page = self.page(admin_client, mail)
        assert "ses: not taken: 503 busy" in page and "saved" in page
        assert re.search(r'Resent \(was dead_lettered\)\. <span class="by">by admin', page)
        assert f'href="{MAILS}{mail.id}/change/"' not in page  # no line leads to where one is

    @pytest.mark.parametrize(
        ("action", "status", "after", "said"),
        [
            ("resend", "dead_lettered", "pending", "sent again"),
            ("give_up", "pending", "discarded", "given up"),
        ],
    )
    def test_is_changed_at_once_without_a_job_and_names_recipient_and_subject(
        self, admin_client, action, status, after, said
    ):
        mail = make_mail(status=status, subject="Your pens")
        answer = admin_client.post(f"{MAILS}{mail.id}/act/", {"action": action}, follow=True)
        assert answer.redirect_chain == [(f"{MAILS}{mail.id}/change/", 302)]
        assert f"“Your pens” to alice@example.com is {said}." in answer.content.decode()
        assert statuses() == {after: 1} and not BulkJob.objects.exists()
        entry = acts().get()
        assert (entry.subject_id, entry.who) == (str(mail.id), "admin")
        again = admin_client.post(f"{MAILS}{mail.id}/act/", {"action": action}, follow=True)
        assert f"is not {said}: it is {after}" in again.content.decode()
        assert acts().count() == 1

    def test_that_is_ticked_in_the_list_is_named_and_changed_at_once_with_the_reason(self, admin_client):
        mail = make_mail(status="dead_lettered", subject="Your pens")
        asked = press(admin_client, MAILS, "resend", mail.id)
        page = asked.content.decode()
        assert "“<b>Your pens</b>” to <b>alice@example.com</b>" in page
        assert f'action="{MAILS}{mail.id}/act/"' in page and "background job" not in page
        posted = dict(asked.context["hidden"]) | {"action": "resend", "confirmed": "yes"}
        admin_client.post(f"{MAILS}{mail.id}/act/", posted | {"reason": "told ann@example.com"})
        assert statuses() == {"dead_lettered": 1} and not acts().exists()
        admin_client.post(f"{MAILS}{mail.id}/act/", posted | {"reason": "she  called"})
        assert statuses() == {"pending": 1} and not BulkJob.objects.exists()
        assert told_acts() == ["Resent (was dead_lettered). she called"]

    def test_is_not_changed_while_it_is_sent_or_by_an_unknown_action(self, admin_client):
        mail = make_mail(status="processing")
        answer = admin_client.post(f"{MAILS}{mail.id}/act/", {"action": "give_up"}, follow=True)
        assert "is not given up: it is processing" in answer.content.decode()
        assert admin_client.post(f"{MAILS}{mail.id}/act/", {"action": "delete"}).status_code == 404
        assert admin_client.post(f"{MAILS}{new_id()}/act/", {"action": "resend"}).status_code == 404
        assert admin_client.get(f"{MAILS}{mail.id}/act/").status_code == 405
        assert statuses() == {"processing": 1}

    @pytest.mark.parametrize("permissions", [["view_emailnotification"], ["resend_emailnotification"]])
    def test_is_changed_only_by_whom_may_view_and_change_it(self, permissions):
        mail = make_mail(status="dead_lettered")
        client = staff_client(*permissions)
        assert client.post(f"{MAILS}{mail.id}/act/", {"action": "resend"}).status_code == 403
        assert statuses() == {"dead_lettered": 1}

    @pytest.mark.parametrize("status", Status.values)
    def test_refreshes_itself_until_its_state_is_final(self, admin_client, status):
        mail = make_mail(status=status)
        part = admin_client.get(f"{MAILS}{mail.id}/change/?part=1").content.decode()
        waits = status not in transitions.ENDED
        assert ("data-refresh" in self.page(admin_client, mail)) is waits
        assert ("data-waits" in part) is waits and "<html" not in part
        assert staff_client().get(f"{MAILS}{mail.id}/change/?part=1").status_code == 403
        assert admin_client.get(f"{MAILS}{new_id()}/change/?part=1").status_code == 404

    @pytest.mark.parametrize("query", [{}, {"part": "1"}])
    def test_takes_at_most_twelve_statements_however_many_emails_the_order_has(self, admin_client, query):
        order = make_order()
        mail = make_mail(order_id=order.id, errors=[{"at": "2026-11-01T10:00:00+00:00"}] * 20)
        path = f"{MAILS}{mail.id}/change/"
        statements_of(admin_client, path, **query)  # fills the caches of permissions and content types
        few = len(statements_of(admin_client, path, **query))
        for _ in range(30):
            make_mail(order_id=order.id, resend_of=mail.id)
        assert len(statements_of(admin_client, path, **query)) == few <= 12
