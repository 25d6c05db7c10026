"""A customer's data is exported and erased by jobs, which the list of orders starts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.kit.acts import acts
from tests.kit.admin import JOBS, ORDERS, press
from tests.kit.jobs import job_after, run_jobs
from tests.kit.mails import make_mail
from tests.kit.orders import make_order, make_orders
from tests.kit.people import staff_client
from tests.kit.words import ERASED_ADDRESS, BulkJob, DetachedPartition, Erasure, Order, Status, address_hash

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
PERSON = address_hash("alice@example.com")


def ask(client: Client, action: str, *orders: Order, **fields: str) -> Any:
    return press(client, ORDERS, action, *(order.id for order in orders), **fields)


def run(client: Client, action: str, order: Order, **fields: str) -> BulkJob:
    """Start a job by the admin, and do it as a worker does."""
    ask(client, action, order, confirmed="yes", **fields)
    run_jobs()
    return BulkJob.objects.latest("id")


class TestAnErasure:
    def test_asks_then_runs_as_a_job_that_forgets_the_address(self, admin_client):
        order = make_order(status="completed")
        make_mail(order_id=order.id, status=Status.SENT, recipient_email="Alice@Example.com")
        page = ask(admin_client, "erase_person", order)
        assert b"cannot be undone" in page.content and not BulkJob.objects.exists()
        page = ask(admin_client, "erase_person", order, confirmed="yes")
        job = BulkJob.objects.get()
        assert page.redirect_chain[-1][0] == f"{JOBS}{job.id}/change/"
        assert "alice" not in page.content.decode() and PERSON[:12] in page.content.decode()
        order.refresh_from_db()
        assert job.address == order.email == "alice@example.com" and job.filter == {"person": PERSON}
        job = job_after(job)
        order.refresh_from_db()
        assert (job.state, job.done_count, job.error, job.address) == ("done", 2, "", "")
        assert order.email == ERASED_ADDRESS

    def test_is_refused_in_words_while_an_order_is_not_finished_unless_that_is_ticked(self, admin_client):
        orders = [make_order(status="paid", paid_at=Now(), reference=f"A-{number}") for number in (1, 2, 3)]
        make_mail(order_id=orders[0].id)
        page = ask(admin_client, "erase_person", orders[0], confirmed="yes").content.decode()
        assert "3 orders are unfinished: A-1, A-2, A-3." in page
        assert "1 e-mail is not sent yet: order.paid of A-1." in page
        assert "tick “Also unfinished orders”" in page and "Also unfinished orders: give up" in page
        assert not BulkJob.objects.exists() and not acts().exists()
        job = run(admin_client, "erase_person", orders[0], force="yes")
        assert job.state == "done" and set(Order.objects.values_list("email", flat=True)) == {ERASED_ADDRESS}

    def test_is_refused_before_it_is_asked_for(self, admin_client):
        for number in range(12):
            order = make_order(status="paid", paid_at=Now(), reference=f"A-{number}")
        page = ask(admin_client, "erase_person", order).content.decode()
        assert "More than 10 orders are unfinished: A-0, A-1, " in page and "A-9 … After" in page

    def test_is_stopped_if_an_order_was_placed_after_the_question(self, admin_client):
        order = make_order(status="completed")
        ask(admin_client, "erase_person", order, confirmed="yes")
        make_order(status="paid", paid_at=Now(), reference="A-2")
        job = job_after(BulkJob.objects.get())
        assert (job.state, job.address) == ("stopped", "")
        page = admin_client.get(f"{JOBS}{job.id}/change/").content.decode()
        assert "1 order is unfinished: A-2." in page and "Also unfinished orders" in page
        order.refresh_from_db()
        assert order.email == "alice@example.com"

    @pytest.mark.parametrize("action", ["export_person", "erase_person"])
    def test_and_an_export_ask_once_in_at_most_eleven_statements(self, admin_client, action):
        order = make_order(status="completed")
        ask(admin_client, action, order)  # fills the caches of permissions and content types
        with CaptureQueriesContext(connection) as captured:
            page = ask(admin_client, action, order)
        assert b"alice@example.com" in page.content and b'name="confirmed"' in page.content
        assert not BulkJob.objects.exists() and len(captured) <= 11

    def test_writes_rows_with_ids_and_a_hash_which_an_erasure_leaves(self, admin_client):
        order = make_order(status="completed", reference="Alice Smith's pens")
        exported = run(admin_client, "export_person", order)
        erased = run(admin_client, "erase_person", order, force="yes")
        rows = list(acts().order_by("id"))
        assert [(row.kind, row.order_id, row.subject_id) for row in rows] == [
            ("export", order.id, str(exported.id)),
            ("erasure", order.id, str(erased.id)),
        ]
        assert [row.act for row in rows] == [
            f"Started an export of a customer's data: person=hash:{PERSON}",
            f"Started an erasure of a customer's data: person=hash:{PERSON} force=on",
        ]

    def test_of_two_customers_at_once_is_refused(self, admin_client):
        orders = make_order(status="completed"), make_order(status="completed", email="bob@example.com")
        for action in ("export_person", "erase_person"):
            assert b"orders of one customer" in ask(admin_client, action, *orders, confirmed="yes").content
        assert not BulkJob.objects.exists()

    def test_says_until_when_cold_files_may_still_have_the_person(self, admin_client):
        since = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        for name in ("email_notifications_p202001", "email_notifications_p202002"):
            DetachedPartition.objects.create(
                name=name, table="email_notifications", since=since, until=since, archived_at=since
            )
        job = run(admin_client, "erase_person", make_order(status="completed"))
        Erasure.objects.update(requested_at=dt.datetime(2026, 12, 31, 23, 59, tzinfo=dt.UTC))
        page = admin_client.get(f"{JOBS}{job.id}/change/").content.decode()
        assert job.state == "done" and "2 cold files have still to be read" in page
        assert "first rollover from 2027-01-01 on" in page and "privacy erase --now" in page
        Erasure.objects.update(cold_files=[])
        assert "cold file" not in admin_client.get(f"{JOBS}{job.id}/change/").content.decode()

    def test_needs_its_own_permission(self):
        order = make_order(status="completed")
        client = staff_client("view_order", "export_person")
        ask(client, "erase_person", order, confirmed="yes")
        assert not BulkJob.objects.exists()


class TestAnExport:
    def download(self, client: Client, job: BulkJob) -> Any:
        return client.get(f"{JOBS}{job.id}/result/")

    def test_is_a_file_for_the_user_who_asked_and_each_download_is_recorded(self):
        order = make_order(status="completed")
        make_mail(order_id=order.id, status=Status.SENT)
        client = staff_client("view_order", "export_person")
        job = run(client, "export_person", order)
        assert (job.state, job.done_count, job.address) == ("done", 2, "")
        assert "/result/" in client.get(f"{JOBS}{job.id}/change/").content.decode()
        answer = self.download(client, job)
        assert answer["Content-Disposition"].startswith("attachment")
        assert "no-store" in answer["Cache-Control"]
        document = answer.json()
        assert document["orders"][0]["id"] == str(order.id) and len(document["email_notifications"]) == 1
        entry = acts().latest("id")
        assert (entry.subject_id, entry.act) == (str(job.id), "Downloaded the result.")

    def test_is_nobody_elses_though_who_views_jobs_sees_that_it_ran(self, admin_client):
        job = run(staff_client("view_order", "export_person"), "export_person", make_order())
        page = admin_client.get(f"{JOBS}{job.id}/change/").content.decode()
        assert "alice" not in page and "/result/" not in page
        assert self.download(admin_client, job).status_code == 404
        other = staff_client("view_order", "export_person", name="other")
        assert other.get(f"{JOBS}{job.id}/change/").status_code in (302, 404)
        assert self.download(other, job).status_code in (403, 404)

    def test_is_not_given_to_a_user_who_may_not_export_any_more(self):
        client = staff_client("view_order", "export_person")
        job = run(client, "export_person", make_order())
        client.session.save()
        user = job.user
        user.user_permissions.clear()
        assert self.download(client, job).status_code in (403, 404)


def test_a_request_for_many_rows_reads_what_one_for_ten_reads(admin_client):
    """A request starts the job, and returns only the first of the person's unfinished rows."""
    make_orders(5000, owner="own")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE orders SET email = 'alice@example.com' WHERE email <> 'User7@example.com'")
        cursor.execute(
            "UPDATE orders SET email = 'bob@example.com' WHERE id IN (SELECT id FROM orders LIMIT 10)"
        )

    def statements(email: str) -> list[tuple[str, int]]:
        """Return each statement without its values, and the number of rows that it returned or changed."""
        order, executed = Order.objects.filter(email=email)[0], []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            result = execute(sql, params, many, context)
            executed.append((sql, context["cursor"].rowcount))
            return result

        with connection.execute_wrapper(note):
            for action in ("export_person", "erase_person"):
                for fields in ({}, {"confirmed": "yes", "force": "yes"}):
                    ask(admin_client, action, order, **fields)
        return executed

    statements("bob@example.com")  # fills the caches of permissions and content types
    bob, alice = statements("bob@example.com"), statements("alice@example.com")
    assert [sql for sql, _ in alice] == [sql for sql, _ in bob]
    assert BulkJob.objects.count() == 6 and sum(rows for _, rows in alice) < 100
