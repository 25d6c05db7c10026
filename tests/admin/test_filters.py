"""A list takes its declared filters and no others, which could read a column that no page shows."""

from __future__ import annotations

import pytest
from django.contrib import admin

from tests.kit.admin import EVENTS, JOBS, LETTERS, LOG, MAILS, ORDERS, every_page
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


@pytest.mark.parametrize("name", ["q", "status", "cause", "since"])
def test_a_declared_one_that_postgresql_refuses_finds_nothing_or_all(admin_client, name):
    answer = admin_client.get(MAILS, {name: "a\x00b"}, follow=True)
    assert answer.status_code == 200
