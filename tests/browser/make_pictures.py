"""Make the pictures of README and docs: `make pictures`. Fixtures start the servers and Chromium.

The admin shows the history of 30 days (`history`), the mailbox the e-mails of a drain. `make docs`
puts the diagrams into the pages, so that these need not load Mermaid.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import uuid

import pytest
from django.db.models.functions import Now
from django.test import Client

from connections.encryption import encrypt
from connections.models import ShopConnection
from connections.posts import process_waiting
from local.docs import DIAGRAMS, diagrams, drawing
from local.machine import PROJECT
from local.sandbox.sandbox import Sandbox
from notifications import editing
from operations.demo import place_and_move
from outbox.drain import poll
from tests.browser.brands import send_two_brands, serve_logo
from tests.browser.history import MARK, write_history
from tests.browser.test_texts import PAID, TEXTS
from tests.kit.months import tidy
from tests.kit.orders import pay_order, place_order, ship_order
from tests.kit.texts import READY
from tests.kit.woocommerce import FakeShop
from tests.kit.words import PROVIDERS, EmailNotification, Heartbeat, context, drain, minutes

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
FOLDER = PROJECT / "docs" / "images"
WIDTH = 1180
MERMAID = "12.3.0"
MERMAID_SHA512 = "4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw=="
#: The site's colours, light or dark.
DIAGRAM_CSS = """
    .node rect, .node path { fill: var(--md-default-bg-color); stroke: var(--md-accent-fg-color); }
    .cluster rect { fill: none; stroke: var(--md-default-fg-color--lighter); }
    .node circle.state-start { fill: var(--md-accent-fg-color); }
    .nodeLabel, .nodeLabel p, .edgeLabel p { color: var(--md-typeset-color); background: none; }
    .edgeLabel { background: var(--md-default-bg-color); }
    .transition, .flowchart-link { stroke: var(--md-default-fg-color--light); }
    defs [id$=barbEnd], defs path { fill: var(--md-default-fg-color--light); stroke: none; }
