"""Every page of the admin opens for whom may see it, changes nothing by hand, and reads few rows."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from tests.kit.admin import EVENTS, JOBS, LETTERS, LOG, MAILS, ORDERS, every_page, statements_of
from tests.kit.mails import make_mail, make_mails
from tests.kit.orders import make_orders
from tests.kit.people import staff_client
from tests.kit.plans import plan_of, rows_without_index
from tests.kit.words import Order, TrafficSum, minutes, new_id, read_database_time

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("breakers")]
#: Pages that each member of the staff may open. They show only what its permissions give.
OPEN = ("/admin/", "/admin/set-up/", "/admin/search/?q=R-1")


def test_every_page_opens_for_whom_may_see_it_alone(admin_client):
    nobody, stranger = staff_client(), Client()
    for path in every_page():
        assert admin_client.get(path, follow=True).status_code == 200, path
        assert nobody.get(path).status_code == (200 if path in OPEN else 403), path
        assert stranger.get(path).status_code == 302, path


@pytest.mark.parametrize("path", [MAILS, ORDERS, EVENTS, LETTERS, JOBS, LOG])
def test_nothing_is_added_by_hand(admin_client, path):
    assert admin_client.get(f"{path}add/").status_code == 403


def test_nothing_is_changed_or_deleted_by_hand(admin_client):
    for page in (path for path in every_page() if path.endswith("/change/")):
        assert admin_client.post(page, {"status": "sent", "email": "x@example.com"}).status_code == 403, page
        deletion = page.replace("/change/", "/delete/")
        assert admin_client.post(deletion, {"post": "yes"}).status_code == 403, page


def test_the_bare_address_leads_to_the_reference():
    assert Client().get("/").headers["Location"] == "/api/docs"


def test_no_page_of_an_operator_takes_more_than_ten_statements():
    user = User.objects.create_user("operator", is_staff=True)
    user.groups.add(Group.objects.get(name="operator"))
    client = Client()
    client.force_login(user)
    paths = [item["url"] for item in client.get("/admin/").context["menu"]]
    for path in paths:
        client.get(path)  # fills the caches of permissions and content types
    counts = {path: len(statements_of(client, path)) for path in paths}
    assert len(counts) > 8
    assert {path: count for path, count in counts.items() if count > 10} == {}


def fill() -> None:
    """Write many rows of everything that the first page, the lists, and the search read."""
    make_mails(20_000, status="sent")
    make_mails(500, status="dead_lettered")
    make_orders(20_000, owner="own")
    hours = {read_database_time() - timedelta(hours=n): minutes.Sums({"placed": 1}) for n in range(9000)}
    minutes.store(TrafficSum.HOUR, hours)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE email_notifications SET correlation_id = id::text, provider_message_id = 'm' || id"
        )
        cursor.execute("UPDATE orders SET correlation_id = 'c' || id")
        cursor.execute(
            "INSERT INTO django_admin_log (action_time, user_id, object_id, object_repr, action_flag,"
            " change_message) SELECT now() - n * interval '60 s', (SELECT min(id) FROM auth_user), n::text,"
            " 'E-mail', 2, 'Resent.' FROM generate_series(20000, 1, -1) AS n"
        )
        cursor.execute(
            "VACUUM ANALYZE orders, email_notifications, django_admin_log, traffic_sums, outbox_events,"
            " dead_events"
        )


@pytest.mark.django_db(transaction=True)
def test_a_page_over_many_rows_takes_few_statements_and_no_sequential_scan(admin_client):
    fill()
    order = Order.objects.earliest("id")
    searches = [
        *("User77@Example.com", f"c{order.id}", "R-7", str(new_id()), str(order.id)),
        str(make_mail(correlation_id="saga-1").id),
        "saga-1",
    ]
    pages = [
        *("/admin/", "/admin/?range=month", LOG, f"{LOG}?age=1h"),
        *(MAILS, f"{MAILS}?status=dead_lettered", f"{MAILS}?q=User77@Example.com", f"{MAILS}?age=24h"),
        *(f"/admin/search/?q={term}" for term in searches),
    ]
    for path in pages:
        statements = statements_of(admin_client, path)
        assert len(statements) <= 10, path
        for statement in statements:
            if re.match("SELECT|WITH", statement.strip()):
                assert rows_without_index(statement) == {}, f"{path}: {statement}"
                assert "search" not in path or plan_of(statement).visited <= 100, f"{path}: {statement}"
