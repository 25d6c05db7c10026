"""The admin's orders: the list, newest first whoever owns them, one order's story, and its templates."""

from __future__ import annotations

import datetime as dt
import email
import email.policy
import re
import uuid

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test import Client
from django.utils.html import escape

from notifications.admin.timeline import lines_of
from notifications.changes.trail import TimelineEntry
from notifications.content.copies import NotCopied
from orders.corrections import correct_address
from tests.kit.acts import acts, told_acts
from tests.kit.admin import MAILS, ORDERS, downloaded, listed, statements_of
from tests.kit.mails import make_mail
from tests.kit.orders import (
    cancel_order,
    deliver_shipment,
    make_order,
    make_orders,
    pay_order,
    ship_order,
)
from tests.kit.people import client_of, confirm_address, make_user, staff_client
from tests.kit.plans import emptied, plan_of
from tests.kit.providers import smtp
from tests.kit.words import (
    CHUNK,
    EmailNotification,
    Order,
    Suppression,
    SuppressionReason,
    address_hash,
    new_id,
    order_services,
    read_database_time,
    suppress,
)

__all__ = ["smtp"]  # a fixture

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def newest_first() -> list[Order]:
    return sorted(Order.objects.all(), key=lambda order: (order.created_at, order.id), reverse=True)


def in_file(client: Client, **query: str) -> list[str]:
    return [row["id"] for row in downloaded(client, ORDERS, **query)]


def rita() -> User:
    user = User.objects.create_superuser("rita", password="x")
    confirm_address(user, "rita@example.com")
    return user


def external(hours: float, **fields: object) -> Order:
    """Insert an order of another system, placed so many hours ago, whose id contains no time."""
    at = read_database_time() - hours * HOUR
    return make_order(**{"id": uuid.uuid4(), "source": "shop-a", "created_at": at} | fields)


def test_it_is_newest_first(admin_client):
    for number in range(60):
        external(number / 2) if number % 2 else make_order(
            created_at=read_database_time() - number * HOUR / 2
        )
    ids = [order.id for order in newest_first()]
    assert listed(admin_client, ORDERS) == ids[:50] and listed(admin_client, ORDERS, p="2") == ids[50:]


def test_its_file_has_each_order_once_in_the_same_order(admin_client):
    make_orders(2 * CHUNK + 100, owner="mixed")
    Order.objects.filter(reference__startswith="S-2").update(created_at=read_database_time() - 9 * HOUR)
    assert in_file(admin_client) == [str(order.id) for order in newest_first()]


def test_each_part_of_the_file_of_a_period_reads_only_its_own_rows(admin_client):
    emptied("orders")
    make_orders(8 * CHUNK, owner="mixed")
    answer = f"{ORDERS}csv/?since=2020-01-01&until=2099-01-01"
    statements = [sql for sql in statements_of(admin_client, answer) if f"LIMIT {CHUNK}" in sql]
    assert len(statements) > 8
    with connection.cursor() as cursor:  # because PostgreSQL may rather sort a table as small as this one
        cursor.execute("SET LOCAL enable_sort = off; SET LOCAL enable_seqscan = off")
    for plan in map(plan_of, statements):
        assert plan.visited <= CHUNK and plan.buffers <= CHUNK + 20, plan


def test_its_periods_are_of_the_time_at_which_an_order_was_placed(admin_client):
    old, young = external(50), external(2)
    assert listed(admin_client, ORDERS, age="24h") == [young.id]
    assert listed(admin_client, ORDERS, age="7d") == [young.id, old.id]
    day = f"{old.created_at:%Y-%m-%d}"
    assert listed(admin_client, ORDERS, since=day, until=day) == [old.id]
    assert in_file(admin_client, age="24h") == [str(young.id)]


def test_a_search_shows_the_newest_first(admin_client):
    orders = [external(hours, reference="A-7") for hours in (1, 30, 5, 40, 2)]
    ids = [order.id for order in sorted(orders, key=lambda order: order.created_at, reverse=True)]
    assert listed(admin_client, ORDERS, q="A-7") == listed(admin_client, ORDERS, q="ALICE@example.com") == ids
    for term in ("A-7", "alice@example.com"):
        hits = admin_client.get("/admin/search/", {"q": term}).context["hits"]
        assert [hit.key for hit in hits] == [f"order {id}" for id in ids]


