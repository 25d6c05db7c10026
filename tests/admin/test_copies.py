"""The admin's page that sends a copy of an e-mail, and what else one e-mail's page offers."""

from __future__ import annotations

import datetime as dt
import email
import email.policy

import pytest

from tests.kit.acts import acts, told_acts
from tests.kit.admin import MAILS, ORDERS
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.people import staff_client
from tests.kit.words import EmailNotification, Order

pytestmark = pytest.mark.django_db


def dead(**fields: object) -> EmailNotification:
    order = make_order(email="alice@exampel.com")
    return make_mail(order_id=order.id, status="dead_lettered", recipient_email="alice@exampel.com", **fields)


def copy_page(mail: EmailNotification) -> str:
    return f"{ORDERS}copies/{mail.id}/"


def test_a_typo_is_corrected_and_the_email_sent_in_two_steps(admin_client):
    mail = dead()
    page = admin_client.get(f"{MAILS}{mail.id}/change/").content.decode()
    assert f'href="{copy_page(mail)}"' in page
    form = admin_client.get(copy_page(mail)).content.decode()
    assert 'value="alice@exampel.com"' in form
    typed = {"recipient_email": "alice@example.com", "update_order": "on", "reason": "she called"}
    answer = admin_client.post(copy_page(mail), typed)
    copy = EmailNotification.objects.get(resend_of=mail.id)
    assert answer.headers["Location"] == f"{MAILS}{copy.id}/change/"
    assert (copy.recipient_email, copy.status) == ("alice@example.com", "pending")
    assert Order.objects.get(id=mail.order_id).email == "alice@example.com"
    log = list(acts().values_list("kind", "subject", "order_id"))
    assert log == [("copy", f"e-mail {mail.id}", mail.order_id)]
    assert told_acts() == [f"Copied as {copy.id}. Corrected the order's address. she called"]


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
    page = client.get(f"{MAILS}{mail.id}/change/").content.decode()
    assert "Send a copy" not in page


def test_the_permission_to_copy_shows_no_recipient():
    mail = dead()
    client = staff_client("copy_emailnotification")
    assert client.get(copy_page(mail)).status_code == 403
    assert client.post(copy_page(mail), {"recipient_email": "a@example.com"}).status_code == 403


@pytest.mark.parametrize(
    ("address", "said"),
    [("nobody", "Use an e-mail address"), ("", "required"), ("a@example.com", "pending")],
)
def test_a_refused_copy_says_why_and_changes_nothing(admin_client, address, said):
    mail = dead()
    if said == "pending":
        EmailNotification.objects.filter(id=mail.id).update(status="pending", ended_by="")
    page = admin_client.post(copy_page(mail), {"recipient_email": address})
    assert page.status_code == 200 and said in page.content.decode()
    assert EmailNotification.objects.count() == 1 and not acts().exists()


def test_the_message_is_downloaded_as_mime_with_its_headers(admin_client):
    mail = dead(subject="Grüße", body="<p>Bezahlt.</p>", body_text="Bezahlt.")
    answer = admin_client.get(f"{MAILS}{mail.id}/message.eml")
    message = email.message_from_bytes(answer.content, policy=email.policy.default)
    assert (message["Subject"], message["To"]) == ("Grüße", "Alice <alice@exampel.com>")
    assert message["Date"].datetime == mail.created_at.replace(microsecond=0)
    parts = [part.get_content_type() for part in message.iter_parts()]
    assert parts == ["text/plain", "text/html"] and answer.headers["Content-Type"] == "message/rfc822"


def test_an_email_that_may_have_been_accepted_says_until_when_it_is_held(admin_client):
    at = dt.datetime.now(dt.UTC)
    mail = dead(errors=[{"at": at.isoformat(), "outcome": "ambiguous", "provider": "sendgrid", "text": ""}])
    page = admin_client.get(f"{MAILS}{mail.id}/change/").content.decode()
    until = at + dt.timedelta(seconds=120 + 60)  # the next full minute
    assert f"until {until:%Y-%m-%d %H:%M} UTC" in page
