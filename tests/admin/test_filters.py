"""A list takes its declared filters and no others, which could read a column that no page shows."""

from __future__ import annotations

import pytest
from django.contrib import admin

from tests.kit.admin import (
    EVENTS,
    JOBS,
    LETTERS,
    LOG,
    MAILS,
    ORDERS,
    dead_event,
    every_page,
    make_event,
)
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.people import staff_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]
#: A text column of each list, and whether the list has a file.
LISTS = [
    (ORDERS, "reference", True),
    (MAILS, "to_name", True),
    (EVENTS, "event_type", True),
    (LETTERS, "topic", True),
    (LOG, "change_message", True),
    (JOBS, "action", False),
    ("/admin/notifications/suppression/", "provider", False),
    ("/admin/notifications/mailprofile/", "shop_name", False),
    ("/admin/web/apitoken/", "name", False),
    ("/admin/runtime/heartbeat/", "name", False),
]


@pytest.mark.parametrize("lookup", ["", "__startswith", "__regex", "__isnull"])
@pytest.mark.parametrize(("path", "column", "has_file"), LISTS)
def test_a_column_is_no_filter(admin_client, path, column, has_file, lookup):
    every_page()
    for page in [path, f"{path}csv/"] if has_file else [path]:
        assert admin_client.get(page, {f"{column}{lookup}": "a"}).status_code == 400


def test_a_jobs_address_cannot_be_guessed():
    client = staff_client("view_bulkjob")
    answers = [client.get(JOBS, {"address__startswith": text}) for text in ("a", "b")]
    assert [answer.status_code for answer in answers] == [400, 400]


def test_every_list_of_ours_reads_only_declared_filters(rf, admin_user):
    request = rf.get("/")
    request.user = admin_user
    for model, page in admin.site._registry.items():
        if model.__module__.startswith(("django.contrib.auth", "django_celery_beat")):
            continue  # their lists are of their libraries
        names = [field.name for field in model._meta.get_fields()]
        declared = {each.parameter_name for each in page.list_filter if hasattr(each, "parameter_name")}
        allowed = {name for name in names if page.lookup_allowed(name, "x", request)}
        assert allowed <= declared, model
        assert not [name for name in names if page.lookup_allowed(f"{name}__startswith", "x", request)], model


def tabs(client, path: str, **query: str) -> dict[str, str]:
    """Return the number of each tab that has one."""
    page = client.get(path, query).context["cl"]
    choices = [
        choice
        for spec in page.filter_specs
        if getattr(spec, "is_tabs", False)
        for choice in spec.choices(page)
    ]
    return {str(choice["display"]): choice["number"] for choice in choices if choice["number"]}


def test_tabs_have_the_numbers_of_the_users_shops_while_nothing_else_is_filtered(admin_client, monkeypatch):
    monkeypatch.setattr("web.admin.tabs.MOST", 3)
    shops = [make_order(source="tea"), make_order(source="jam"), make_order()]
    for order, status in zip(shops, ["dead_lettered", "dead_lettered", "failed"], strict=True):
        make_mail(order_id=order.id, status=status, source=order.source)
    dead_event()
    make_event(retry_count=1)
    numbers = tabs(admin_client, MAILS)
    assert (numbers["dead lettered"], numbers["failed"], numbers["sent"]) == ("2", "1", "0")
    assert tabs(admin_client, MAILS, status="failed") == numbers
    assert tabs(admin_client, MAILS, age="24h") == tabs(admin_client, MAILS, q="jam") == {}
    of_tea = staff_client("view_emailnotification", "view_order", shops=["tea"])
    assert tabs(of_tea, MAILS)["dead lettered"] == tabs(of_tea, ORDERS)["pending"] == "1"
    assert tabs(staff_client("view_order", name="own", shops=["own"]), ORDERS) == {}
    numbers = tabs(admin_client, EVENTS)
    assert (numbers["dead-lettered"], numbers["failing"], numbers["not published"]) == ("1", "1", "1")
    for _ in range(3):
        make_mail(status="pending")
    numbers = tabs(admin_client, MAILS)  # four wait, of which all or all but the failed one were read
    assert numbers["pending"] == "3+" and numbers["dead lettered"] == "2"


@pytest.mark.parametrize("name", ["q", "status", "cause", "since"])
def test_a_declared_one_that_postgresql_refuses_finds_nothing_or_all(admin_client, name):
    answer = admin_client.get(MAILS, {name: "a\x00b"}, follow=True)
    assert answer.status_code == 200
