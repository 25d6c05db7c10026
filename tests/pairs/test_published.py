"""Published templates of the database, and what else makes or keeps the same e-mails."""

from __future__ import annotations

import io
import json
import uuid

import pytest
from django.db import transaction

from tests.kit.api import Api, make_token
from tests.kit.events import told
from tests.kit.logs import shipped_to
from tests.kit.months import Steps
from tests.kit.orders import pay_order, place_order
from tests.kit.profiles import save_profile
from tests.kit.words import EmailNotification, erase_person, render_again, resend, send_copy

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def paid(**fields: object) -> EmailNotification:
    """Return the e-mail of a paid order."""
    order = place_order(**{"user_id": uuid.uuid4(), "email": "ann@example.com", "total_amount": 500} | fields)
    pay_order(order_id=order.id)
    return EmailNotification.objects.get(order_id=order.id, event_type="order.paid", shop_copy_of=None)


def ended(mail: EmailNotification, status: str = "dead_lettered") -> EmailNotification:
    EmailNotification.objects.filter(id=mail.id).update(status=status)
    return mail


def test_rendering_again_uses_the_version_of_now():
    mail = ended(paid())
    version = publish_template(subject="corrected")
    with transaction.atomic():
        (done,), _ = render_again(ids=[mail.id])
    copy = EmailNotification.objects.get(id=done.copy_id)
    assert (copy.subject, copy.template_version) == ("corrected", version.id)
    mail.refresh_from_db()
    assert mail.template_version is None


def test_a_copy_and_a_resend_keep_the_version_of_their_text():
    version = publish_template(subject="old")
    mail = ended(paid())
    publish_template(subject="new")
    copy = EmailNotification.objects.get(id=send_copy(notification_id=mail.id))
    assert (copy.subject, copy.template_version) == ("old", version.id)
    resend(ids=[mail.id])
    mail.refresh_from_db()
    assert (mail.status, mail.subject, mail.template_version) == ("pending", "old", version.id)


def test_a_shop_copy_names_the_version_too():
    save_profile("", from_email="Own <orders@own.test>", copy_to="office@own.test")
    version = publish_template()
    mail = paid()
    copy = EmailNotification.objects.get(shop_copy_of=mail.id)
    assert copy.template_version == mail.template_version == version.id


def test_a_template_of_a_profile_is_that_of_its_shop_alone(settings):
    settings.ORDER_SOURCES = ["shop-b", "shop-c"]
    save_profile("shop-b", shop_name="B")
    save_profile("shop-c", shop_name="C")
    publish_template(subject="{{ shop_name }}, all")
    publish_template(subject="{{ shop_name }} alone", source="shop-b")
    api = Api(make_token())
    for source in settings.ORDER_SOURCES:
        event = told("paid", f"{source}-1", 1, source=source)
        assert api.post("/api/v1/events", event).json()["result"] == "processed"
    paid()
    texts = EmailNotification.objects.order_by("id").values_list("subject", flat=True)
    assert list(texts) == ["B alone", "C, all", "Example Shop, all"]


def test_the_line_of_a_failing_template_names_its_version_next_to_that_of_the_release():
    publish_template(subject="{{ 7 % (name|length - name|length) }}")
    stream = io.StringIO()
    with shipped_to(stream):
        assert paid(name="Ann").template_version is None
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (line,) = (line for line in lines if line["event"] == "template fails")
    assert line["template_version"] == 1 and "." in str(line["version"])


def test_an_erasure_empties_the_email_and_keeps_the_version():
    version = publish_template(subject="Thanks, {{ name }}")
    mail = ended(paid(name="Ann Example"), "discarded")
    erase_person(email="ann@example.com", report=Steps(), force=True)
    mail.refresh_from_db()
    assert "Ann" not in mail.subject and mail.template_version == version.id
    version.refresh_from_db()
    assert version.subject == "Thanks, {{ name }}"
