"""The audit log: who did what, found by person, thing and time, as CSV too."""

from __future__ import annotations

import csv
import io

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User

from tests.kit.jobs import act
from tests.kit.mails import make_mail
from tests.kit.people import staff_client
from tests.kit.words import address_hash

pytestmark = pytest.mark.django_db
LIST, MAILS = "/admin/admin/logentry/", "/admin/notifications/emailnotification/"


@pytest.fixture
def mail(admin_client):
    mail = make_mail(status="dead_lettered")
    act(admin_client, "give_up", [mail.id], reason="=1+1")
    assert LogEntry.objects.count() == 1
    return mail


@pytest.mark.parametrize("term", ["mail", "admin"])
def test_an_act_is_found_by_its_object_and_by_its_person(admin_client, mail, term):
    staff_client(name="other")
    found = {"mail": str(mail.id), "admin": "admin"}[term]
    assert len(admin_client.get(LIST, {"q": found}).context["cl"].result_list) == 1
    assert len(admin_client.get(LIST, {"q": "other"}).context["cl"].result_list) == 0


def test_filters_narrow_by_time_and_kind_and_the_csv_has_what_the_list_has(admin_client, mail):
    for query, count in (
        ({"age": "1h", "what": "notifications.emailnotification"}, 1),
        ({"what": "orders.order"}, 0),
    ):
        assert len(admin_client.get(LIST, query).context["cl"].result_list) == count
        text = admin_client.get(f"{LIST}csv/", query).getvalue().decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text)))
        assert len(rows) == count
    text = admin_client.get(f"{LIST}csv/", {"q": str(mail.id)}).getvalue().decode("utf-8-sig")
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["user"] == "admin" and row["id"] == str(mail.id) and "=1+1" in row["said"]


LISTS = ("orders/order", "notifications/emailnotification", "outbox/outboxevent", "outbox/inbounddeadletter")


@pytest.mark.parametrize("name", [*LISTS, "admin/logentry"])
def test_each_download_writes_a_row(admin_client, name):
    assert (
        admin_client.get(f"/admin/{name}/csv/", {"age": "1h"} if "dead" not in name else {}).status_code
        == 200
    )
    entry = LogEntry.objects.get()
    assert entry.object_repr == f"list of {name.replace('/', '.')}" and not entry.object_id
    assert entry.get_change_message().startswith("Downloaded as CSV.") and entry.user.username == "admin"


def test_a_downloads_row_has_codes_and_ids_and_a_hash_of_anything_else(admin_client, mail):
    LogEntry.objects.all().delete()
    page = f"{MAILS}csv/"
    for query in (
        {"status": "failed", "since": "2026-11-01", "q": str(mail.id), "p": "1"},
        {"q": " Alice@Example.com", "recipient_email": "alice@example.com", "status": "Alice Smith"},
        {"cause": "Alice Smith", "age": "Smith", "until": "Alice"},
        {"event_type": "order.paid", "provider": "smith"},
    ):
        assert admin_client.get(page, query).status_code == 200
    first, second, third, fourth = LogEntry.objects.order_by("id").values_list("change_message", flat=True)
    assert first == f"Downloaded as CSV. q={mail.id} since=2026-11-01 status=failed"
    hashed = f"hash:{address_hash('alice@example.com')}"
    assert f" q={hashed} recipient_email={hashed} " in f"{second} "
    assert fourth.startswith("Downloaded as CSV. event_type=order.paid provider=hash:")
    for said in (second, third, fourth):
        assert "alice" not in said.lower() and "smith" not in said.lower()


def test_a_refused_download_writes_none(admin_client):
    assert staff_client().get(f"{MAILS}csv/").status_code == 403
    assert admin_client.get(f"{MAILS}csv/", {"nothing": "x"}).status_code == 404
    assert not LogEntry.objects.exists()


def test_a_thing_is_a_link_only_for_whom_may_see_it(admin_client, mail):
    assert f"{MAILS}{mail.id}/change/" in admin_client.get(LIST).content.decode()
    page = staff_client("view_logentry").get(LIST)
    assert page.status_code == 200 and f"{MAILS}{mail.id}" not in page.content.decode()


def test_nobody_changes_it_and_it_needs_its_permission(admin_client, mail):
    entry = LogEntry.objects.get()
    assert admin_client.post(f"{LIST}{entry.pk}/delete/", {"post": "yes"}).status_code == 403
    client = staff_client("view_order")
    assert client.get(LIST).status_code == client.get(f"{LIST}csv/").status_code == 403
    assert User.objects.count() == 2
