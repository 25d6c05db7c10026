"""What orders and e-mails tell a person of the support about copies, bounces and suppressions."""

from __future__ import annotations

import datetime as dt

import pytest
from anymail.signals import AnymailTrackingEvent
from django.utils import timezone

from notifications.filters import narrow
from notifications.models import EmailNotification, EventTimes, Suppression
from notifications.providers.webhook import bounce_text
from notifications.suppressions import SuppressionReason, suppress
from runtime.models import AuditRow
from runtime.personal_data import ERASED_ADDRESS
from tests.kit.admin import MAILS, ORDERS, listed
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.people import staff_client

pytestmark = pytest.mark.django_db


def test_emails_are_filtered_by_what_became_of_them(admin_client):
    now = timezone.now()
    ambiguous = [{"outcome": "ambiguous", "at": now.isoformat(), "provider": "smtp", "text": ""}]
    emails = {
        "": make_mail(status="sent"),
        "delivered": make_mail(status="sent", delivered_at=now),
        "bounced": make_mail(status="sent", bounced_at=now),
        "held": make_mail(status="failed", errors=ambiguous, next_attempt_at=now + dt.timedelta(hours=1)),
    }
    make_mail(status="failed", errors=ambiguous, next_attempt_at=now - dt.timedelta(hours=1))
    for name in ("delivered", "bounced", "held"):
        assert listed(admin_client, MAILS, delivery=name) == [emails[name].id], name
    assert narrow(EmailNotification.objects.all(), {"delivery": "other"}).count() == 5


def test_lists_and_the_orders_page_say_who_sent_a_copy_and_why_there_are_several(admin_client):
    order = make_order(email="ann@example.com")
    first = make_mail(order_id=order.id, status="sent", subject="Paid")
    assert "Why" not in admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
    copy = make_mail(order_id=order.id, status="sent", subject="Paid", resend_of=first.id)
    AuditRow.objects.create(
        kind="copy", who="lena", act=f"Copied as {copy.id}.", order_id=order.id, subject_id=str(first.id)
    )
    assert "Paid (copy, sent by lena)" in admin_client.get(MAILS).content.decode()
    page = admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
    assert "(copy, sent by lena)" in page
    assert "Why 2 e-mails? 1 is about a change of the order and 1 is a copy that lena sent." in page


def test_the_page_of_an_order_refreshes_its_emails_until_none_waits(admin_client):
    order = make_order()
    mail = make_mail(order_id=order.id)
    url = f"{ORDERS}{order.id}/change/"
    assert "data-refresh" in admin_client.get(url).content.decode()
    part = admin_client.get(url, {"part": "1"}).content.decode()
    assert "data-waits" in part and "<html" not in part
    EmailNotification.objects.filter(id=mail.id).update(status="sent", sent_at=timezone.now())
    assert "data-waits" not in admin_client.get(url, {"part": "1"}).content.decode()


def suppressed_email():
    order = make_order(email="ann@example.com")
    bounced = make_mail(
        order_id=order.id, status="sent", bounced_at=timezone.now(), bounce_text="550 no such user"
    )
    mail = make_mail(
        order_id=order.id, status="suppressed", ended_by="suppressed", recipient_email="ann@example.com"
    )
    suppress([SuppressionReason("ann@example.com", Suppression.Reason.HARD_BOUNCE, "smtp", bounced.id)])
    return order, mail


def test_an_order_says_why_an_address_is_suppressed_and_lifts_it_and_resends_in_one_form(admin_client):
    order, mail = suppressed_email()
    page = admin_client.get(f"{ORDERS}{order.id}/change/").content.decode()
    assert "because the address bounced, as smtp reported. Its server said: “550 no such user”" in page
    url = f"{ORDERS}{order.id}/lift/"
    for reason in ("", "ann@example.com says so"):
        admin_client.post(url, {"email": str(mail.id), "reason": reason})
        assert Suppression.objects.count() == 1
    admin_client.post(url, {"email": str(mail.id), "reason": "She emptied her mailbox"})
    mail.refresh_from_db()
    assert (Suppression.objects.count(), mail.status) == (0, "pending")
    acts = AuditRow.objects.filter(order_id=order.id).order_by("id").values_list("kind", "reason")
    assert list(acts) == [("suppression", "She emptied her mailbox"), ("resend", "She emptied her mailbox")]


def test_who_may_not_lift_or_resend_has_no_form(admin_client):
    order, mail = suppressed_email()
    some = ("view_order", "view_emailnotification", "lift_suppression")
    client = staff_client(*some)
    assert b"Lift the suppression" not in client.get(f"{ORDERS}{order.id}/change/").content
    assert client.post(f"{ORDERS}{order.id}/lift/", {"email": str(mail.id), "reason": "x"}).status_code == 403
    Suppression.objects.update(reason="complaint")
    client = staff_client(*some, "resend_emailnotification", name="bea")
    assert b"Lift the suppression" not in client.get(f"{ORDERS}{order.id}/change/").content
    assert client.post(f"{ORDERS}{order.id}/lift/", {"email": str(mail.id), "reason": "x"}).status_code == 403


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("550 5.1.1 <ann@example.com>: no\r\n such user", f"550 5.1.1 <{ERASED_ADDRESS}>: no such user"),
        ("550 " + "x" * 290 + " ann@example.com", "550 " + "x" * 290 + " erase"),  # masked, then cut
        (None, ""),
    ],
)
def test_a_bounce_keeps_what_the_server_said_until_an_erasure(answer, kept):
    event = AnymailTrackingEvent(event_type="bounced", mta_response=answer)
    text = bounce_text(event)
    assert text == kept and len(text) <= 300
    mail, erased = (make_mail(status="sent", recipient_email=to) for to in ("a@b.example", ERASED_ADDRESS))
    times = [EventTimes(id, bounced_at=timezone.now(), bounce_text=text) for id in (mail.id, erased.id)]
    EmailNotification.objects.keep_earliest(times)
    later = [time._replace(bounced_at=timezone.now(), bounce_text="other") for time in times]
    EmailNotification.objects.keep_earliest(later)  # a later one tells nothing new
    mail.refresh_from_db()
    erased.refresh_from_db()
    assert (mail.bounce_text, erased.bounce_text) == (kept, "")
    assert EmailNotification.retention.erased["bounce_text"] == "''"
