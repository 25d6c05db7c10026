"""Every page of the admin opens for whom may see it, changes nothing by hand, and reads few rows."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from tests.kit.admin import EVENTS, JOBS, LETTERS, LOG, MAILS, ORDERS, POSTS, SHOPS, every_page, statements_of
from tests.kit.mails import make_mail
from tests.kit.people import client_of, make_user, staff_client
from tests.kit.plans import plan_of, rows_without_index
from tests.kit.words import EmailNotification, Order, new_id

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
#: The statements that read the minute that runs, for the charts.
RUNNING = 5
#: Pages that each member of the staff may open. They show only what its permissions give.
OPEN = ("/admin/", "/admin/set-up/", "/admin/account/", "/admin/search/?q=R-1")


def test_every_page_opens_for_whom_may_see_it_alone(admin_client):
    nobody, stranger = staff_client(), Client()
    for path in every_page():
        assert admin_client.get(path, follow=True).status_code == 200, path
        assert nobody.get(path).status_code == (200 if path in OPEN else 403), path
        assert stranger.get(path).status_code == 302, path


@pytest.mark.parametrize("path", [MAILS, ORDERS, EVENTS, LETTERS, POSTS, JOBS, LOG])
def test_nothing_is_added_by_hand(admin_client, path):
    assert admin_client.get(f"{path}add/").status_code == 403


def test_nothing_is_changed_or_deleted_by_hand(admin_client):
    pages = [path for path in every_page() if path.endswith("/change/") and SHOPS not in path]
    assert len(pages) == 4
    for page in pages:
        assert admin_client.post(page, {"status": "sent", "email": "x@example.com"}).status_code == 403, page
        deletion = page.replace("/change/", "/delete/")
        assert admin_client.post(deletion, {"post": "yes"}).status_code == 403, page


def test_the_bare_address_leads_to_the_reference():
    assert Client().get("/").headers["Location"] == "/api/docs"


def test_no_page_of_an_operator_takes_more_than_eleven_statements_without_its_charts():
    client = client_of(make_user("operator", group="operator"))
    paths = [item["url"] for item in client.get("/admin/").context["menu"]]
    for path in paths:
        client.get(path)  # fills the caches of permissions and content types
    counts = {path: len(statements_of(client, path)) for path in paths}
    assert len(counts) > 8
    most = dict.fromkeys(("/admin/", "/admin/providers/"), 11 + RUNNING)
    assert {path: count for path, count in counts.items() if count > most.get(path, 11)} == {}


def test_a_page_over_many_rows_takes_few_statements_and_no_sequential_scan(filled, admin_client):
    order = Order.objects.earliest("id")
    searches = [
        *("User77@Example.com", order.correlation_id, "R-7", str(new_id()), str(order.id)),
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
        assert len(statements) <= 11 + RUNNING * (path.partition("?")[0] == "/admin/"), path
        for statement in statements:
            if "AS newest" in statement:
                continue  # reads the newest 10,000 orders (tests/admin/test_search.py)
            if "AS part UNION ALL" in statement:
                continue  # runs without sequential scans (tests/ops/test_minutes.py)
            if re.match("SELECT|WITH", statement.strip()):
                most = 1_001 if "AS few (state)" in statement else 0  # the tabs count so many, of any state
                assert sum(rows_without_index(statement).values()) <= most, f"{path}: {statement}"
                assert "search" not in path or plan_of(statement).visited <= 100, f"{path}: {statement}"


def test_the_pages_of_an_order_and_of_an_email_read_their_own_rows_by_indexes(filled, admin_client):
    mail = EmailNotification.objects.filter(status="sent").latest("id")
    paths = (
        f"{ORDERS}{mail.order_id}/change/",
        f"{MAILS}{mail.id}/change/",
        f"{MAILS}{mail.id}/change/?part=1",
    )
    for path in paths:
        statements = statements_of(admin_client, path)
        assert len(statements) <= 18, path
        for statement in statements:
            if "AS newest" in statement:
                continue  # reads the newest 10,000 orders (tests/admin/test_search.py)
            if re.match("SELECT|WITH", statement.strip()):
                assert rows_without_index(statement) == {}, f"{path}: {statement}"
                assert plan_of(statement).visited <= 100, f"{path}: {statement}"
