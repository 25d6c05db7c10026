"""What a person at 3 a.m. does: find what is stuck, read why, resend it or give it up."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from notifications.delivery import process
from notifications.models import EmailNotification
from orders.models import Order
from outbox.core.ids import new_id
from outbox.delivery.outcomes import Status
from outbox.models import ApiToken, InboundDeadLetter, OutboxEvent
from outbox.retention.partitions import attached, partitioned_models
from tests.factories import make_mail, make_mails, make_order, statuses
from tests.outbox.retention.months import fill, make_partition

pytestmark = pytest.mark.django_db
LIST = "/admin/notifications/emailnotification/"


@pytest.fixture
def admin_client(db) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def staff(*permissions: str) -> Client:
    user = User.objects.create_user("staff", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def press(client: Client, action: str, ids, **fields):
    data = {"action": action, "_selected_action": [str(id) for id in ids]} | fields
    return client.post(LIST, data, follow=True)


def test_every_page_opens(admin_client):
    order = make_order(items=[{"sku": "s", "name": "Pen", "quantity": 2, "unit_amount": 100}])
    mail = make_mail(order_id=order.id, status=Status.DEAD_LETTERED, last_error="400 no")
    for name in ("order", "outboxevent", "apitoken", "heartbeat", "emailnotification"):
        app = {"order": "orders", "emailnotification": "notifications"}.get(name, "outbox")
        assert admin_client.get(reverse(f"admin:{app}_{name}_changelist")).status_code == 200
    assert b"Pen" in admin_client.get(reverse("admin:orders_order_change", args=[order.id])).content
    page = admin_client.get(reverse("admin:notifications_emailnotification_change", args=[mail.id]))
    assert b"400 no" in page.content and b"<iframe" in page.content
    assert admin_client.get("/admin/").status_code == 200


def test_the_list_asks_first_and_changes_nothing_until_it_is_answered(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED)
    page = press(admin_client, "resend", [mail.id])
    assert b"will be sent again" in page.content
    assert statuses() == {"dead_lettered": 1}
    assert not LogEntry.objects.exists()


def test_resending_makes_rows_due_logs_each_and_tells_what_it_left_alone(admin_client):
    dead = [make_mail(status=Status.DEAD_LETTERED) for _ in range(3)]
    sent = make_mail(status=Status.SENT)
    page = press(
        admin_client, "resend", [*(m.id for m in dead), sent.id], confirmed="yes", reason="SPF mended"
    )
    assert statuses() == {"pending": 3, "sent": 1}
    assert b"Resent: 3." in page.content and b"it is sent" in page.content
    messages = list(LogEntry.objects.values_list("change_message", flat=True))
    assert messages == ["Resent (was dead_lettered). SPF mended"] * 3


def test_a_reason_may_have_braces_in_it(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED)
    page = press(admin_client, "resend", [mail.id], confirmed="yes", reason="see {ticket} {0}")
    assert page.status_code == 200
    assert LogEntry.objects.get().change_message == "Resent (was dead_lettered). see {ticket} {0}"


def test_pressing_twice_is_harmless_and_says_so(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED)
    press(admin_client, "resend", [mail.id], confirmed="yes")
    page = press(admin_client, "resend", [mail.id], confirmed="yes")
    assert b"Resent: 0." in page.content and b"it is pending" in page.content
    assert LogEntry.objects.count() == 1


def test_giving_up_discards_dead_letters_and_what_keeps_failing_and_nothing_else(admin_client):
    mails = [make_mail(status=status) for status in (Status.DEAD_LETTERED, Status.FAILED, Status.PENDING)]
    press(admin_client, "give_up", [mail.id for mail in mails], confirmed="yes")
    assert statuses() == {"discarded": 2, "pending": 1}


def test_all_that_match_a_filter_can_be_resent_at_once(admin_client):
    make_mails(1200, status="dead_lettered")
    make_mails(5, status="sent")
    one = EmailNotification.objects.dead().first()
    data = {"action": "resend", "_selected_action": [str(one.id)], "select_across": "1", "confirmed": "yes"}
    admin_client.post(LIST + "?status=dead_lettered", data)
    assert statuses() == {"pending": 1200, "sent": 5}
    assert LogEntry.objects.count() == 1200


@pytest.mark.parametrize("action", ["resend", "give_up"])
def test_without_its_permission_an_action_does_not_exist(action):
    client = staff("view_emailnotification")
    mail = make_mail(status=Status.DEAD_LETTERED)
    press(client, action, [mail.id], confirmed="yes")
    assert statuses() == {"dead_lettered": 1}
    page = client.get(reverse("admin:notifications_emailnotification_change", args=[mail.id]))
    assert page.status_code == 200
    assert b"Resend" not in page.content and b"Give up" not in page.content


def test_with_only_its_permission_an_action_works():
    client = staff("view_emailnotification", "resend_emailnotification")
    mail = make_mail(status=Status.DEAD_LETTERED)
    press(client, "resend", [mail.id], confirmed="yes")
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
    assert staff().get(f"{LIST}{mail.id}/preview/").status_code == 403
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


@pytest.mark.parametrize("term", ["alice@example.com", "R-77", "order-id", "notification-id"])
def test_search_finds_by_address_reference_order_and_notification(admin_client, term):
    order = make_order(reference="R-77")
    mail = make_mail(order_id=order.id, recipient_email="alice@example.com")
    make_mail(recipient_email="bob@example.com")
    query = {"order-id": str(order.id), "notification-id": str(mail.id)}.get(term, term)
    results = admin_client.get(LIST, {"q": query}).context["cl"].result_list
    assert [row.id for row in results] == [mail.id]


def test_filters_narrow_by_status_event_provider_and_age(admin_client):
    mail = make_mail(status=Status.DEAD_LETTERED, provider="sendgrid")
    make_mail(event_type="order.cancelled", status=Status.SENT)
    for query in ({"status": "dead_lettered"}, {"event_type": "order.paid"}, {"provider": "sendgrid"}):
        results = admin_client.get(LIST, query | {"age": "1h"}).context["cl"].result_list
        assert [row.id for row in results] == [mail.id]


def test_a_late_poll_is_flagged(admin_client):
    from outbox.models import Heartbeat

    Heartbeat.objects.create(name="poll", beat_at=Now() - dt.timedelta(seconds=500))
    tiles = {tile["label"]: tile for tile in admin_client.get(LIST).context["attention"]}
    assert tiles["last poll"]["bad"] is True


def test_a_token_is_shown_once_and_works(admin_client):
    page = admin_client.post(
        "/admin/outbox/apitoken/add/",
        {"name": "shop", "scopes": ["orders:read"], "expires_at_0": "", "expires_at_1": ""},
        follow=True,
    )
    token = ApiToken.objects.get()
    (message,) = (str(one) for one in page.context["messages"] if "shown only" in str(one))
    secret = str(message).split()[-1]
    assert ApiToken.digest_of(secret) == token.digest
    assert Client().get("/api/v1/orders", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
    admin_client.post(
        "/admin/outbox/apitoken/", {"action": "revoke", "_selected_action": [str(token.id)]}, follow=True
    )
    assert Client().get("/api/v1/orders", headers={"Authorization": f"Bearer {secret}"}).status_code == 401


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "query", [{}, {"status": "dead_lettered"}, {"q": "user77@example.com"}, {"age": "24h"}]
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


def test_the_bare_address_leads_to_the_reference():
    assert Client().get("/").headers["Location"] == "/api/docs"


def test_the_partitions_page_lists_them_and_says_what_holds_one(admin_client):
    page = admin_client.get("/admin/outbox/detachedpartition/").content.decode()
    for model in partitioned_models():
        for partition in attached(model=model):
            assert partition.name in page
    assert "should have left" not in page
    assert staff("view_order").get("/admin/outbox/detachedpartition/").status_code == 403


def test_an_old_partition_with_dead_letters_is_shown_as_held(admin_client):
    fill(make_partition(EmailNotification, back=4), 2, status="dead_lettered")
    page = admin_client.get("/admin/outbox/detachedpartition/").content.decode()
    assert "should have left and is held by 2 unfinished rows" in page
    assert "Resend them or give them up" in page


ORDERS = "/admin/orders/order/"


def ask(client: Client, action: str, *orders, **fields):
    data = {"action": action, "_selected_action": [str(order.id) for order in orders]} | fields
    return client.post(ORDERS, data, follow=True)


@pytest.mark.django_db(databases=["default", "direct", "owner"])
class TestAPersonsData:
    def test_is_exported_as_a_file(self, admin_client):
        order = make_order(status="completed")
        make_mail(order_id=order.id, status=Status.SENT)
        answer = ask(admin_client, "export_person", order)
        assert answer["Content-Disposition"].startswith("attachment")
        document = answer.json()
        assert document["orders"][0]["id"] == str(order.id) and len(document["email_notifications"]) == 1

    def test_is_erased_after_a_question_and_logged_without_the_address(self, admin_client):
        order = make_order(status="completed")
        page = ask(admin_client, "erase_person", order)
        assert b"cannot be undone" in page.content
        order.refresh_from_db()
        assert order.email == "alice@example.com"
        page = ask(admin_client, "erase_person", order, confirmed="yes")
        order.refresh_from_db()
        assert order.email == "erased@privacy.invalid" and b"Erased: 1 in orders" in page.content
        entry = LogEntry.objects.get()
        assert "alice" not in f"{entry.change_message} {entry.object_repr}"

    def test_in_flight_is_refused_unless_forced(self, admin_client):
        order = make_order(status="paid", paid_at=Now())
        page = ask(admin_client, "erase_person", order, confirmed="yes")
        assert b"not finished" in page.content
        ask(admin_client, "erase_person", order, confirmed="yes", force="yes")
        order.refresh_from_db()
        assert order.email == "erased@privacy.invalid"

    def test_of_two_customers_at_once_is_refused(self, admin_client):
        orders = make_order(status="completed"), make_order(status="completed", email="bob@example.com")
        for action in ("export_person", "erase_person"):
            assert b"orders of one customer" in ask(admin_client, action, *orders, confirmed="yes").content
        assert {order.email for order in Order.objects.all()} == {"alice@example.com", "bob@example.com"}

    def test_needs_its_own_permission(self):
        order = make_order(status="completed")
        client = staff("view_order", "export_person")
        assert "Content-Disposition" in ask(client, "export_person", order).headers
        ask(client, "erase_person", order, confirmed="yes")
        order.refresh_from_db()
        assert order.email == "alice@example.com"


class TestProviders:
    PAGE = "/admin/notifications/emailnotification/providers/"

    @pytest.fixture(autouse=True)
    def _fresh(self, valkey_url):
        process.start_anew()
        yield
        process.start_anew()

    def test_the_page_shows_each_and_a_persons_word_is_for_every_process_and_logged(self, admin_client):
        assert b"closed (sends)" in admin_client.get(self.PAGE).content
        page = admin_client.post(self.PAGE, {"provider": "sendgrid", "to": "open"}, follow=True)
        assert b"forced open" in page.content and b"Forced sendgrid open." in page.content
        process.start_anew()
        assert process.gate().enter().provider == ""
        assert b"open" in admin_client.get(LIST).content
        admin_client.post(self.PAGE, {"provider": "sendgrid", "to": ""})
        assert process.gate().enter().provider == "sendgrid"
        assert LogEntry.objects.count() == 2

    def test_without_the_permission_it_is_read_only(self):
        client = staff("view_emailnotification")
        assert b"Force open" not in client.get(self.PAGE).content
        assert client.post(self.PAGE, {"provider": "sendgrid", "to": "open"}).status_code == 403
        assert process.gate().enter().provider == "sendgrid"
        assert staff_named("other").get(self.PAGE).status_code == 403

    @pytest.mark.parametrize("wrong", [{"provider": "x", "to": "open"}, {"provider": "sendgrid", "to": "x"}])
    def test_what_it_does_not_know_is_404(self, admin_client, wrong):
        assert admin_client.post(self.PAGE, wrong).status_code == 404


def staff_named(name: str) -> Client:
    client = Client()
    client.force_login(User.objects.create_user(name, password="x", is_staff=True))
    return client


class TestEvents:
    def event(self, **fields):
        values = {"aggregate_type": "t", "aggregate_id": new_id(), "event_type": "t.v1", "sequence": 1}
        return OutboxEvent.objects.create(**values | {"payload": {}, "shard": 1} | fields)

    def test_dead_ones_are_republished_or_discarded_and_others_left_alone(self, admin_client):
        page = "/admin/outbox/outboxevent/"
        dead, failing, fine, sent = (
            self.event(dead_lettered_at=Now(), retry_count=4, last_error="no"),
            self.event(retry_count=1),
            self.event(),
            self.event(published_at=Now()),
        )
        for state, wanted in (("dead-lettered", dead), ("failing", failing), ("published", sent)):
            found = admin_client.get(page, {"state": state}).context["cl"].result_list
            assert [row.id for row in found] == [wanted.id]
        ids = [str(row.id) for row in (dead, failing, fine, sent)]
        done = admin_client.post(page, {"action": "republish", "_selected_action": ids}, follow=True)
        assert b"Republished: 2. Left alone: 2." in done.content
        dead.refresh_from_db()
        assert (dead.dead_lettered_at, dead.retry_count) == (None, 0)
        OutboxEvent.objects.filter(id=dead.id).update(dead_lettered_at=Now())
        done = admin_client.post(page, {"action": "discard", "_selected_action": ids}, follow=True)
        assert b"Discarded: 1. Left alone: 3." in done.content
        assert LogEntry.objects.count() == 3

    def test_events_that_came_in_dead_are_replayed_or_discarded(self, admin_client):
        page = "/admin/outbox/inbounddeadletter/"
        rows = [
            InboundDeadLetter.objects.create(
                topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="e"
            )
            for _ in range(2)
        ]
        for _ in range(2):  # the second time changes nothing
            admin_client.post(page, {"action": "replay", "_selected_action": [str(rows[0].id)]})
        admin_client.post(page, {"action": "discard", "_selected_action": [str(rows[1].id)]})
        for row in rows:
            row.refresh_from_db()
        assert rows[0].replay_requested_at and rows[1].discarded_at
        assert LogEntry.objects.count() == 2
        assert admin_client.get(page).status_code == 200

    def test_the_permissions_that_release_0_1_0_granted_go_on_working(self):
        letter = InboundDeadLetter.objects.create(
            topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="e"
        )
        page = "/admin/outbox/inbounddeadletter/"
        viewer = staff("view_deadevent")
        assert viewer.get(page).status_code == 200
        assert viewer.get(f"{page}{letter.id}/change/").status_code == 200
        viewer.post(page, {"action": "replay", "_selected_action": [str(letter.id)]})
        letter.refresh_from_db()
        assert letter.replay_requested_at is None
        assert staff_named("nobody").get(page).status_code == 403

    def test_each_needs_its_own_permission(self):
        event = self.event(dead_lettered_at=Now())
        client = staff("view_outboxevent")
        client.post("/admin/outbox/outboxevent/", {"action": "discard", "_selected_action": [str(event.id)]})
        event.refresh_from_db()
        assert event.discarded_at is None
