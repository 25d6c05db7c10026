"""An address with a domain in Unicode is stored once, as `xn--`, and found in every spelling."""

from __future__ import annotations

import itertools
import json
import uuid
from io import StringIO
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db.models.functions import Now

from runtime.personal_data import refuse_addresses
from tests.kit.api import api
from tests.kit.events import SHOP, handle, new_id, received, tell, told
from tests.kit.mails import make_mail
from tests.kit.months import Steps
from tests.kit.orders import make_order
from tests.kit.people import confirm_address, grep
from tests.kit.words import (
    ERASED,
    ERASED_ADDRESS,
    AddressGiven,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    Suppression,
    erasure,
    person_export,
)

__all__ = ["api"]  # a fixture
pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
STORED = "Ann@xn--exmple-cua.com"
SPELLINGS = ["Ann@EXÄMPLE.com", "ann@exa\u0308mple.COM", "ANN@XN--EXMPLE-CUA.COM", "ann@ｅｘämple．com"]
IP = "alice@[127.0.0.1]"
COPIES = "/admin/orders/order/copies"
SUPPRESSIONS = "/admin/notifications/suppression/"


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]


def sent(**fields: Any) -> EmailNotification:
    return make_mail(status="sent", order_id=make_order(email=STORED).id, **fields)


def by_address(text: str) -> str:
    return f"/api/v1/notifications?{urlencode({'recipient_email': text})}"


@pytest.mark.parametrize("text", SPELLINGS[:2])
def test_the_api_stores_and_shows_an_order_with_its_domain_in_ascii(api, text):
    body = {"user_id": str(uuid.uuid4()), "email": text, "total_amount": 500}
    answer = api.post("/api/v1/orders", body)
    assert answer.status_code == 201, answer.content
    assert answer.json()["email"] == Order.objects.get().email
    assert Order.objects.get().email.lower() == STORED.lower()


@pytest.mark.parametrize("text", SPELLINGS)
def test_the_api_finds_emails_by_any_spelling(api, text):
    mail = make_mail(recipient_email=STORED)
    make_mail(recipient_email="ann@example.com")
    (shown,) = api.get(by_address(text)).json()["results"]
    assert shown["id"] == str(mail.id)


@pytest.mark.parametrize("text", SPELLINGS)
def test_the_api_finds_orders_by_any_spelling(api, text):
    order = make_order(email=STORED)
    make_order(email="ann@example.com")
    (shown,) = api.get(f"/api/v1/orders?{urlencode({'email': text})}").json()["results"]
    assert shown["id"] == str(order.id)


def test_another_systems_event_stores_it_too():
    id = new_id()
    assert tell("paid", id, 1, email="Ann@Exämple.com") == "done"
    assert Order.objects.get(id=id).email == STORED
    assert EmailNotification.objects.get().recipient_email == STORED


def test_a_copy_and_a_correction_store_it_by_api_and_admin(api, admin_client):
    mail = make_mail(status="sent", order_id=make_order(email="wrong@example.com").id)
    body = {"recipient_email": "Ann@EXÄMPLE.com", "update_order": True}
    answer = api.post(f"/api/v1/notifications/{mail.id}/copies", body)
    assert answer.json()["recipient_email"] == Order.objects.get(id=mail.order_id).email == STORED
    Order.objects.update(email="wrong@example.com")
    assert admin_client.post(f"{COPIES}/{mail.id}/", body).status_code == 302
    assert Order.objects.get(id=mail.order_id).email == STORED
    assert EmailNotification.objects.filter(recipient_email=STORED).count() == 2


def test_an_ip_address_is_refused_everywhere_with_what_would_be_right(api, admin_client):
    mail, right = sent(), "use a domain like example.com"
    user = {"user_id": str(uuid.uuid4()), "total_amount": 500}
    for answer in (
        api.post("/api/v1/orders", user | {"email": IP}),
        api.post(f"/api/v1/notifications/{mail.id}/copies", {"recipient_email": IP}),
        api.get(by_address(IP)),
        admin_client.post(f"{COPIES}/{mail.id}/", {"recipient_email": IP}),
        admin_client.post(f"{SUPPRESSIONS}add/", {"address": IP, "reason": "manual"}),
    ):
        assert answer.status_code in (200, 400) and right in answer.content.decode()
    assert not Suppression.objects.exists() and EmailNotification.objects.count() == 1