def test_an_orders_page_tells_its_story_with_links_and_gaps(admin_client):
    order = make_order(items=[{"sku": "s", "name": "Pen", "quantity": 2, "unit_amount": 100}])
    pay_order(order_id=order.id)
    mail = EmailNotification.objects.get(order_id=order.id)
    page = admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
    assert page.index("Order placed") > page.index("Order paid (version 2)") > page.index("saved")
    assert f'href="{MAILS}{mail.id}/change/"' in page and "Pen" in page


def test_an_orders_page_links_an_event_only_for_users_who_may_open_it(admin_client):
    order = make_order()
    pay_order(order_id=order.id)
    link = "/admin/events/domainevent/"
    page = f"{ORDERS}{order.id}/change/"
    assert link in admin_client.get(page).content.decode().partition("timeline")[2]
    support = client_of(make_user("sue", group="support")).get(page).content.decode()
    assert "Order paid (version 2)" in support and link not in support


def test_the_gap_is_the_time_since_the_line_before_or_until_what_is_to_come():
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    entries = [
        TimelineEntry(at=noon, kind="change", what="order.paid", text=""),
        TimelineEntry(at=noon + dt.timedelta(seconds=0.2), kind="delivery", what="sent", text=""),
        TimelineEntry(
            at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=3), kind="plan", what="next_attempt", text=""
        ),
    ]
    assert [(line.gap, line.tone) for line in lines_of(entries)] == [
        ("in 2 h", ""),
        ("+200 ms", "good"),
        ("", ""),
    ]


class TestUnexpectedPayments:
    DECIDES = ("view_order", "resolve_inbounddeadletter")
    BUTTON = "The payment of $42.00 was returned"

    def arrange(self) -> tuple[Order, str, uuid.UUID]:
        order, event = make_order(), uuid.uuid4()
        cancel_order(order_id=order.id)
        with transaction.atomic():
            order_services.note_unexpected_payment(order_id=order.id, event_id=event, amount=4200).save()
        return order, f"{ORDERS}{order.id}/", event

    def test_a_person_who_decides_about_events_ends_one_once(self):
        order, path, event = self.arrange()
        client = staff_client(*self.DECIDES)
        page = client.get(f"{path}change/").content.decode()
        assert "Then press the button below" in page
        assert self.BUTTON in page and "Payment of $42.00 that the order cannot take" in page
        answer = client.post(f"{path}returned/", {"event": str(event)}, follow=True)
        assert b"The payment counts as returned" in answer.content
        page = client.get(f"{path}change/").content.decode()
        assert self.BUTTON not in page.partition('class="timeline"')[0]
        act = acts().get()
        assert act.subject_id == str(order.id)
        assert act.act == f"Returned the unexpected payment of the event {event}."
        again = client.post(f"{path}returned/", {"event": str(event)}, follow=True)
        assert b"This payment is not, or no longer, to be returned" in again.content
        assert acts().count() == 1
        assert "Returned the unexpected payment" in client.get(f"{path}change/").content.decode()

    @pytest.mark.parametrize("posted", [{}, {"event": "x"}])
    def test_it_must_be_named(self, posted):
        order, path, _ = self.arrange()
        assert staff_client(*self.DECIDES).post(f"{path}returned/", posted).status_code == 404
        order.refresh_from_db()
        assert order.unexpected_payment_at is not None

    def test_others_see_it_alone(self):
        _, path, event = self.arrange()
        client = staff_client("view_order")
        page = client.get(f"{path}change/").content.decode()
        assert "Payment of $42.00" in page and self.BUTTON not in page
        assert "must be returned to the customer. Then an operator says so here" in page
        assert client.post(f"{path}returned/", {"event": str(event)}).status_code == 403
        assert client.get(f"{path}returned/").status_code == 405

    def test_an_order_that_does_not_exist_has_none(self):
        path = f"{ORDERS}{uuid.uuid4()}/returned/"
        assert staff_client(*self.DECIDES).post(path, {"event": str(uuid.uuid4())}).status_code == 404


