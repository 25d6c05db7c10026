"""The admin's pages: every path with a row behind it, what a list shows, and what its file has."""

from __future__ import annotations

import csv
import io
from typing import Any

from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from notifications.models import ProviderTest
from runtime.audit import Actor
from shop_connections.models import ConnectionPost, ShopConnection
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.texts import publish_texts
from tests.kit.words import DomainEvent, InboundDeadLetter, Pause, new_id, pauses

MAILS, ORDERS = "/admin/notifications/emailnotification/", "/admin/orders/order/"
EVENTS, LETTERS = "/admin/events/domainevent/", "/admin/events/inbounddeadletter/"
SHOPS, POSTS = "/admin/connections/shopconnection/", "/admin/connections/connectionpost/"
JOBS, LOG = "/admin/runtime/bulkjob/", "/admin/runtime/auditrow/"
PAGES = (
    "/admin/",
    "/admin/set-up/",
    "/admin/account/",
    "/admin/search/?q=R-1",
    ORDERS,
    MAILS,
    f"{MAILS}?status=discarded",  # an empty list
    f"{MAILS}causes/",
    "/admin/providers/",
    "/admin/notifications/suppression/",
    "/admin/notifications/mailprofile/",
    "/admin/notifications/emailtext/",
    "/admin/notifications/emailtext/edit/layout/de/",
    EVENTS,
    LETTERS,
    f"{LETTERS}refused/",
    SHOPS,
    f"{SHOPS}add/",
    POSTS,
    JOBS,
    "/admin/retention/detachedpartition/",
    "/admin/runtime/heartbeat/",
    "/admin/runtime/pause/",
    LOG,
)


def every_page() -> list[str]:
    """Write a row of each kind, and pause the relay. Return the paths of all pages."""
    pauses.pause(parts=[Pause.Part.RELAY], reason="Kafka moves", by=Actor("ann"))
    order = make_order()
    mail = make_mail(order_id=order.id, status="dead_lettered", provider="sendgrid", last_error="400: no")
    make_mail(order_id=order.id, status="sent", provider="sendgrid")
    event = dead_event(aggregate_id=order.id)
    dead_letter()
    rows = [f"{ORDERS}{order.id}/change/", f"{MAILS}{mail.id}/change/", f"{EVENTS}{event.id}/change/"]
    shop = ShopConnection.objects.create(
        source="tea",
        address="https://tea.example.com",
        state="trial",
        last_post_at=Now(),
        api_key="x",
        statuses={"packed": "paid"},
        parents={"seen": ["7"]},
    )
    post = ConnectionPost.objects.create(source="tea", body="{}", state="unusable", reason="it has no id")
    rows += [f"{SHOPS}{shop.id}/change/", f"{SHOPS}{shop.id}/live/", f"{POSTS}{post.id}/change/"]
    test = ProviderTest.objects.create(provider="sendgrid", address_hash="x", accepted=True, answer="Yes.")
    rows.append(f"/admin/providers/?test={test.id}")
    publish_texts()
    editor = "/admin/notifications/emailtext/edit/order.paid/en/"
    of_order = [f"{ORDERS}{order.id}/emails/", f"{ORDERS}{order.id}/address/", f"{ORDERS}copies/{mail.id}/"]
    return [*PAGES, *rows, editor, *of_order]


def make_event(**fields: Any) -> DomainEvent:
    """Write an event that waits for the relay."""
    values = {"aggregate_type": "t", "aggregate_id": new_id(), "event_type": "t.v1", "sequence": 1}
    return DomainEvent.objects.create(**values | {"payload": {}, "shard": 1} | fields)


def dead_event(**fields: Any) -> DomainEvent:
    return make_event(**{"dead_lettered_at": Now(), "retry_count": 4} | fields)


def dead_letter(**fields: Any) -> InboundDeadLetter:
    values = {"topic": "t.v1", "event_id": new_id(), "consumer": "c", "envelope": "{}", "error": "e"}
    return InboundDeadLetter.objects.create(**values | fields)


def listed(client: Client, path: str, **query: str) -> list[Any]:
    """Return the ids of the rows that a list shows."""
    return [row.pk for row in client.get(path, query).context["cl"].result_list]


def downloaded(client: Client, path: str, **query: str) -> list[dict[str, str]]:
    """Return the rows of a list's file."""
    content = client.get(f"{path}csv/", query).getvalue().decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(content)))


def press(client: Client, path: str, action: str, *ids: object, **fields: str) -> Any:
    """Tick rows of a list, and begin an action on them. `select_across="1"` means all of the list."""
    data = {"action": action, "_selected_action": [str(id) for id in ids]} | fields
    return client.post(path, data, follow=True)


def statements_of(client: Client, path: str, **query: str) -> list[str]:
    """Open a page or a file, and return the statements that it took."""
    with CaptureQueriesContext(connection) as captured:
        answer = client.get(path, query)
        assert answer.status_code in (200, 302)
        b"".join(answer)  # a file reads its rows as it leaves
    return [entry["sql"] for entry in captured]