"""


@pytest.fixture
def mailbox(settings, valkey_url):
    with Sandbox() as sandbox, tidy():
        settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_URL": sandbox.api_url}
        settings.HTTPS = False
        drain.reset()
        PROVIDERS["sendgrid"].close()
        yield sandbox
        PROVIDERS["sendgrid"].close()


def test_make_the_pictures(mailbox, open_page, make_page):
    write_history(orders=20_000, days=30)
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
        ("timeline", f"/admin/orders/order/{order_id}/change/", 1180),
        ("providers", "/admin/providers/", 420),
    ):
        for dark in (False, True):
            page = open_page(path, width=WIDTH, height=height, dark=dark)
            page.screenshot(path=FOLDER / f"{name}{'-dark' * dark}.png")
    for dark in (False, True):
        page = make_page(mailbox.url, width=WIDTH, height=560, dark=dark)
        page.goto("/")
        page.screenshot(path=FOLDER / f"mailbox{'-dark' * dark}.png")


def test_make_the_pictures_of_brands(mailbox, settings, open_page, make_page):
    settings.ORDER_SOURCES = ["coffee"]
    leaf, beans = send_two_brands(mailbox)
    for name, path, width, dark in (
        ("brand-leaf", leaf, 680, False),
        ("brand-beans", beans, 390, False),
        ("brand-beans-dark", beans, 390, True),
    ):
        page = make_page(mailbox.url, width=width, height=700, dark=dark)
        serve_logo(page)
        page.goto(path)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=FOLDER / f"{name}.png")


def test_make_the_pictures_of_a_parcel(mailbox, make_page):
    items = [
        {"sku": "A-1", "name": "Darjeeling, 250 g", "quantity": 2, "unit_amount": 1490},
        {"sku": "B-7", "name": "Teapot of cast iron", "quantity": 1, "unit_amount": 6900},
    ]
    for locale in ("en", "de"):
        order = place_order(
            user_id=uuid.uuid4(),
            email=f"{locale}@example.com",
            name="Ann Lee",
            reference="T-1001",
            locale=locale,
            total_amount=9880,
            currency="EUR",
            items=items,
        )
        pay_order(order_id=order.id)
        ship_order(
            order_id=order.id,
            lines=[{"item": 0, "quantity": 2}],
            carrier="DHL",
            tracking_number="00340434161094042557",
            tracking_url="https://parcels.example.com/t/1",
        )
    drain.drain_emails()
    paths = {
        mail.to: f"/mails/{mail.message_id}/html"
        for mail in mailbox.mails
        if mail.custom_args["event_type"] == "order.shipped"
    }
    for name, to, dark in (("parcel", "en@example.com", False), ("parcel-dark", "de@example.com", True)):
        page = make_page(mailbox.url, width=390, height=750, dark=dark)
        page.goto(paths[to])
        page.screenshot(path=FOLDER / f"{name}.png")


def test_make_the_pictures_of_a_connection(settings, open_page):
    """Show the page of a connection before its first post, and in its trial."""
    settings.CONNECTION_KEY, settings.FAST_PATH = ["k" * 40], False
    shop = FakeShop(seed=3)
    row = ShopConnection.objects.create(
        source="tea-shop", address="https://tea.example.com", secret=encrypt(shop.secret)
    )
    path = f"/admin/connections/shopconnection/{row.id}/change/"

    open_page(path, width=WIDTH, height=680).screenshot(path=FOLDER / "connection-new.png")
    for _ in range(3):
        shop.complete(shop.place())
        for headers, body in shop.deliveries():
            sent = {name: value for name, value in headers.items() if name != "Content-Type"}
            answer = Client().post(
                "/connect/tea-shop", body, content_type=headers["Content-Type"], headers=sent
            )
            assert answer.status_code == 202
    process_waiting(seconds=60)
    open_page(path, width=WIDTH, height=900).screenshot(path=FOLDER / "connection-trial.png")


def test_make_the_pictures_of_the_texts(open_page):
    with context.working_for(context.Context("demo-pictures")):
        place_and_move(3)
    texts = {READY: "We **pack** your order today, and write to you as soon as it leaves our house."}
    entries = editing.make_entries(texts, language="en")
    place = {"source": "", "event_type": "order.paid", "language": "en", "username": "ada", "seen_at": ""}
    editing.publish(**place, entries=entries)
    for name, path, width, height, dark in (
        ("texts-list", TEXTS, WIDTH, 560, False),
        ("texts", PAID, WIDTH, 900, False),
        ("texts-dark", PAID, WIDTH, 900, True),
        ("texts-phone", PAID, 390, 844, False),
    ):
        page = open_page(path, width=width, height=height, dark=dark)
        if path == PAID:
            sentence = page.locator(".sentence", has_text="We are now getting your order ready.")
            sentence.get_by_role("textbox").focus()
            page.frame_locator("#preview-html").locator("h1").wait_for()
        page.screenshot(path=FOLDER / f"{name}.png")


def test_draw_the_diagrams(make_page, tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("NPM draws the diagrams")
    subprocess.run(["npm", "pack", "--silent", f"mermaid@{MERMAID}"], cwd=tmp_path, check=True)
    archive = tmp_path / f"mermaid-{MERMAID}.tgz"
    assert base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() == MERMAID_SHA512
    with tarfile.open(archive) as files:
        files.extract("package/dist/mermaid.min.js", tmp_path, filter="data")
    page = make_page("about:blank")
    page.add_script_tag(path=tmp_path / "package/dist/mermaid.min.js")
    shutil.rmtree(DIAGRAMS, ignore_errors=True)
    DIAGRAMS.mkdir()
    for block in diagrams():
        svg = page.evaluate(
            """async ([id, text, css]) => {
                mermaid.initialize({startOnLoad: false, themeCSS: css, fontFamily: "Arial, sans-serif"});
                return (await mermaid.render(id, text)).svg;
            }""",
            [f"diagram-{drawing(block).stem}", block.strip().strip("`").removeprefix("mermaid"), DIAGRAM_CSS],
        )
        drawing(block).write_text(f"{svg}\n")