class TestPreviews:
    def path(self, order: Order, rest: str = "") -> str:
        return f"{ORDERS}{order.id}/emails/{rest}"

    def test_any_template_is_shown_with_the_orders_data(self, admin_client):
        order = make_order(reference="A-77")
        chosen = {"event": "order.completed", "locale": "de"}
        assert "A-77" in admin_client.get(self.path(order), chosen).content.decode()
        body = admin_client.get(self.path(order, "body/"), chosen)
        assert "A-77" in body.content.decode()
        assert body.headers["Content-Security-Policy"].startswith("sandbox")

    def test_a_parcel_is_the_newest_one_and_before_any_left_the_whole_order(self, admin_client):
        items = [{"sku": "M", "name": "Mug", "quantity": 3, "unit_amount": 100}]
        order = make_order(status="paid", total_amount=300, items=items)

        def preview(event: str) -> str:
            page = admin_client.get(self.path(order, "body/"), {"event": event, "locale": "en"})
            return re.sub(r"<[^>]*>|\s+", " ", page.content.decode())

        for event in ("order.shipped", "order.delivered"):
            assert re.search(r"In this parcel +3 × +Mug", preview(event))
        ship_order(order_id=order.id, lines=[{"item": 0, "quantity": 1}], tracking_number="4-2")
        shown = preview("order.shipped")
        assert re.search(r"In this parcel +1 × +Mug +Not dispatched yet +2 × +Mug", shown)
        assert "Tracking number: 4-2" in shown and "Carrier: DHL" in shown  # the sample's

    def test_an_unknown_template_is_no_page(self, admin_client):
        order = make_order()
        assert admin_client.get(self.path(order, "body/"), {"event": "../x"}).status_code == 404
        assert b"valid choice" in admin_client.get(self.path(order), {"event": "../x"}).content

    def test_it_is_sent_to_the_person_who_looks_and_nothing_is_saved(self, client, settings, smtp):
        order = make_order()
        settings.EMAIL_PROVIDERS = ["smtp"]
        client.force_login(rita())
        page = client.post(self.path(order), {"event": "order.paid", "locale": "en"})
        assert b"Sent to rita@example.com" in page.content
        mail = email.message_from_string(*smtp.messages, policy=email.policy.default)
        assert mail["To"] == "rita@example.com" and mail["Subject"].startswith("[Preview] ")
        assert not EmailNotification.objects.exists()
        act = acts().get()
        to = address_hash("rita@example.com")
        assert act.subject_id == str(order.id) and act.subject == f"order {order.id}"
        assert act.act == (f"Sent a preview to their own address. event=order.paid locale=en to=hash:{to}")

    def test_a_refused_preview_writes_a_row_without_the_providers_words(self, client, monkeypatch):
        order = make_order()
        monkeypatch.setattr("orders.admin.previews.send_preview", lambda **_: "no rita@example.com here")
        client.force_login(rita())
        client.post(self.path(order), {"event": "order.paid", "locale": "en"})
        said = acts().get().act
        assert said.startswith("A preview was refused. event=order.paid") and "rita" not in said

    def test_a_viewer_sends_none(self):
        order = make_order()
        client = staff_client("view_order")
        assert client.post(self.path(order), {"event": "order.paid", "locale": "en"}).status_code == 403


