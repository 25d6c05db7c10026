"""Every page of the admin in Chromium: accessible in light and dark, no wider than a phone; the keys."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Page, expect

from notifications.models import MailProfile
from shop_connections.encryption import decrypt, encrypt
from shop_connections.models import ShopConnection
from shop_connections.process import process_waiting
from tests.browser.clicks import clicks_on
from tests.kit.admin import MAILS, ORDERS, SHOPS, every_page
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.plain_shop import KEY, connect
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]
AXE = files("axe_playwright_python") / "axe.min.js"
RUN_AXE = """(options) => axe.run(document, {iframes: false, ...options})
    .then((result) => result.violations.map(
        (one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`))"""
WIDER_THAN_THE_WINDOW = "document.documentElement.scrollWidth - innerWidth"
#: The fields for text that show fewer than about ten letters.
NARROW = """() => [...document.querySelectorAll("input[type=search], input[type=text], input[type=email]")]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().width < 100)
    .map((one) => one.name)"""
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


def found_on(page: Page, paths: list[str], script: str, *arguments: object, first: str = "0") -> Any:
    """Open each page, run `first`, and return by path what the script finds wrong there."""
    wrong_by_path = {}
    for path in paths:
        answer = page.goto(path)
        assert answer and answer.ok, path
        page.evaluate(first)
        if wrong := page.evaluate(script, *arguments):
            wrong_by_path[path] = wrong
    return wrong_by_path


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_on_any_page_in_light_and_dark(open_page, dark):
    rules = {"runOnly": ["color-contrast", "link-in-text-block"]} if dark else {}
    paths, page = every_page(), open_page("/admin/", dark=dark)
    assert found_on(page, paths, RUN_AXE, rules, first=AXE.read_text()) == {}


@pytest.mark.parametrize(
    ("script", "width"), [(WIDER_THAN_THE_WINDOW, 390), (NARROW, 390), (NARROW, 1000), (BARE, 1280)]
)
def test_every_page_fits_a_phone_has_room_to_type_and_styles_its_buttons(open_page, script, width):
    paths, page = every_page(), open_page("/admin/", width=width)
    assert found_on(page, paths, script) == {}


def test_the_menu_of_a_phone_names_the_page_and_opens(open_page):
    page = open_page("/admin/providers/", width=390)
    button, link = (
        page.get_by_role("button", name="Menu: Providers"),
        page.get_by_role("link", name="E-mails"),
    )
    expect(link).to_be_hidden()
    button.press("Enter")
    expect(link).to_be_in_viewport(ratio=1)
    button.click()
    expect(link).to_be_hidden()


def test_the_menu_of_a_wide_window_shows_all_groups(open_page):
    page = open_page("/admin/", width=1280)
    expect(page.locator("#menu-button")).to_be_hidden()
    tops = {link.bounding_box()["y"] for link in page.locator("#menu a").all()}
    assert len(tops) == 1


def test_a_row_is_a_card_on_a_phone(open_page):
    make_mail()
    page = open_page(MAILS, width=390)
    cell = page.locator("#result_list .field-recipient")
    label = cell.evaluate("(cell) => getComputedStyle(cell, '::before').content")
    assert label == '"Recipient"'
    assert cell.bounding_box()["width"] < 200
    expect(page.locator("#result_list thead")).not_to_be_in_viewport(ratio=1)


def test_a_long_state_stays_in_its_card_on_a_phone(open_page):
    page = open_page("/admin/providers/", width=390)
    pill = page.locator(".as-cards .pill").first
    pill.evaluate("(pill) => pill.textContent = 'working, but the last 2 failed'")
    card, box = pill.locator("xpath=ancestor::tr").bounding_box(), pill.bounding_box()
    assert box["x"] + box["width"] < card["x"] + card["width"]


def test_what_is_paused_stands_above_everything_else_on_the_first_page(open_page):
    every_page()
    page = open_page("/admin/")
    banner, tile = page.get_by_text("Kafka moves").bounding_box(), page.locator(".tile").first.bounding_box()
    assert banner and tile and banner["y"] + banner["height"] <= tile["y"]


def test_keys_move_select_resend_search_and_explain_themselves(open_page):
    for _ in range(3):
        make_mail(status="dead_lettered")
    page = open_page(f"{MAILS}?status=dead_lettered")
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
    expect(page.locator(".tile-bad", has_text="dead letters")).to_be_visible()
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    asked.clear()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(300)
    assert asked == []


def test_this_browser_is_logged_in_and_counts_the_clicks_of_the_mouse(open_page):
    page = open_page("/admin/runtime/heartbeat/")
    assert page.locator("#user-tools").count() == 1
    page.locator(".breadcrumbs").get_by_role("link", name="Overview").click()
    page.wait_for_url("**/admin/")
    page.go_back()
    page.locator(".breadcrumbs").get_by_role("link", name="Overview").press("Enter")
    page.wait_for_url("**/admin/")
    assert clicks_on(page) == 1


def test_an_error_in_the_console_is_noticed(open_page, console_errors):
    page = open_page("/admin/runtime/heartbeat/")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'x = 1'}))")
    page.wait_for_function("true")
    assert any("Content Security Policy" in text for text in console_errors)
    console_errors.clear()


def test_a_reload_of_the_page_with_a_new_secret_posts_nothing_and_shows_none(open_page, settings):
    settings.CONNECTION_KEY = [KEY]
    shop = connect()
    path = f"{SHOPS}{shop.id}/change/"
    page = open_page(path)
    page.locator("#step-webhook > summary").click()
    page.get_by_text("Make another secret …").click()
    page.get_by_role("button", name="Yes, make another secret").dblclick()
    expect(page.get_by_label("shown only once")).to_be_visible()
    expect(page).to_have_url(re.compile(f"{path}$"))
    shop.refresh_from_db()
    secret = shop.secret
    expect(page.get_by_label("shown only once")).to_have_value(decrypt(secret))
    page.reload()
    expect(page.locator("#step-webhook")).to_be_visible()
    expect(page.get_by_label("shown only once")).to_have_count(0)
    shop.refresh_from_db()
    assert shop.secret == secret


def test_the_steps_of_a_connection_are_ticked_without_a_reload_and_keep_the_secret(open_page, settings):
    settings.CONNECTION_KEY, settings.FAST_PATH = [KEY], False
    page = open_page(f"{SHOPS}add/", width=390)
    page.get_by_role("textbox", name="Name").fill("tea-shop")
    page.get_by_label("Address of the shop").fill("https://tea.example.com")
    page.get_by_role("button", name="Save", exact=True).press("Enter")
    page.locator("#step-webhook > summary").focus()
    secret, shop = page.get_by_label("shown only once").input_value(), ShopConnection.objects.get()
    assert secret == decrypt(shop.secret)
    refresh = "document.dispatchEvent(new Event('visibilitychange'))"
    MailProfile.objects.create(
        source="tea-shop", shop_name="Tea", from_email="a@b.example", postal_address="1 Rd"
    )
    page.evaluate(refresh)
    expect(page.locator("#step-profile")).to_have_attribute("data-done", "yes")
    expect(page.locator("#step-webhook > summary")).to_be_focused()
    fake = FakeShop()
    fake.secret = secret
    post_an_order(fake)
    page.evaluate(refresh)
    expect(page.locator("#step-order")).to_have_attribute("data-done", "yes")
    expect(page.get_by_text("Not sent: trial.")).to_be_visible()
    assert page.get_by_label("shown only once").input_value() == secret
    expect(page.locator("#step-key")).to_have_attribute("open", "")
    page.get_by_label("Key", exact=True).fill("ck_typed")
    post_an_order(fake)
    page.evaluate(refresh)
    expect(page.get_by_text("Not sent: trial.")).to_have_count(2)
    expect(page.get_by_label("Key", exact=True)).to_have_value("ck_typed")
    page.locator("#part-state").get_by_role("link", name="Go live …").press("Enter")
    expect(page.get_by_label("Go live at (UTC)")).to_be_visible()


def test_the_steps_are_ticked_while_the_focus_is_on_a_link_without_an_id(open_page, settings):
    settings.CONNECTION_KEY, settings.FAST_PATH = [KEY], False
    fake = FakeShop()
    shop = connect("tea-shop", platform="woocommerce", state="waiting", secret=encrypt(fake.secret))
    page = open_page(f"{SHOPS}{shop.id}/change/")
    profile = page.get_by_role("link", name="Add the profile (in a new tab)")
    profile.focus()
    post_an_order(fake)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#step-order")).to_have_attribute("data-done", "yes")
    expect(profile).to_be_focused()


def press_after_the_session_ended(page, name: str) -> None:
    """Press a button without a session, log in again, and return to the page."""
    cookies, url = page.context.cookies(), page.url
    page.context.clear_cookies(name="sessionid")
    page.get_by_role("button", name=name, exact=True).click()
    page.wait_for_url("**/login/**")
    page.context.add_cookies(cookies)
    page.goto(url)


def test_what_was_written_comes_back_after_the_session_ended_but_no_secret(open_page, settings):
    settings.CONNECTION_KEY = [KEY]
    page = open_page(f"{SHOPS}{connect().id}/change/#step-statuses")
    word, means = page.get_by_label("Another status"), page.locator("#status-means")
    word.fill("packed")
    means.select_option("paid")
    press_after_the_session_ended(page, "Save the statuses")
    expect(page.get_by_text("What you wrote is here again.")).to_be_visible()
    expect(word).to_have_value("packed")
    expect(means).to_have_value("paid")
    page.locator("#step-key > summary").click()
    page.get_by_label("Key", exact=True).fill("ck_typed")
    press_after_the_session_ended(page, "Save and try it")
    expect(page.get_by_text("What you wrote is here again.")).to_have_count(0)
    assert page.evaluate("JSON.stringify(sessionStorage)") == "{}"


def test_what_was_written_comes_back_after_a_login_in_another_tab_and_not_once_it_is_saved(
    open_page, console_errors
):
    page = open_page("/admin/notifications/mailprofile/add/")
    page.locator("[name=shop_name]").fill("Tea & Co")
    page.locator("[name=from_email]").fill("tea@example.com")
    page.locator("[name=postal_address]").fill("1 Road")
    # The login in the other tab made another token.
    page.locator("[name=csrfmiddlewaretoken]").evaluate_all(
        "fields => fields.forEach((field) => (field.value = 'a'.repeat(64)))"
    )
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("heading", name="Nothing was saved")).to_be_visible()
    console_errors.clear()  # Chromium logs the 403
    page.go_back()
    expect(page.get_by_text("What you wrote is here again.")).to_be_visible()
    expect(page.locator("[name=postal_address]")).to_have_value("1 Road")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url("**/mailprofile/")
    page.goto("/admin/notifications/mailprofile/add/")
    expect(page.locator("[name=postal_address]")).to_have_value("")


@pytest.mark.parametrize("is_secure", [True, False])
def test_an_id_is_copied_by_keyboard_and_the_copy_is_told(open_page, is_secure):
    order = make_order()
    page = open_page("/admin/")
    if is_secure:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.goto(f"{ORDERS}{order.id}/change/")
    page.get_by_role("button", name="Copy ID").press("Enter")
    expect(page.locator("#said")).to_have_text("Copied")
    if is_secure:
        assert page.evaluate("navigator.clipboard.readText()") == str(order.id)
    else:
        assert page.evaluate("getSelection().toString()") == str(order.id)


def post_an_order(fake: FakeShop) -> None:
    fake.place()
    ((headers, body),) = fake.deliveries()
    assert Client().post("/connect/tea-shop", body, "application/json", headers=headers).status_code == 202
    process_waiting(seconds=60)
