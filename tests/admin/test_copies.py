"""The admin's pages of one order's story: timeline, copies, previews."""

from __future__ import annotations

import datetime as dt
import email
import email.policy

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from orders import services
from orders.admin.timeline import lines_of
from orders.timeline import Entry
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.people import staff_client
from tests.kit.words import EmailNotification, Order, address_hash
from tests.providers.conftest import smtp

__all__ = ["smtp"]  # a fixture

pytestmark = pytest.mark.django_db


def dead(**fields: object) -> EmailNotification:
    order = make_order(email="alice@exampel.com")
    return make_mail(order_id=order.id, status="dead_lettered", recipient_email="alice@exampel.com", **fields)


def copy_page(mail: EmailNotification) -> str:
    return f"/admin/orders/order/copies/{mail.id}/"


def test_an_orders_page_tells_its_story_with_links_and_gaps(admin_client):
    order = make_order()
    services.pay_order(order_id=order.id)
    mail = EmailNotification.objects.get(order_id=order.id)
    page = admin_client.get(f"/admin/orders/order/{order.id}/change/").content.decode()
    assert page.index("Order placed") < page.index("Order paid (version 2)") < page.index("saved")
    assert f'href="/admin/notifications/emailnotification/{mail.id}/change/"' in page


def test_the_orders_of_a_period_are_downloaded_as_csv(admin_client):
    order = make_order(name="=cmd()")
    page = admin_client.get("/admin/orders/order/")
    assert b"Download as CSV" in page.content and b'name="since"' in page.content
    lines = b"".join(admin_client.get("/admin/orders/order/csv/")).decode("utf-8-sig").splitlines()
    assert len(lines) == 2 and str(order.id) in lines[1] and "'=cmd()" in lines[1]


def test_the_gap_is_the_time_since_the_line_before_or_until_what_is_to_come():
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    entries = [
        Entry(at=noon, kind="change", what="order.paid", text=""),
        Entry(at=noon + dt.timedelta(seconds=0.2), kind="delivery", what="sent", text=""),
        Entry(at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=3), kind="plan", what="next_attempt", text=""),
    ]
    assert [(line.gap, line.tone) for line in lines_of(entries)] == [
        ("", ""),
        ("+200 ms", "good"),
        ("in 2 h", ""),
    ]


def test_a_typo_is_corrected_and_the_email_sent_in_two_steps(admin_client):
    mail = dead()
    page = admin_client.get(f"/admin/notifications/emailnotification/{mail.id}/change/").content.decode()
    assert f'href="{copy_page(mail)}"' in page
    form = admin_client.get(copy_page(mail)).content.decode()
    assert 'value="alice@exampel.com"' in form
    given = {"recipient_email": "alice@example.com", "update_order": "on", "reason": "she called"}
    answer = admin_client.post(copy_page(mail), given)
    copy = EmailNotification.objects.get(resend_of=mail.id)
    assert answer.headers["Location"] == f"/admin/notifications/emailnotification/{copy.id}/change/"
    assert (copy.recipient_email, copy.status) == ("alice@example.com", "pending")
    assert Order.objects.get(id=mail.order_id).email == "alice@example.com"
    log = dict(LogEntry.objects.values_list("object_repr", "change_message"))
    assert log == {
        f"E-mail {mail.id}": f"Copied: {copy.id}. she called",
        f"E-mail {copy.id}": f"Sent as a copy of {mail.id}. she called",
        f"Order {mail.order_id}": "Corrected the address. she called",
    }


def test_the_orders_address_stays_without_the_permission_for_it():
    mail = dead()
    client = staff_client("view_emailnotification", "copy_emailnotification")
    assert b"update_order" not in client.get(copy_page(mail)).content
    client.post(copy_page(mail), {"recipient_email": "alice@example.com", "update_order": "on"})
    assert EmailNotification.objects.get(resend_of=mail.id).recipient_email == "alice@example.com"
    assert Order.objects.get(id=mail.order_id).email == "alice@exampel.com"


def test_nobody_sends_a_copy_without_the_permission():
    mail = dead()
    client = staff_client("view_emailnotification", "view_order")
    assert client.post(copy_page(mail), {"recipient_email": "a@example.com"}).status_code == 403
    page = client.get(f"/admin/notifications/emailnotification/{mail.id}/change/").content.decode()
    assert "Send a copy" not in page


