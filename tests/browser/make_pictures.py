"""The pictures of the README: `make pictures`. No test; pytest's fixtures start the servers and Chromium.

The admin shows the history of `manage.py demo --days 30`, the mailbox what a drain sends to it.
"""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db.models.functions import Now

from local.machine import PROJECT
from local.sandbox.sandbox import Sandbox
from notifications.delivery import process
from notifications.delivery.drain import poll
from notifications.models import EmailNotification
from notifications.providers.sending import PROVIDERS
from orders.demo import MARK, place_and_move
from outbox.models import Heartbeat
from outbox.telemetry import context
from outbox.traffic import minutes
from tests.outbox.retention.months import tidy

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
FOLDER = PROJECT / "docs" / "images"
WIDTH = 1180


@pytest.fixture
def mailbox(settings, valkey_url):
    with Sandbox() as sandbox, tidy():
        settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_URL": sandbox.api_url}
        settings.HTTPS = False
        process.start_anew()
        PROVIDERS["sendgrid"].close()
        yield sandbox
        PROVIDERS["sendgrid"].close()
    process.start_anew()


def test_make_the_pictures(mailbox, open_page, make_page):
    call_command("demo", "--days", "30")
    with context.working_for(context.Context("demo-pictures")):
        for number in range(1, 25):
            place_and_move(number)
    poll()
    minutes.sum_minutes()
    for name in ("poll", "sums", "partitions", "webhook:sendgrid"):
        Heartbeat.beat(name=name)
    EmailNotification.objects.filter(correlation_id="demo-pictures", status="sent").update(delivered_at=Now())
    sent = EmailNotification.objects.filter(correlation_id=MARK, status="sent")
    order_id = sent.filter(event_type="order.completed").exclude(errors=[]).latest("id").order_id
    mails = "/admin/notifications/emailnotification"
    for name, path, height in (
        ("overview", "/admin/?range=day", 1180),
        ("causes", f"{mails}/causes/", 760),
        ("timeline", f"/admin/orders/order/{order_id}/change/", 860),
        ("providers", f"{mails}/providers/", 420),
    ):
        page = open_page(path, width=WIDTH, height=height)
        page.screenshot(path=FOLDER / f"{name}.png")
    page = make_page(mailbox.url, width=WIDTH, height=560)
    page.goto("/")
    page.screenshot(path=FOLDER / "mailbox.png")
