"""E-mails that a template spoiled are given up and sent again, with a text from the order and its event."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from orders.bulk_actions import RENDER_AGAIN
from orders.corrections import find_last_email
from orders.models import Shipment
from tests.kit.acts import acts, told_acts
from tests.kit.admin import MAILS, press
from tests.kit.events import order as place
from tests.kit.jobs import Killed, act, job_after, run_jobs, small_batches, started
from tests.kit.mails import ENDED_BY, not_in, rendered_again
from tests.kit.months import Steps
from tests.kit.orders import (
    cancel_order,
    complete_order,
    correct_shipment,
    deliver_shipment,
    fail_payment,
    pay_order,
    refund_order,
    ship_order,
)
from tests.kit.people import staff_client
from tests.kit.profiles import save_profile
from tests.kit.words import (
    BulkJob,
    DomainEvent,
    EmailNotification,
    Order,
    Status,
    Suppression,
    address_hash,
    erase_person,
    resend,
    send_copy,
    transitions,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


@pytest.fixture(autouse=True)
def _no_worker():
    with small_batches(rows=500):
        yield


def spoil(order: Order, event_type: str, **fields: Any) -> EmailNotification:
    """Make the newest e-mail of this kind a dead letter with a wrong text."""
    mail = EmailNotification.objects.filter(order_id=order.id, event_type=event_type).latest("id")
    status = fields.get("status", Status.DEAD_LETTERED)
    values = {
        "status": status,
        "ended_by": ENDED_BY.get(status, ""),
        "subject": "{{ reference",
        "body": "wrong",
        "body_text": "wrong",
    }
    EmailNotification.objects.filter(id=mail.id).update(**values | fields)
    return EmailNotification.objects.get(id=mail.id)


def paid(**fields: Any) -> Order:
    order = place(**{"reference": "A-1", "name": "Ann"} | fields)
    pay_order(order_id=order.id)
    return order


def test_the_old_email_is_given_up_and_a_new_one_is_due():
    mail = spoil(paid(), "order.paid")
    (copy,), refused = rendered_again(mail)
    mail.refresh_from_db()
    assert (mail.status, mail.body_text, refused) == ("discarded", "wrong", [])
    assert (copy.status, copy.resend_of, copy.retry_count, copy.errors) == ("pending", mail.id, 0, [])
    assert copy.subject == "Payment received for your order A-1" and "wrong" not in copy.body
    assert rendered_again(mail) == ([], [f"it is discarded, {not_in(transitions.DISCARD)}"])


def test_it_goes_to_the_orders_present_address_name_and_language():
    order = paid()
    mail = spoil(order, "order.paid")
    Order.objects.filter(id=order.id).update(email="bob@example.com", name="Bob", locale="de")
    (copy,), _ = rendered_again(mail)
    assert (copy.recipient_email, copy.to_name, copy.locale) == ("bob@example.com", "Bob", "de")
    assert "Guten Tag Bob" in copy.body_text


def test_it_tells_the_change_as_it_was_then():
    order = paid()
    complete_order(order_id=order.id, tracking_url="https://track.example/1")
    refund_order(order_id=order.id, amount=100)
    completed, first = spoil(order, "order.completed"), spoil(order, "order.part_refunded")
    refund_order(order_id=order.id, amount=250)
    (completed_again, refunded_again), refused = rendered_again(completed, first)
    assert refused == []
    assert "https://track.example/1" in completed_again.body_text
    assert (
        "$1.00" in refunded_again.subject
        and "so far" not in refunded_again.body_text
        and "$3.50" not in refunded_again.body_text
    )
    assert "$9.00 has not been refunded" in refunded_again.body_text


class TestCancellations:
    def test_without_a_reason_it_is_rendered(self):
        order = paid()
        cancel_order(order_id=order.id)
        (copy,), _ = rendered_again(spoil(order, "order.cancelled"))
        assert "You had already paid $10.00" in copy.body_text

    def test_with_a_reason_it_is_refused_because_only_the_email_has_it(self):
        order = paid()
        cancel_order(order_id=order.id, reason="Sold out")
        mail = spoil(order, "order.cancelled")
        assert rendered_again(mail) == ([], ["only the e-mail has the reason of the cancellation"])
        mail.refresh_from_db()
        assert mail.status == "dead_lettered"


class TestShipments:
    ITEMS = ({"sku": "M", "name": "Mug", "quantity": 2, "unit_amount": 300},)
    ONE = ({"item": 0, "quantity": 1},)

    def order(self) -> Order:
        return paid(items=list(self.ITEMS))

    def test_each_email_shows_its_own_parcel_with_the_number_of_now(self):
        order = self.order()
        parcels = [
            ship_order(order_id=order.id, lines=self.ONE, tracking_number=number) for number in ("1-1", "2-2")
        ]
        correct_shipment(order_id=order.id, shipment_id=parcels[0].id, tracking_number="3-3")
        first, second = EmailNotification.objects.filter(event_type="order.shipped").order_by("id")
        copies, refused = rendered_again(first, second)
        assert refused == []
        assert ["3-3" in copy.body_text for copy in copies] == [True, False]
        assert ["2-2" in copy.body_text for copy in copies] == [False, True]
        for copy in copies:
            assert "In this parcel:\n- 1 × Mug\n\nEverything you ordered" in copy.body_text

    def test_a_corrected_number_is_told_as_one_again(self):
        order = self.order()
        parcel = ship_order(order_id=order.id)
        correct_shipment(order_id=order.id, shipment_id=parcel.id, tracking_number="3-3", notify=True)
        (copy,), _ = rendered_again(spoil(order, "order.shipped"))
        assert copy.subject == "Corrected tracking details for your order A-1" and "3-3" in copy.body_text

    def test_a_delivery_has_its_dates(self, settings):
        settings.NOTIFY_ON = ["order.delivered"]
        order = self.order()
        parcel = ship_order(order_id=order.id, shipped_at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC))
        day = dt.datetime(2026, 1, 3, tzinfo=dt.UTC)
        deliver_shipment(order_id=order.id, shipment_id=parcel.id, at=day)
        first = EmailNotification.objects.get(event_type="order.delivered")
        (copy,), _ = rendered_again(spoil(order, "order.delivered"))
        assert copy.body_text == first.body_text and "3, 2026" in copy.body_text

    def test_a_shop_copy_shows_the_parcel(self):
        save_profile("", copy_to="office@example.com")
        order = self.order()
        ship_order(order_id=order.id, tracking_number="1-1")
        (copy,), _ = rendered_again(spoil(order, "order.shipped"))
        assert (copy.recipient_email, "1-1" in copy.body_text) == ("office@example.com", True)

    def test_without_its_event_it_is_refused_because_nobody_knows_which_parcel_it_was(self):
        order = self.order()
        ship_order(order_id=order.id)
        DomainEvent.objects.all().delete()
        why = ["only its event, which is not stored here, has the change's data"]
        assert rendered_again(spoil(order, "order.shipped")) == ([], why)

    def test_another_systems_shows_the_parcel_that_its_event_was_the_newest_of(self):
        order = self.order()
        parcel = ship_order(order_id=order.id, tracking_number="1-1")
        DomainEvent.objects.all().delete()
        Order.objects.filter(id=order.id).update(source="shop-a")
        Shipment.objects.filter(id=parcel.id).update(sequence=3)
        mail = spoil(order, "order.shipped")
        (copy,), _ = rendered_again(mail)
        assert "1-1" in copy.body_text
        Shipment.objects.filter(id=parcel.id).update(sequence=4)
        why = ["only shop-a, which is not stored here, has the change's data"]
        assert rendered_again(
            spoil(order, "order.shipped", resend_of=None, order_version=mail.order_version)
        ) == ([], why)

    @pytest.mark.parametrize("quantity", [1, 2])
    def test_a_completion_knows_what_had_left_before_it(self, quantity):
        order = self.order()
        ship_order(order_id=order.id, lines=[{"item": 0, "quantity": quantity}])
        complete_order(order_id=order.id, tracking_url="https://track.example/1")
        before = EmailNotification.objects.get(event_type="order.completed").subject
        (copy,), _ = rendered_again(spoil(order, "order.completed"))
        assert copy.subject == before
        assert ("The rest" in before) is (quantity == 1)


class TestRefusals:
    def refuses(self, mail: EmailNotification, reason: str) -> None:
        before = EmailNotification.objects.filter(id=mail.id).values().get()
        assert rendered_again(mail) == ([], [reason])
        assert EmailNotification.objects.filter(id=mail.id).values().get() == before
        assert not EmailNotification.objects.exclude(resend_of=None).exists()

    @pytest.mark.parametrize("status", ["discarded", "suppressed", "processing"])
    def test_other_states(self, status):
        claim = {"claimed_at": dt.datetime.now(dt.UTC), "claim_token": uuid.uuid4()}
        mail = spoil(paid(), "order.paid", status=status, **(claim if status == "processing" else {}))
        self.refuses(mail, f"it is {status}, {not_in(transitions.DISCARD)}")

    def test_an_email_that_is_held(self):
        now = dt.datetime.now(dt.UTC).isoformat()
        doubt = [{"at": now, "provider": "sendgrid", "outcome": "ambiguous", "code": "", "text": "lost"}]
        mail = spoil(paid(), "order.paid", errors=doubt)
        self.refuses(
            mail, "its last attempt may have been accepted, so it is held for the provider's evidence"
        )

    @pytest.mark.usefixtures("archive_folder")
    def test_an_erased_person(self):
        mail = spoil(paid(), "order.paid")
        erase_person(email="a@example.com", report=Steps(), force=True)
        EmailNotification.objects.filter(id=mail.id).update(status="dead_lettered", ended_by="provider")
        mail.refresh_from_db()
        self.refuses(mail, "its data was erased")

    @pytest.mark.usefixtures("archive_folder")
    def test_an_erased_persons_email_of_an_order_that_has_another_address_now(self):
        order = paid()
        mail = spoil(order, "order.paid")
        Order.objects.filter(id=order.id).update(email="bob@example.com")
        erase_person(email="a@example.com", report=Steps(), force=True)
        EmailNotification.objects.filter(id=mail.id).update(status="dead_lettered", ended_by="provider")
        mail.refresh_from_db()
        self.refuses(mail, "its data was erased")

    def test_an_email_that_may_have_been_sent_before_a_restore(self):
        mail = spoil(paid(), "order.paid", ended_by="restore")
        self.refuses(mail, "it may have been sent before the restore, so resend it or mark it as sent")

    def test_a_suppressed_address(self):
        mail = spoil(paid(), "order.paid")
        Suppression.objects.create(address_hash=address_hash("A@example.com"), reason="hard_bounce")
        self.refuses(mail, "its address is suppressed: the address bounced")

    @pytest.mark.parametrize("name", ["part_refunded", "completed"])
    def test_an_event_that_is_not_stored_any_more(self, name):
        order = paid()
        complete_order(order_id=order.id)
        refund_order(order_id=order.id, amount=1)
        DomainEvent.objects.all().delete()
        why = "only its event, which is not stored here, has the change's data"
        self.refuses(spoil(order, f"order.{name}"), why)

    def test_a_copy_that_a_person_sent_to_another_address(self):
        mail = spoil(paid(), "order.paid", status="sent", sent_at=dt.datetime.now(dt.UTC))
        copy_id = send_copy(notification_id=mail.id, recipient_email="accountant@example.com")
        EmailNotification.objects.filter(id=copy_id).update(status="dead_lettered", ended_by="provider")
        reasons = rendered_again(EmailNotification.objects.get(id=copy_id))[1]
        assert reasons == ["a person sent this copy to another address"]

    def test_a_wish_for_another_payment_if_the_order_is_paid(self, settings):
        settings.NOTIFY_ON = ["order.payment_failed"]
        order = place()
        fail_payment(order_id=order.id)
        mail = spoil(order, "order.payment_failed")
        assert len(rendered_again(mail)[0]) == 1
        EmailNotification.objects.filter(id=mail.id).update(status="dead_lettered", ended_by="provider")
        pay_order(order_id=order.id)
        assert rendered_again(mail) == ([], ["its order is paid, so nobody has to pay again"])

    def test_a_copy_whose_first_email_is_not_stored_any_more(self):
        mail = spoil(paid(), "order.paid")
        (copy,), _ = rendered_again(mail)
        mail.delete()
        EmailNotification.objects.filter(id=copy.id).update(status="dead_lettered", ended_by="provider")
        assert rendered_again(copy)[1] == ["its order or its first e-mail is not stored any more"]


def test_a_payment_whose_event_is_gone_shows_no_later_refund():
    order = paid()
    refund_order(order_id=order.id, amount=100)
    DomainEvent.objects.all().delete()
    (copy,), _ = rendered_again(spoil(order, "order.paid"))
    assert "$1.00" not in copy.body_text and "$10.00" in copy.body_text


def test_a_copy_of_a_copy_finds_the_first_ones_event():
    order = paid()
    refund_order(order_id=order.id, amount=100)
    mail = spoil(order, "order.part_refunded")
    for _ in range(3):
        (mail,), refused = rendered_again(mail)
        assert refused == [] and "$1.00" in mail.subject
        EmailNotification.objects.filter(id=mail.id).update(status="dead_lettered", ended_by="provider")


def test_another_systems_email_is_rendered_unless_only_its_event_has_the_data():
    order = paid()
    refund_order(order_id=order.id, amount=100)
    Order.objects.filter(id=order.id).update(source="shop-a")
    DomainEvent.objects.all().delete()
    (copy,), refused = rendered_again(spoil(order, "order.paid"), spoil(order, "order.part_refunded"))
    assert copy.event_type == "order.paid"
    assert refused == ["only shop-a, which is not stored here, has the change's data"]


def test_a_resend_of_the_old_email_sends_its_old_text_because_a_person_decides():
    mail = spoil(paid(), "order.paid")
    rendered_again(mail)
    changes, refusals = resend(ids=[mail.id])
    mail.refresh_from_db()
    assert (len(changes), refusals, mail.status, mail.body_text) == (1, [], "pending", "wrong")


def test_a_corrected_address_gets_no_copy_of_an_email_that_another_replaces():
    order = paid()
    first = EmailNotification.objects.get(order_id=order.id)
    EmailNotification.objects.filter(id=first.id).update(status="sent", sent_at=Now())
    refund_order(order_id=order.id, amount=100)
    mail = spoil(order, "order.part_refunded")
    assert find_last_email(order_id=order.id) == mail
    rendered_again(mail)
    assert find_last_email(order_id=order.id) == first


def test_a_crash_between_two_copies_loses_no_email():
    mails = [spoil(paid(), "order.paid") for _ in range(2)]
    copies = []

    def crash_at_the_second(execute: Any, sql: str, *rest: Any) -> Any:
        copies.extend([sql] * sql.replace('"', "").count("INSERT INTO email_notifications"))
        if len(copies) == 2:
            raise Killed
        return execute(sql, *rest)

    with connection.execute_wrapper(crash_at_the_second), pytest.raises(Killed):
        rendered_again(*mails)
    statuses = EmailNotification.objects.values_list("status", flat=True)
    assert list(statuses) == ["dead_lettered", "dead_lettered"]


def test_a_filter_is_a_job_and_its_reads_do_not_grow_with_the_batch():
    mails = [spoil(paid(), "order.paid") for _ in range(12)]
    spoil(paid(), "order.paid", status="failed")
    job = started(RENDER_AGAIN.name, status="dead_lettered", event_type="order.paid")
    with CaptureQueriesContext(connection) as queries:
        job = job_after(job)
    reads = [
        query["sql"] for query in queries if query["sql"].startswith("SELECT") and "orders" in query["sql"]
    ]
    assert len(reads) < 12
    assert (job.state, job.total, job.done_count, job.refused_count) == ("done", 12, 12, 0)
    assert EmailNotification.objects.filter(status="discarded").count() == 12
    assert EmailNotification.objects.filter(resend_of__in=[mail.id for mail in mails]).count() == 12
    assert acts().filter(act__startswith="Rendered again as ").count() == 12


@pytest.mark.parametrize(("status", "ended_by"), [("pending", ""), ("failed", ""), ("dead_lettered", "age")])
def test_a_job_leaves_out_and_counts_what_is_overtaken_and_one_alone_is_rendered(
    status, ended_by, admin_client
):
    order = paid()
    cancel_order(order_id=order.id)
    mail = spoil(order, "order.paid", status=status, ended_by=ended_by)
    cancelled = spoil(order, "order.cancelled", status=status, ended_by=ended_by)
    job = job_after(started(RENDER_AGAIN.name, status=status))
    assert (job.done_count, job.refusals) == (1, {"overtaken by order.cancelled": 1})
    assert EmailNotification.objects.exclude(resend_of=None).get().resend_of == cancelled.id
    admin_client.post(f"{MAILS}{mail.id}/act/", {"action": "render_again"})
    assert EmailNotification.objects.filter(resend_of=mail.id).count() == 1


def test_the_admin_asks_and_then_renders_the_ticked_emails_again(admin_client):
    mail = spoil(paid(), "order.paid")
    assert 'value="render_again"' in admin_client.get(f"{MAILS}{mail.id}/change/").content.decode()
    assert "Yes, render again" in press(admin_client, MAILS, "render_again", mail.id).content.decode()
    assert not EmailNotification.objects.exclude(resend_of=None).exists()
    act(admin_client, "render_again", [mail.id], reason="the subject")
    copy, job = EmailNotification.objects.get(resend_of=mail.id), BulkJob.objects.get()
    said = f"Rendered again as {copy.id} (was dead_lettered). (job {job.id}) the subject"
    assert told_acts() == [said]


def test_the_admin_starts_a_job_for_a_filter_if_the_user_may_resend():
    spoil(paid(), "order.paid")
    answer = {"action": "render_again", "status": "dead_lettered", "confirmed": "yes"}
    for permission, status in (("discard_emailnotification", 403), ("resend_emailnotification", 302)):
        client = staff_client("view_emailnotification", permission, name=permission)
        assert client.post(f"{MAILS}bulk/", answer).status_code == status
    run_jobs()
    assert EmailNotification.objects.exclude(resend_of=None).count() == 1