@pytest.mark.parametrize(
    ("address", "said"),
    [("nobody", "Use an e-mail address"), ("", "required"), ("a@example.com", "pending")],
)
def test_a_refused_copy_says_why_and_changes_nothing(admin_client, address, said):
    mail = dead()
    if said == "pending":
        EmailNotification.objects.filter(id=mail.id).update(status="pending")
    page = admin_client.post(copy_page(mail), {"recipient_email": address})
    assert page.status_code == 200 and said in page.content.decode()
    assert EmailNotification.objects.count() == 1 and not LogEntry.objects.exists()


def test_the_message_is_downloaded_as_mime_with_its_headers(admin_client):
    mail = dead(subject="Grüße", body="<p>Bezahlt.</p>", body_text="Bezahlt.")
    answer = admin_client.get(f"/admin/notifications/emailnotification/{mail.id}/message.eml")
    message = email.message_from_bytes(answer.content, policy=email.policy.default)
    assert (message["Subject"], message["To"]) == ("Grüße", "Alice <alice@exampel.com>")
    assert message["Date"].datetime == mail.created_at.replace(microsecond=0)
    parts = [part.get_content_type() for part in message.iter_parts()]
    assert parts == ["text/plain", "text/html"] and answer.headers["Content-Type"] == "message/rfc822"


def test_an_email_that_may_have_been_accepted_says_until_when_it_is_held(admin_client):
    at = dt.datetime.now(dt.UTC)
    mail = dead(errors=[{"at": at.isoformat(), "outcome": "ambiguous", "provider": "sendgrid", "text": ""}])
    page = admin_client.get(f"/admin/notifications/emailnotification/{mail.id}/change/").content.decode()
    assert f"until {at + dt.timedelta(seconds=120):%H:%M:%S}" in page


class TestPreviews:
    def path(self, order: Order, rest: str = "") -> str:
        return f"/admin/orders/order/{order.id}/emails/{rest}"

    def test_any_template_is_shown_with_the_orders_data(self, admin_client):
        order = make_order(reference="A-77")
        page = admin_client.get(
            self.path(order), {"event": "order.completed", "locale": "de"}
        ).content.decode()
        assert "A-77" in page and "As text" in page
        body = admin_client.get(self.path(order, "body/"), {"event": "order.completed", "locale": "de"})
        assert "A-77" in body.content.decode()
        assert body.headers["Content-Security-Policy"].startswith("sandbox")

    def test_an_unknown_template_is_no_page(self, admin_client):
        order = make_order()
        assert admin_client.get(self.path(order, "body/"), {"event": "../x"}).status_code == 404
        assert b"valid choice" in admin_client.get(self.path(order), {"event": "../x"}).content

    def test_it_is_sent_to_the_person_who_looks_and_nothing_is_saved(self, client, settings, smtp):
        order = make_order()
        settings.EMAIL_PROVIDERS = ["smtp"]
        client.force_login(User.objects.create_superuser("rita", "rita@example.com", "x"))
        page = client.post(self.path(order), {"event": "order.paid", "locale": "en"})
        assert b"Sent to rita@example.com" in page.content
        mail = email.message_from_string(*smtp.messages, policy=email.policy.default)
        assert mail["To"] == "rita@example.com" and mail["Subject"].startswith("[Preview] ")
        assert not EmailNotification.objects.exists()
        act = LogEntry.objects.get()
        to = address_hash("rita@example.com")
        assert act.object_id == str(order.id) and act.object_repr == f"Order {order.id}"
        assert act.get_change_message() == (
            f"Sent a preview to their own address. event=order.paid locale=en to=hash:{to}"
        )

    def test_a_refused_preview_writes_a_row_without_the_providers_words(self, client, monkeypatch):
        order = make_order()
        monkeypatch.setattr("orders.admin.previews.send_preview", lambda **_: "no rita@example.com here")
        client.force_login(User.objects.create_superuser("rita", "rita@example.com", "x"))
        client.post(self.path(order), {"event": "order.paid", "locale": "en"})
        said = LogEntry.objects.get().get_change_message()
        assert said.startswith("A preview was refused. event=order.paid") and "rita" not in said

    def test_a_viewer_sends_none(self):
        order = make_order()
        client = staff_client("view_order")
        assert client.post(self.path(order), {"event": "order.paid", "locale": "en"}).status_code == 403
        assert Client().get(self.path(order)).status_code == 302
