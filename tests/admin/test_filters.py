"""A filter that PostgreSQL refuses is answered as any other wrong filter."""

from __future__ import annotations

import pytest

from tests.kit.admin import EVENTS, JOBS, LETTERS, LOG, MAILS, ORDERS, every_page

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("breakers")]
#: A text column of each list, and whether the list has a file.
LISTS = [
    (ORDERS, "reference", True),
    (MAILS, "event_type", True),
    (EVENTS, "event_type", True),
    (LETTERS, "topic", True),
    (LOG, "change_message", True),
    (JOBS, "action", False),
    ("/admin/notifications/suppression/", "provider", False),
    ("/admin/notifications/mailprofile/", "shop_name", False),
    ("/admin/notifications/emailtemplate/", "source", False),
    ("/admin/web/apitoken/", "name", False),
    ("/admin/runtime/heartbeat/", "name", False),
]


@pytest.mark.parametrize(("lookup", "value"), [("", "a\x00b"), ("__regex", "(")])
@pytest.mark.parametrize(("path", "column", "has_file"), LISTS)
def test_a_filter_that_postgresql_refuses(admin_client, path, column, has_file, lookup, value):
    every_page()
    answer = admin_client.get(path, {f"{column}{lookup}": value})
    assert (answer.status_code, answer.headers["Location"]) == (302, f"{path}?e=1")
    if has_file:
        assert admin_client.get(f"{path}csv/", {f"{column}{lookup}": value}).status_code == 404
