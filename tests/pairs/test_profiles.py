"""Profiles of shops and their copies, and what else changes the same e-mails."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from django.db import connection

from notifications.content.copies import NotCopied
from tests.kit.api import Api, make_token
from tests.kit.mails import drained, rendered_again, sandbox
from tests.kit.months import Steps, age_records, fill, make_partition, roll
from tests.kit.orders import make_order, pay_order, place_order
from tests.kit.people import grep, grep_cold_files
from tests.kit.profiles import save_profile
from tests.kit.restored import after_restore, restore_to_now, shipped
from tests.kit.webhooks import event, post
from tests.kit.words import (
    ERASED_ADDRESS,
    EmailNotification,
    Order,
    Suppression,
    erase_person,
    export_person,
    read_timeline,
    resend,
    send_copy,
)

__all__ = ["sandbox", "shipped"]
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
CUSTOMER, OFFICE = "ann@example.com", "office@own.test"


@pytest.fixture(autouse=True)
def _profile():
    save_profile("", from_email="Own <orders@own.test>", copy_to=OFFICE)


def paid(**fields: object) -> tuple[EmailNotification, EmailNotification]:
    """Return the e-mail of a paid order and its shop copy."""
    order = place_order(**{"user_id": uuid.uuid4(), "email": CUSTOMER, "total_amount": 500} | fields)
    pay_order(order_id=order.id)
    rows = EmailNotification.objects.filter(order_id=order.id)
    return rows.get(shop_copy_of=None), rows.exclude(shop_copy_of=None).get()


def end(*mails: EmailNotification) -> None:
    EmailNotification.objects.filter(id__in=[mail.id for mail in mails]).update(
        status="dead_lettered", ended_by="provider"
    )


class TestCopies:
    def test_keep_the_sender_that_the_first_email_had(self):
        mail, _ = paid()
        end(mail)
        save_profile("", from_email="New <new@own.test>")
        copy = EmailNotification.objects.get(id=send_copy(notification_id=mail.id))
        assert (copy.from_email, copy.shop_copy_of) == ("Own <orders@own.test>", None)

    def test_of_a_shop_copy_are_shop_copies_and_their_customers(self):
        mail, copy = paid()
        end(copy)
        again = EmailNotification.objects.get(id=send_copy(notification_id=copy.id))
        assert (again.resend_of, again.shop_copy_of, again.customer_email) == (copy.id, mail.id, CUSTOMER)
        assert again.recipient_email == OFFICE

    def test_make_no_further_shop_copy(self):
        mail, _ = paid()
        end(mail)
        send_copy(notification_id=mail.id, recipient_email="right@example.com", update_order=True)
        assert EmailNotification.objects.exclude(shop_copy_of=None).count() == 1


class TestACorrectedAddress:
    def test_is_not_taken_from_a_shop_copy(self):
        mail, copy = paid()
        end(copy)
        with pytest.raises(NotCopied, match="it is the shop's copy"):
            send_copy(notification_id=copy.id, recipient_email="other@own.test", update_order=True)
        assert Order.objects.get(id=mail.order_id).email == CUSTOMER


class TestRenderAgain:
    def test_uses_the_present_profile(self):
        mail, _ = paid()
        end(mail)
        save_profile("", from_email="New <new@own.test>", shop_name="Renamed")
        (copy,), _ = rendered_again(mail)
        assert (copy.from_email, copy.recipient_email) == ("New <new@own.test>", CUSTOMER)
        assert "Renamed" in copy.body_text

    def test_of_a_shop_copy_goes_to_the_shop(self):
        mail, copy = paid(name="Ann")
        end(copy)
        (again,), refused = rendered_again(copy)
        assert (again.recipient_email, again.to_name, refused) == (OFFICE, "", [])
        assert (again.shop_copy_of, again.customer_email) == (mail.id, CUSTOMER)

    def test_of_a_shop_copy_that_a_person_sent_elsewhere_is_refused(self):
        _, copy = paid()
        end(copy)
        other = EmailNotification.objects.get(
            id=send_copy(notification_id=copy.id, recipient_email="boss@own.test")
        )
        end(other)
        assert rendered_again(other) == ([], ["a person sent this copy to another address"])


class TestResend:
    def test_sends_from_the_stored_sender(self, sandbox):
        mail, copy = paid()
        end(mail, copy)
        save_profile("", from_email="New <new@own.test>")
        resend(ids=[mail.id, copy.id])
        assert drained() == {"sent": 2}
        assert {(mail.from_email, mail.to) for mail in sandbox.mails} == {
            ("orders@own.test", CUSTOMER),
            ("orders@own.test", OFFICE),
        }
        assert all("'bcc'" not in str(mail.payload).lower() for mail in sandbox.mails)


class TestSuppressionAndEvidence:
    def test_of_the_customer_leave_the_shop_copy_alone(self, settings, sandbox):
        settings.WEBHOOKS_UNSIGNED, settings.EMAIL_PROVIDERS = True, ["sendgrid"]
        mail, copy = paid()
        drained()
        post([event(mail, "bounce", type="bounce", status="5.1.1", sg_message_id="m.x")])
        mail.refresh_from_db()
        copy.refresh_from_db()
        assert mail.bounced_at and copy.bounced_at is None
        assert Suppression.objects.count() == 1
        _, next_copy = paid()
        assert drained() == {"sent": 3, "suppressed": 1}
        next_copy.refresh_from_db()
        assert next_copy.status == "sent"


@pytest.mark.usefixtures("archive_folder")
class TestPrivacy:
    def test_an_erasure_of_the_customer_erases_the_shop_copy(self):
        mail, copy = paid(name="Ann Example")
        erase_person(email=CUSTOMER, report=Steps(), force=True)
        for sent in (mail, copy):
            sent.refresh_from_db()
            assert (sent.status, sent.recipient_email, sent.body, sent.body_text) == (
                "discarded",
                ERASED_ADDRESS,
                "",
                "",
            )
        assert copy.customer_email == ERASED_ADDRESS and mail.customer_email == ""
        assert grep(CUSTOMER) == [] and grep("Ann Example") == []

    def test_an_erasure_of_one_customer_leaves_the_shops_copies_of_others(self):
        paid()
        _, other = paid(email="bob@example.com")
        erase_person(email=CUSTOMER, report=Steps(), force=True)
        other.refresh_from_db()
        assert (other.recipient_email, other.customer_email) == (OFFICE, "bob@example.com")

    def test_an_export_of_the_customer_has_the_shop_copy(self):
        mail, copy = paid()
        document = export_person(email=CUSTOMER, report=Steps())
        assert {row["id"] for row in document["email_notifications"]} == {mail.id, copy.id}

    def test_shop_copies_in_detached_months_and_cold_files_are_found_by_the_customer(self, tmp_path):
        old = make_partition(EmailNotification, back=5)
        fill(old, 2, recipient_email=OFFICE, shop_copy_of=uuid.uuid4(), customer_email=CUSTOMER)
        roll()
        age_records()
        roll()  # the month is a file alone
        warm = make_partition(EmailNotification, back=4)
        fill(warm, 3, recipient_email=OFFICE, shop_copy_of=uuid.uuid4(), customer_email=CUSTOMER)
        roll()
        assert grep_cold_files(tmp_path, CUSTOMER)
        document = export_person(email=CUSTOMER, report=Steps())
        assert len(document["email_notifications"]) == 5
        erase_person(email=CUSTOMER, report=Steps(), force=True)
        erase_cold_files()
        assert grep(CUSTOMER) == []
        assert grep_cold_files(tmp_path, CUSTOMER) == []

    def test_a_detached_month_of_the_release_before_has_no_such_column(self):
        old = make_partition(EmailNotification, back=4)
        fill(old, 2, recipient_email=CUSTOMER)
        roll()
        with connection.cursor() as cursor:
            cursor.execute(
                f"ALTER TABLE {old.name} DROP customer_email, DROP shop_copy_of, DROP profile,"
                " DROP from_email, DROP reply_to"
            )
        assert len(export_person(email=CUSTOMER, report=Steps())["email_notifications"]) == 2
        assert erase_person(email=CUSTOMER, report=Steps(), force=True).counts["email_notifications"] == 2


def erase_cold_files() -> None:
    from tests.kit.words import erasure

    erasure.rewrite_cold_files(report=Steps())


class TestRestore:
    def test_a_lost_shop_copy_is_listed_as_one(self, shipped, settings):
        settings.FAST_PATH = False
        order = make_order(email=CUSTOMER)
        restore_to_now()
        pay_order(order_id=order.id)
        mail = EmailNotification.objects.get(shop_copy_of=None)
        EmailNotification.objects.all().delete()
        lost, _ = after_restore(shipped)
        copies = [change for change in lost if change.get("shop_copy_of")]
        assert [copy["shop_copy_of"] for copy in copies] == [str(mail.id)]

    def test_profiles_come_with_the_backup(self, tmp_path: Path):
        """They are rows of the database, and each process reads them again, whatever it knew."""
        from notifications.content.profiles import find_profile
        from runtime.process import cached_rows

        for rows in cached_rows.CACHED:
            rows.value, rows.loaded_version = {}, "of another database"
        cached_rows.refresh()
        assert find_profile("").copy_to == OFFICE


class TestWhereItIsShown:
    def test_the_api_the_timeline_and_the_admin_call_it_a_shop_copy(self, admin_client):
        mail, copy = paid()
        api = Api(make_token())
        shown = {result["id"]: result for result in api.get("/api/v1/notifications").json()["results"]}
        assert shown[str(copy.id)]["shop_copy_of"] == str(mail.id)
        assert shown[str(mail.id)]["shop_copy_of"] is None
        texts = [entry.text for entry in read_timeline(order=Order.objects.get())]
        assert any("(shop copy)" in text and OFFICE in text for text in texts)
        listed = admin_client.get("/admin/notifications/emailnotification/").content.decode()
        assert listed.count("(shop copy)") == 1
        page = admin_client.get(f"/admin/notifications/emailnotification/{copy.id}/change/").content.decode()
        assert f"/admin/notifications/emailnotification/{mail.id}/change/" in page
