"""Every page of the admin in Chromium: accessible in light and dark, no wider than a phone; the keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.db.models.functions import Now
from playwright.sync_api import expect

from local.machine import PROJECT
from notifications.delivery import process
from tests.kit.mails import make_mail
from tests.kit.needs import reason
from tests.kit.orders import make_order
from tests.kit.words import EmailNotification, InboundDeadLetter, OutboxEvent, Pause, new_id

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("_breakers")]
#: axe-core is no part of this repository: `npm install axe-core` in a folder above, or set AXE_CORE.
PLACES = [
    Path(os.environ.get("AXE_CORE", "axe.min.js")),
    *(folder / "node_modules/axe-core/axe.min.js" for folder in (PROJECT, *PROJECT.parents)),
]
RUN_AXE = """(options) => axe.run(document, {iframes: false, ...options})
    .then((result) => result.violations.map(
        (one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`))"""
LISTS = (
    "",
    "set-up/",
    "orders/order/",
    "notifications/emailnotification/",
    "notifications/emailnotification/?status=discarded",  # an empty list
    "notifications/emailnotification/causes/",
    "notifications/emailnotification/providers/",
    "notifications/suppression/",
    "outbox/outboxevent/",
    "outbox/inbounddeadletter/",
    "outbox/bulkjob/",
    "outbox/detachedpartition/",
    "outbox/heartbeat/",
    "outbox/pause/",
    "admin/logentry/",
    "search/?q=R-1",
)


@pytest.fixture
def _breakers(valkey_url):
    process.start_anew()
    yield
    process.start_anew()


def fill() -> list[str]:
    """Write a row of each kind, and pause the relay; return the paths of all pages."""
    Pause.objects.pause(parts=[Pause.Part.RELAY], reason="Kafka moves", username="ann")
    order = make_order()
    mail = make_mail(order_id=order.id, status="dead_lettered", provider="sendgrid", last_error="400: no")
    make_mail(order_id=order.id, status="sent", provider="sendgrid")
    event = OutboxEvent.objects.create(
        aggregate_type="order",
        aggregate_id=order.id,
        event_type="t.v1",
        sequence=1,
        payload={},
        shard=1,
        dead_lettered_at=Now(),
    )
    InboundDeadLetter.objects.create(topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="e")
    rows = (
        f"orders/order/{order.id}/change/",
        f"orders/order/{order.id}/emails/",
        f"notifications/emailnotification/{mail.id}/change/",
        f"outbox/outboxevent/{event.id}/change/",
    )
    return [f"/admin/{path}" for path in (*LISTS, *rows)]


def test_axe_finds_nothing_on_any_page_in_light_and_dark(open_page):
    if (axe := next((path for path in PLACES if path.exists()), None)) is None:
        pytest.skip(reason("axe-core"))
    paths = fill()
    violations = {}
    for dark, rules in ((False, {}), (True, {"runOnly": ["color-contrast", "link-in-text-block"]})):
        page = open_page(paths[0], dark=dark)
        for path in paths:
            answer = page.goto(path)
            assert answer and answer.ok, path
            page.evaluate(axe.read_text())
            if wrong := page.evaluate(RUN_AXE, rules):
                violations[path, dark] = wrong
    assert violations == {}


def test_no_page_is_wider_than_a_phone(open_page):
    paths = fill()
    page = open_page(paths[0], width=390, height=844)
    wide = {}
    for path in paths:
        page.goto(path)
        if over := page.evaluate("document.documentElement.scrollWidth - innerWidth"):
            wide[path] = over
    assert wide == {}


#: The buttons that look as the browser's own, which no style sheet has touched.
BARE = """() => {
    const look = (button) => {
        const style = getComputedStyle(button);
        return [style.backgroundColor, style.borderStyle, style.borderColor].join();
    };
    const bare = document.createElement("button");
    bare.style.all = "revert";
    document.body.append(bare);
    const found = [...document.querySelectorAll("button, input[type=submit]")]
        .filter((one) => one !== bare && one.checkVisibility() && look(one) === look(bare))
        .map((one) => one.textContent);
    bare.remove();
    return found;
}"""


def test_no_button_is_the_browsers_own(open_page):
    paths = fill()
    page = open_page(paths[0])
    bare = {}
    for path in paths:
        page.goto(path)
        if found := page.evaluate(BARE):
            bare[path] = found
    assert bare == {}


def test_what_is_paused_stands_above_everything_else_on_the_first_page(open_page):
    fill()
    page = open_page("/admin/")
    banner, tile = page.get_by_text("Kafka moves").bounding_box(), page.locator(".tile").first.bounding_box()
    assert banner and tile and banner["y"] + banner["height"] <= tile["y"]


def test_keys_move_select_resend_search_and_explain_themselves(open_page):
    for _ in range(3):
        make_mail(status="dead_lettered")
    page = open_page("/admin/notifications/emailnotification/?status=dead_lettered")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    for key in "jjkjx":
        page.keyboard.press(key)
    expect(page.locator("tr.here")).to_have_count(1)
    expect(page.locator("input.action-select").nth(1)).to_be_checked()
    expect(page.locator("input.action-select:checked")).to_have_count(1)
    page.keyboard.press("/")
    page.keyboard.type("jx?")
    expect(page.locator("#searchbar")).to_have_value("jx?")
    page.keyboard.press("Escape")
    page.keyboard.press("r")
    expect(page.get_by_text("will be sent again").first).to_be_visible()
    assert EmailNotification.objects.filter(status="dead_lettered").count() == 3


def test_the_first_page_refreshes_itself_and_stops_while_it_is_hidden(open_page):
    page = open_page("/admin/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "part=1" in request.url else None)
    make_mail(status="dead_lettered")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator(".tile-bad").first).to_contain_text("dead letters")
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    asked.clear()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(300)
    assert asked == []
