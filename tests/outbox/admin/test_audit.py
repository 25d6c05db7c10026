"""The audit log: who did what, found by person, thing and time, as CSV too."""

from __future__ import annotations

import csv
import io

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User

from tests.factories import make_mail, staff_client

pytestmark = pytest.mark.django_db
LIST, MAILS = "/admin/admin/logentry/", "/admin/notifications/emailnotification/"


@pytest.fixture
def mail(admin_client):
    mail = make_mail(status="dead_lettered")
    data = {"action": "give_up", "_selected_action": [str(mail.id)], "confirmed": "yes", "reason": "=1+1"}
    admin_client.post(MAILS, data)
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
    (row,) = csv.DictReader(io.StringIO(admin_client.get(f"{LIST}csv/").getvalue().decode("utf-8-sig")))
    assert row["user"] == "admin" and row["id"] == str(mail.id) and "=1+1" in row["said"]


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