class TestEmails:
    """The page of an order has its e-mails first, each with its state, its reason and its button."""

    def test_stand_above_the_timeline_the_newest_first_each_with_its_reason_and_button(self, admin_client):
        order = make_order()
        dead = make_mail(
            order_id=order.id, status="dead_lettered", subject="First", last_error="452 4.2.2 full"
        )
        make_mail(order_id=order.id, status="sent", subject="Second", provider="ses", delivered_at=Now())
        page = admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
        shown = ["Second", "server took it at", "First", "The mailbox is full", 'value="resend"', "Timeline"]
        assert sorted(shown, key=page.index) == shown
        assert page.count('value="resend"') == 1 and f'action="{MAILS}{dead.id}/act/"' in page

    def test_are_resent_at_once_and_lead_back_to_the_order(self, admin_client):
        order = make_order()
        mail = make_mail(order_id=order.id, status="dead_lettered")
        answer = admin_client.post(f"{MAILS}{mail.id}/act/", {"action": "resend", "to_order": "yes"})
        mail.refresh_from_db()
        assert (answer.url, mail.status) == (f"{ORDERS}{order.id}/change/", "pending")

    def test_need_the_permission_to_view_them(self):
        order = make_order()
        make_mail(order_id=order.id, status="dead_lettered", subject="Hidden")
        page = staff_client("view_order").get(f"{ORDERS}{order.id}/change/").content.decode()
        assert "You have no permission to view e-mails." in page and "Hidden" not in page

    def test_take_as_many_statements_as_a_few(self, admin_client):
        order = make_order()
        counts = []
        for rows in (2, 40):
            for _ in range(rows):
                make_mail(order_id=order.id, status="suppressed")
                make_mail(order_id=order.id)
            path = f"{ORDERS}{order.id}/change/"
            statements_of(admin_client, path)  # fills the caches of permissions and content types
            counts.append(len(statements_of(admin_client, path)))
        assert counts[0] == counts[1] <= 16


class TestAnAddress:
    """`Correct the address …` corrects an order's address, and sends a copy of the last e-mail if ticked."""

    def page(self, order: Order) -> str:
        return f"{ORDERS}{order.id}/address/"

    def test_is_corrected_on_an_order_without_an_email(self, admin_client):
        order = make_order(email="alice@exampel.com")
        assert self.page(order) in admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
        assert b"send_copy" not in admin_client.get(self.page(order)).content
        answer = admin_client.post(self.page(order), {"email": "alice@example.com", "reason": "she called"})
        assert answer.url == f"{ORDERS}{order.id}/change/"
        order.refresh_from_db()
        assert order.email == "alice@example.com" and not EmailNotification.objects.exists()
        assert told_acts() == ["Corrected the address. she called"]

    @pytest.mark.parametrize("ticked", [True, False])
    def test_gets_a_copy_of_the_last_ended_email_if_ticked(self, admin_client, ticked):
        order = make_order(email="alice@exampel.com")
        for subject, status in (("First", "sent"), ("Second", "dead_lettered"), ("Third", "pending")):
            make_mail(order_id=order.id, status=status, subject=subject)
        make_mail(order_id=order.id, status="sent", subject="Shop", shop_copy_of=new_id())
        assert "“Second”" in admin_client.get(self.page(order)).content.decode()
        values = {"email": "alice@example.com"} | ({"send_copy": "on"} if ticked else {})
        admin_client.post(self.page(order), values)
        copies = EmailNotification.objects.exclude(resend_of=None)
        sent = [("Second", "alice@example.com")] if ticked else []
        assert list(copies.values_list("subject", "recipient_email")) == sent
        assert Order.objects.get(id=order.id).email == "alice@example.com"

    def test_of_an_order_that_had_none_makes_its_emails_due_without_a_copy(self, admin_client):
        order = make_order(email="", source="shop-a")
        mail = make_mail(order_id=order.id, recipient_email="", status="dead_lettered")
        assert b"send_copy" not in admin_client.get(self.page(order)).content
        admin_client.post(self.page(order), {"email": "alice@example.com", "send_copy": "on"})
        mail.refresh_from_db()
        assert (mail.status, mail.recipient_email) == ("pending", "alice@example.com")
        assert EmailNotification.objects.count() == 1

    def test_that_is_suppressed_changes_nothing_and_says_so(self, admin_client):
        order = make_order(email="alice@exampel.com")
        make_mail(order_id=order.id, status="sent")
        suppress([SuppressionReason("bob@example.com", Suppression.Reason.COMPLAINT)])
        answer = admin_client.post(self.page(order), {"email": "bob@example.com", "send_copy": "on"})
        assert "Nothing was changed: the address is suppressed" in answer.content.decode()
        assert Order.objects.get(id=order.id).email == "alice@exampel.com" and not acts().exists()

    @pytest.mark.parametrize("fields", [{"source": "shop-a"}, {"email": "erased@privacy.invalid"}])
    def test_of_another_systems_or_an_erased_order_is_not_corrected_here(self, admin_client, fields):
        order = make_order(**fields)
        assert self.page(order) not in admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
        assert admin_client.post(self.page(order), {"email": "bob@example.com"}).status_code == 403

    def test_of_an_order_that_was_erased_meanwhile_stays_erased(self):
        order = make_order(email="erased@privacy.invalid")
        with pytest.raises(NotCopied, match="its data was erased"), transaction.atomic():
            correct_address(order_id=order.id, email="bob@example.com", is_copy_wanted=False)
        assert Order.objects.get(id=order.id).email == "erased@privacy.invalid"

    def test_needs_its_permission_and_a_copy_that_of_copies(self):
        order = make_order()
        make_mail(order_id=order.id, status="sent")
        assert staff_client("view_order").get(self.page(order)).status_code == 403
        client = staff_client("view_order", "correct_address", name="corrects")
        assert b"send_copy" not in client.get(self.page(order)).content
        client.post(self.page(order), {"email": "bob@example.com", "send_copy": "on"})
        assert Order.objects.get(id=order.id).email == "bob@example.com"
        assert EmailNotification.objects.count() == 1


