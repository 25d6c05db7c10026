"""Published own texts, and what else makes or keeps the same e-mails."""

from __future__ import annotations

import threading
import uuid

import pytest
from django.db import transaction

from notifications.content import editing, shop_texts
from tests.kit.api import Api, make_token
from tests.kit.events import told
from tests.kit.mails import ENDED_BY
from tests.kit.months import Steps
from tests.kit.orders import pay_order, place_order
from tests.kit.profiles import save_profile
from tests.kit.texts import HELLO, READY, SUBJECT, publish_texts
from tests.kit.words import EmailNotification, Status, erase_person, render_again, resend, send_copy

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def paid(**fields: object) -> EmailNotification:
    """Return the e-mail of a paid order."""
    order = place_order(**{"user_id": uuid.uuid4(), "email": "ann@example.com", "total_amount": 500} | fields)
    pay_order(order_id=order.id)
    return EmailNotification.objects.get(order_id=order.id, event_type="order.paid", shop_copy_of=None)


def ended(mail: EmailNotification, status: Status = Status.DEAD_LETTERED) -> EmailNotification:
    EmailNotification.objects.filter(id=mail.id).update(status=status, ended_by=ENDED_BY.get(status, ""))
    return mail


def withdraw() -> None:
    editing.withdraw(source="", event_type="order.paid", language="en", username="ann")


def test_rendering_again_uses_the_version_of_now():
    mail = ended(paid())
    version = publish_texts({SUBJECT: "corrected"})
    with transaction.atomic():
        (done,), _ = render_again(ids=[mail.id])
    copy = EmailNotification.objects.get(id=done.copy_id)
    assert (copy.subject, copy.text_versions) == ("corrected", [str(version.id)])
    mail.refresh_from_db()
    assert mail.text_versions is None


def test_rendering_again_after_a_withdrawal_sends_the_original_and_keeps_the_old_email():
    version = publish_texts({SUBJECT: "wrong"})
    mail = ended(paid())
    withdraw()
    with transaction.atomic():
        (done,), _ = render_again(ids=[mail.id])
    copy = EmailNotification.objects.get(id=done.copy_id)
    assert copy.subject.startswith("Payment received") and copy.text_versions is None
    mail.refresh_from_db()
    assert (mail.subject, mail.text_versions) == ("wrong", [str(version.id)])


def test_a_copy_and_a_resend_keep_the_version_of_their_text():
    version = publish_texts({SUBJECT: "old"})
    mail = ended(paid())
    publish_texts({SUBJECT: "new"})
    copy = EmailNotification.objects.get(id=send_copy(notification_id=mail.id))
    assert (copy.subject, copy.text_versions) == ("old", [str(version.id)])
    resend(ids=[mail.id])
    mail.refresh_from_db()
    assert (mail.status, mail.subject, mail.text_versions) == ("pending", "old", [str(version.id)])


def test_a_shop_copy_has_the_same_texts_and_names_the_versions_too():
    save_profile("", from_email="Own <orders@own.test>", copy_to="office@own.test")
    version = publish_texts({READY: "**Soon** [here](https://own.test)"})
    mail = paid()
    copy = EmailNotification.objects.get(shop_copy_of=mail.id)
    assert copy.text_versions == mail.text_versions == [str(version.id)]
    assert "Soon here (https://own.test)" in copy.body_text and copy.body == mail.body


def test_texts_of_a_profile_are_those_of_its_shop_alone(settings):
    settings.ORDER_SOURCES = ["shop-b", "shop-c"]
    save_profile("shop-b", shop_name="B")
    save_profile("shop-c", shop_name="C")
    publish_texts({SUBJECT: "{shop_name}, all"})
    publish_texts({SUBJECT: "{shop_name} alone"}, source="shop-b")
    api = Api(make_token())
    for source in settings.ORDER_SOURCES:
        event = told("paid", f"{source}-1", 1, source=source)
        assert api.post("/api/v1/events", event).json()["result"] == "processed"
    paid()
    texts = EmailNotification.objects.order_by("id").values_list("subject", flat=True)
    assert list(texts) == ["B alone", "C, all", "Example Shop, all"]


def test_texts_that_are_published_while_an_order_is_paid_are_in_all_of_its_email_or_in_none():
    """A process reads a version between two e-mails, and never within one."""
    stop, versions_in_turn = threading.Event(), []
    for text in ("one", "two"):
        publish_texts({SUBJECT: text, READY: text})
        versions_in_turn.append(dict(shop_texts.versions.get()))

    def publish() -> None:
        while not stop.is_set():
            for versions in versions_in_turn:
                value = shop_texts.Published()
                value.update(versions)
                shop_texts.versions.value = value

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        mails = [paid() for _ in range(40)]
    finally:
        stop.set()
        thread.join()
    for mail in mails:
        assert mail.subject in ("one", "two") and f"\n\n{mail.subject}\n\n" in mail.body_text
        assert mail.text_versions is not None and len(mail.text_versions) == 1


def test_an_order_whose_locale_has_no_catalogue_gets_the_english_texts():
    publish_texts({SUBJECT: "Paid!"})
    publish_texts({SUBJECT: "Bezahlt!"}, locale="de")
    subjects = [paid(locale=locale).subject for locale in ("nl", "de-AT", "fr")]
    assert subjects[:2] == ["Paid!", "Bezahlt!"] and subjects[2].startswith("Paiement")


def test_an_erasure_empties_the_email_and_keeps_the_version():
    version = publish_texts({HELLO: "Thanks, {name}"}, event_type="layout")
    mail = ended(paid(name="Ann Example"), Status.DISCARDED)
    assert "Thanks, Ann Example" in mail.body_text
    erase_person(email="ann@example.com", report=Steps(), force=True)
    mail.refresh_from_db()
    assert "Ann" not in mail.body_text and mail.text_versions == [str(version.id)]
    version.refresh_from_db()
    assert version.sentences[0]["text"] == "Thanks, {name}"


def test_the_preview_of_an_erased_persons_order_has_none_of_their_data(admin_client):
    mail = ended(paid(name="Ann Example"), Status.DISCARDED)
    erase_person(email="ann@example.com", report=Steps(), force=True)
    page = f"/admin/notifications/emailtext/edit/layout/en/?order={mail.order_id}"
    answer = admin_client.get(page)
    assert answer.context["order"] and "Hello," in answer.context["email"].body_text
    assert b"Ann" not in answer.content.replace(b"Anna Schmidt", b"")
