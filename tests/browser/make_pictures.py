"""Make the pictures of README and docs: `make pictures`. Fixtures start the servers and Chromium.

They show what `manage.py demo` makes, with a logo, and a second connection without posts. `make docs` puts
the diagrams into the pages, so that these need not load Mermaid.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import tarfile
import time

import pytest
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db.models import Count
from django.db.models.functions import Now
from django.urls import reverse

from local.docs import DIAGRAMS, diagrams, drawing
from local.machine import PROJECT
from operations.demo import BRANDS, SHOP
from shop_connections.encryption import encrypt
from shop_connections.models import ShopConnection
from shop_connections.services import make_secret
from tests.browser.brands import LOGO_URL, serve_logo
from tests.browser.test_login import log_in
from tests.kit.commands import polling, provider
from tests.kit.openid import mount_again
from tests.kit.profiles import save_profile
from tests.kit.words import EmailNotification, Heartbeat, Order, minutes

__all__ = ["polling", "provider"]  # fixtures
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


#: A page of the demo -> the words by which the demo names it.
PAGES = {
    "overview": "the first page",
    "causes": "the dead letters by cause",
    "timeline": "an order whose e-mail waited",
    "providers": "the providers",
    "connection-trial": "a connection in trial",
    "texts": "a text, to change a sentence",
}


@pytest.fixture
def demo_pages(provider, polling, settings, capsys) -> dict[str, str]:
    """Run the demo, and what other processes of `make run` would do. Return the paths of `PAGES`."""
    settings.CONNECTION_KEY, settings.HTTPS = ["k" * 40], False
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.ALLOWED_HOSTS = ["*"]
    save_profile(SHOP, **BRANDS[SHOP], logo_url=LOGO_URL)  # the demo keeps it
    call_command("demo")
    lines = re.findall(r"(?m)^ *\d+\.  (\S+)  (.*)$", capsys.readouterr().out)
    EmailNotification.objects.filter(status="sent", delivered_at=None, bounced_at=None).update(
        delivered_at=Now()
    )
    minutes.sum_minutes()
    for name in ("poll", "sums", "partitions", "webhook:sendgrid"):
        Heartbeat.beat(name=name)
    return {name: path for name, words in PAGES.items() for path, said in lines if words in said}


def test_make_the_pictures(demo_pages, provider, open_page, make_page):
    for name, height in (("overview", 1110), ("causes", 766), ("timeline", 700), ("providers", 490)):
        for dark in (False, True):
            page = open_page(demo_pages[name], width=WIDTH, height=height, dark=dark)
            page.screenshot(path=FOLDER / f"{name}{'-dark' * dark}.png")
    for dark in (False, True):
        page = make_page(provider.url, width=WIDTH, height=560, dark=dark)
        page.goto("/")
        page.screenshot(path=FOLDER / f"mailbox{'-dark' * dark}.png")
    make_pictures_of_emails(open_page)
    make_pictures_of_connections(demo_pages["connection-trial"], open_page)
    make_pictures_of_texts(demo_pages["texts"], open_page)


def test_make_the_picture_of_a_saleor(settings, open_page):
    settings.CONNECTION_KEY, settings.HTTPS = ["k" * 40], False
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.ALLOWED_HOSTS = ["*"]
    save_profile("tea-shop", **BRANDS[SHOP])
    secret = encrypt("Q2hvb3NlIGFub3RoZXIgb25lLCBub3QgdGhpcy4gIQ")
    new = ShopConnection(
        source="tea-shop", platform="saleor", address="https://tea.example.com", secret=secret
    )
    new.installation = {"channel": ""}
    new.save()
    page = open_page("/admin/", width=WIDTH, height=900)
    page.route("**/change/", open_behind_proxy)
    page.goto(reverse("admin:connections_shopconnection_change", args=[new.id]))
    page.screenshot(path=FOLDER / "connection-saleor.png")


def test_make_the_picture_of_the_login(make_page, live_server, settings):
    """Show the login, the set-up of an app, and the second factor, next to each other."""
    settings.REQUIRE_MFA, settings.OIDC_ISSUER = True, "https://login.example.com"
    settings.PASSWORD_LOGIN = "ann"
    User.objects.create_superuser("ann", password="right horse battery")
    mount_again()
    page = make_page(live_server.url, width=390, height=600)
    page.goto("/admin/login/")
    shots = [page.screenshot()]
    log_in(page)
    page.get_by_role("link", name="Set up an app with codes").click()
    secret = page.locator("code").inner_text()
    shots.append(page.screenshot())
    page.get_by_label("Code").fill(format_hotp_value(hotp_value(secret, int(time.time()) // 30)))
    page.get_by_role("button", name="Set up").click()
    page.goto("/admin/factors/")
    page.get_by_role("button", name="Log out").click()
    log_in(page)
    page.get_by_role("button", name="Use a passkey").wait_for()
    shots.append(page.screenshot())
    settings.OIDC_ISSUER = ""
    mount_again()
    images = (base64.b64encode(shot).decode() for shot in shots)
    page = make_page("", width=WIDTH, height=600)
    tags = "".join(f'<img src="data:image/png;base64,{image}">' for image in images)
    page.set_content(f'<body style="margin:0; display:flex; gap:5px; background:#888">{tags}')
    page.screenshot(path=FOLDER / "login.png")


def make_pictures_of_emails(open_page):
    parcels = Order.objects.annotate(parcels=Count("shipment")).filter(parcels=2)
    paid = EmailNotification.objects.filter(event_type="order.paid")
    first_parcels = EmailNotification.objects.filter(event_type="order.shipped", order__in=parcels)
    for name, emails, width, height, dark in (
        ("brand-leaf", paid.filter(profile="", locale="en"), 680, 700, False),
        ("brand-beans", paid.filter(profile=SHOP), 390, 700, False),
        ("brand-beans-dark", paid.filter(profile=SHOP), 390, 700, True),
        ("parcel", first_parcels.filter(locale="en"), 390, 750, False),
        ("parcel-dark", first_parcels.filter(locale="de"), 390, 750, True),
    ):
        page = open_page("/admin/", width=width, height=height, dark=dark)
        serve_logo(page)
        page.goto(reverse("admin:notifications_emailnotification_preview", args=[emails.earliest("id").id]))
        page.wait_for_load_state("networkidle")
        page.screenshot(path=FOLDER / f"{name}.png")


def make_pictures_of_connections(trial, open_page):
    """Show the connection of the demo, and a new one of another shop before its first post."""
    new = ShopConnection(source="tea-shop", address="https://tea.example.com")
    make_secret(new)
    new.save()
    page = open_page("/admin/", width=WIDTH, height=1030)
    page.route("**/change/", open_behind_proxy)
    page.goto(reverse("admin:connections_shopconnection_change", args=[new.id]))
    page.screenshot(path=FOLDER / "connection-new.png")
    page = open_page(trial, width=WIDTH, height=1500)
    serve_logo(page)
    page.get_by_text("Preview", exact=True).first.click()
    page.frame_locator("iframe.preview").first.get_by_role("img").wait_for()
    page.screenshot(path=FOLDER / "connection-trial.png")


def open_behind_proxy(route):
    """Let the page name the address of a shop's installation, and not that of this test."""
    headers = {"host": "post.example.com", "x-forwarded-proto": "https"}
    route.fulfill(response=route.fetch(headers=route.request.headers | headers))


def make_pictures_of_texts(path, open_page):
    for dark in (False, True):
        # An order of the shop without a logo: Playwright serves none to a frame that a script fills.
        page = open_page(f"{path}?order=D-00017", width=WIDTH, height=900, dark=dark)
        sentence = page.locator(".sentence", has_text="We are now getting your order ready.")
        sentence.get_by_role("textbox").fill("We **pack** your order today, and write to you when it leaves.")
        page.frame_locator("#preview-html").locator("strong", has_text="pack").wait_for()
        page.frame_locator("#preview-html").get_by_text("D-00017", exact=True).wait_for()
        page.locator(".sentence", has_text="We have received your payment").evaluate(
            "heading => scrollBy(0, heading.getBoundingClientRect().top - 10)"
        )
        page.screenshot(path=FOLDER / f"texts{'-dark' * dark}.png")


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
