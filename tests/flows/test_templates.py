"""An editor changes a sentence in the admin, and running processes send the next e-mail with it."""

from __future__ import annotations

import html
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from local.machine import HOST, free_port
from tests.kit.attacks import TYPED
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.flow
PASSWORD = "a-long-password"
PAID = "/admin/notifications/emailtext/edit/order.paid/en/"


@pytest.fixture
def editor(shared_shop) -> Editor:
    user = ("createsuperuser", "--noinput", "--username", "ada", "--email", "ada@example.com")
    if not shared_shop.query("SELECT FROM auth_user WHERE username = 'ada'"):
        shared_shop.manage(*user, DJANGO_SUPERUSER_PASSWORD=PASSWORD)
    return Editor(shared_shop)


class Editor:
    """A user of the admin in a browser without scripts."""

    def __init__(self, shop: Shop) -> None:
        self.base = f"http://{HOST}:{shop.port}"
        self.session = requests.Session()
        login = f"{self.base}/admin/login/"
        self.session.get(login, timeout=PATIENCE)
        answer = self.post("/admin/login/", username="ada", password=PASSWORD)
        assert "sessionid" in self.session.cookies, answer.text

    def post(self, path: str, **values: str) -> requests.Response:
        token = {"csrfmiddlewaretoken": self.session.cookies["csrftoken"]}
        return self.session.post(self.base + path, data=values | token, timeout=PATIENCE)

    def names(self, path: str) -> dict[str, str]:
        """Return the names of the fields by the sentences that they replace, and the page's time."""
        page = self.session.get(self.base + path, timeout=PATIENCE).text
        fields = re.findall(r'<p class="present" id="(text-\w+)-present">(.*?)</p>', page)
        seen_at = re.search(r'name="seen_at" value="([^"]*)"', page)
        assert seen_at and fields, page
        return {html.unescape(text): name for name, text in fields} | {"seen_at": seen_at[1]}


def test_a_published_sentence_reaches_the_next_email_of_every_process_without_a_restart(shared_shop, editor):
    shop = shared_shop
    other = free_port()
    shop.start("web:2", port=other)
    first = shop.place()
    shop.pay(first)
    shop.until(lambda: shop.all_sent(1), "the e-mail of the originals is sent")

    names = editor.names(PAID)
    subject = names["Payment received for your order {reference}"]
    values = {subject: "Thanks from {shop_name}", "seen_at": names["seen_at"], "act": "publish"}
    assert "Version 1 is published." in editor.post(PAID, **values).text
    shop.pay(shop.place())
    shop.until(lambda: shop.all_sent(2), "the e-mail of the own text is sent")
    sent = shop.rows("subject, text_versions IS NULL")
    assert sent[0][0].startswith("Payment received") and sent[0][1]
    assert sent[1] == ("Thanks from Example Shop", False)
    ((id,),) = shop.query("SELECT id FROM email_notifications WHERE text_versions IS NOT NULL")
    page = editor.session.get(
        f"{editor.base}/admin/notifications/emailnotification/{id}/change/", timeout=PATIENCE
    )
    assert "version 1 of order.paid, en</a>" in page.text

    def other_process_has_it() -> bool:
        order = shop.place()
        url = f"http://{HOST}:{other}/api/v1/orders/{order}/pay"
        assert shop.session.post(url, timeout=PATIENCE).status_code == 200
        return bool(shop.rows("subject")[-1] == ("Thanks from Example Shop",))

    shop.until(other_process_has_it, "the other web process has read the version")
    shop.kill("web:2")


def test_attacks_in_the_fields_get_mistakes_while_orders_go_on(shared_shop, editor):
    shop = shared_shop
    preview = f"{PAID}preview/"
    names = editor.names(PAID)
    field = names["We are now getting your order ready."]

    def attack(name: str) -> tuple[str, int]:
        # The newest preview of a user replaces the one before, and a body of 10 MB is refused whole.
        return name, editor.post(preview, **{field: TYPED[name]}).status_code

    with ThreadPoolExecutor(2) as pool:
        attacks = pool.map(attack, TYPED)
        for _ in range(20):
            shop.pay(shop.place())
        answers = dict(attacks)
    assert set(answers.values()) <= {200, 400, 429}, answers
    assert answers["ten megabytes"] == 400 and 200 in answers.values()
    shop.until(lambda: shop.all_sent(20), "the e-mails of the orders are sent")