def test_the_pages_of_a_copy_and_an_address_take_at_most_ten_statements(admin_client):
    order = make_order()
    mail = make_mail(order_id=order.id, status="sent")
    for path in (f"{ORDERS}{order.id}/address/", f"{ORDERS}copies/{mail.id}/"):
        statements_of(admin_client, path)  # fills the caches of permissions and content types
        assert len(statements_of(admin_client, path)) <= 10, path


ITEMS = [
    {"sku": "MUG", "name": "Mug <b>", "quantity": 2, "unit_amount": 100},
    {"sku": "TEA", "name": "Tea", "quantity": 1, "unit_amount": 100},
]


class TestParcels:
    def test_the_page_of_an_order_shows_each_and_what_is_left(self, admin_client):
        order = pay_order(order_id=make_order(items=ITEMS).id)
        half = [{"item": 0, "quantity": 1}]
        url = "https://parcels.example.com/42?a=1&b=2"
        values = {"carrier": "DHL", "tracking_number": "42", "tracking_url": url}
        shipment = ship_order(order_id=order.id, reference="P-1", lines=half, **values)
        deliver_shipment(order_id=order.id, shipment_id=shipment.id)
        ship_order(order_id=order.id, lines=half)
        page = admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
        text = " ".join(re.sub(r"<[^>]+>", "", page).split())
        time = r"[0-9-]{10} [0-9:]{8}"
        first = rf"…[0-9a-f]{{8}} left {time} 1 × Mug &lt;b&gt;"
        shown = rf"Parcels {first} DHL 42 left {time}, delivered {time} 1 × Mug &lt;b&gt; Follow parcel 42"
        assert re.search(shown, text)
        assert "Left to ship: 1 × Tea" in text
        assert f'<a href="{escape(url)}" rel="noopener noreferrer" target="_blank">' in page

    def test_the_list_filters_by_what_left_and_its_csv_says_so(self, admin_client):
        orders = {
            name: pay_order(order_id=make_order(items=ITEMS, reference=name).id) for name in ("A", "B", "C")
        }
        ship_order(order_id=orders["A"].id)
        ship_order(order_id=orders["B"].id, lines=[{"item": 1, "quantity": 1}])
        for value, expected in (("shipped", "A"), ("part_shipped", "B")):
            page = admin_client.get(ORDERS, {"fulfilment": value}).content.decode()
            assert [name for name in orders if f">{name}</a>" in page] == [expected]
        rows = {row["reference"]: row["fulfilment"] for row in downloaded(admin_client, ORDERS)}
        assert rows == {"A": "shipped", "B": "part_shipped", "C": "none"}

    def test_a_filtered_page_reads_its_index_alone(self, admin_client):
        make_orders(2000, owner="mixed")
        ship_order(order_id=pay_order(order_id=make_order(items=ITEMS).id).id)
        page = [sql for sql in statements_of(admin_client, f"{ORDERS}?fulfilment=shipped") if "LIMIT" in sql]
        plans = [plan_of(sql) for sql in page if '"fulfilment" =' in sql]
        assert plans and all(plan.indexes == {"orders_fulfilment_newest"} for plan in plans)
        assert sum(plan.visited for plan in plans) <= 3