def test_a_suppression_holds_for_every_spelling(admin_client, api):
    admin_client.post(f"{SUPPRESSIONS}add/", {"address": "Ann@EXÄMPLE.com", "reason": "manual"})
    assert Suppression.objects.count() == 1
    for text in SPELLINGS:
        again = admin_client.post(f"{SUPPRESSIONS}add/", {"address": text, "reason": "manual"})
        assert b"suppressed already" in again.content
        assert b"1 suppression" in admin_client.get(SUPPRESSIONS, {"q": text}).content
        answer = api.post(f"/api/v1/notifications/{sent().id}/copies", {"recipient_email": text})
        assert answer.status_code == 409


@pytest.mark.parametrize("text", [STORED, *SPELLINGS])
def test_the_admin_finds_it_in_every_spelling(admin_client, text):
    mail = sent(recipient_email=STORED)
    make_mail(order_id=make_order(email="ann@example.com").id)
    lists = {"orders/order": mail.order_id, "notifications/emailnotification": mail.id}
    for where, id in lists.items():
        page = admin_client.get(f"/admin/{where}/", {"q": text})
        assert [row.id for row in page.context["cl"].result_list] == [id]
    hits = admin_client.get("/admin/search/", {"q": text}).context["hits"]
    assert {hit.key for hit in hits} == {f"order {mail.order_id}", f"mail {mail.id}"}


@pytest.mark.parametrize(("text", "quoted"), [*itertools.pairwise([STORED, *SPELLINGS, STORED])])
def test_an_export_and_an_erasure_reach_all_that_is_stored_of_it(text, quoted):
    id = new_id()
    assert tell("paid", id, 1, email="Ann@EXÄMPLE.com", name="Ann Smith") == "done"
    event = told("paid", new_id(), 2, email=quoted, totalAmount=-1)
    assert handle(received(event["eventType"], json.dumps(event).encode())) == "dead"
    EmailNotification.objects.update(status="sent", sent_at=Now())
    document = person_export.export_person(email=text, report=Steps())
    assert (document["email"].lower(), len(document["orders"])) == (STORED.lower(), 1)
    assert len(document["email_notifications"]) == len(document["inbound_dead_letters"]) == 1
    out = StringIO()
    call_command("privacy", "erase", "--email", text, "--force", stdout=out)
    assert json.loads(out.getvalue())["changed"] > 1
    assert Order.objects.get(id=id).email == ERASED_ADDRESS
    assert InboundDeadLetter.objects.get().envelope == ERASED
    assert "originalEvent" not in DomainEvent.objects.get(event_type__endswith=".dlt").payload
    assert grep("exmple-cua") == grep("exämple") == grep(quoted.lower()) == []
    again = erasure.erase_person(email=quoted, report=Steps())
    assert again.counts == {}


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_reason_may_not_have_it(text):
    with pytest.raises(AddressGiven):
        refuse_addresses(f"asked by {text} today")


def test_a_preview_goes_to_a_users_address_in_ascii(admin_client, monkeypatch):
    recipients = []
    monkeypatch.setattr(
        "orders.admin.previews.send_preview",
        lambda **arguments: recipients.append(arguments["recipient_email"]),
    )
    page = f"/admin/orders/order/{make_order().id}/emails/"
    for address in ("Staff@exämple.com", "staff@localhost"):
        confirm_address(User.objects.get(), address)
        answer = admin_client.post(page, {"event": "order.paid"}, follow=True)
    assert recipients == ["Staff@xn--exmple-cua.com"]
    assert "Correct your e-mail address" in answer.content.decode()
