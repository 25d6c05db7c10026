"""The declaration of events: each event is named in few files, which docs/guides/extend.md lists."""

from __future__ import annotations

import re

import pytest

from local.machine import PROJECT
from orders.events import Email
from tests.kit.packages import PACKAGES, files_of
from tests.kit.words import EVENTS

#: The code that may name an event.
DECLARES = "orders/events.py"
SERVICES = {"orders/services.py", "orders/shipments.py", "orders/parcels.py"}
SHOWS = {
    "orders/timeline.py",
    "orders/render_again.py",  # which e-mails show what only the event has
    "orders/emails.py",  # the sample order of a preview fits its event
}
#: Where the event of another system is taken, too.
TAKES = {"orders/inbound/external.py", "shop_connections/changes.py"}
#: What a platform's own e-mails are about.
PLATFORMS = ("shop_connections/woocommerce/", "shop_connections/saleor/")
#: Whether cash on delivery was seen, of which the page of going live must speak.
ASKS = {"shop_connections/seen_posts.py", "shop_connections/admin/live.py"}
TOPICS_OF_SHIPMENTS = {
    "order.shipped": "order.shipment.created.v1",
    "order.shipment_updated": "order.shipment.updated.v1",
    "order.delivered": "order.shipment.delivered.v1",
    "order.shipment_returned": "order.shipment.returned.v1",
}
FILES = {DECLARES} | SERVICES | SHOWS | TAKES | ASKS | {"operations/demo.py"}


@pytest.mark.parametrize("event", EVENTS.values(), ids=list(EVENTS))
def test_an_event_is_named_by_its_declaration_and_its_service_alone(event):
    literal = re.compile(rf"""["'](?:{re.escape(event.name)}|{re.escape(event.topic)})["']""")
    naming = {
        str(path.relative_to(PROJECT))
        for path in files_of("config", *PACKAGES)
        if literal.search(path.read_text())
    }
    naming = {path for path in naming if not path.startswith(PLATFORMS)}
    assert DECLARES in naming and naming & SERVICES and naming <= FILES


def test_an_events_name_and_topic_belong_together():
    for name, event in EVENTS.items():
        entity, _, change = name.partition(".")
        assert event.topic == TOPICS_OF_SHIPMENTS.get(name, f"{entity}.order.{change}.v1")
        assert event.schema.exists()


def test_the_events_that_send_an_email_are_by_default_those_that_are_declared_so(settings):
    declared = [name for name, event in EVENTS.items() if event.email is Email.DEFAULT]
    assert declared == settings.NOTIFY_ON
