"""An editor changes the subject in the admin, and running processes send the next e-mail with it."""

from __future__ import annotations

import html
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from local.machine import HOST, free_port
from tests.kit.attacks import ATTACKS
from tests.kit.shop import Shop

pytestmark = pytest.mark.flow
PASSWORD = "a-long-password"
TEMPLATES = "/admin/notifications/emailtemplate/"


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
        self.session.get(login, timeout=30)
        answer = self.post("/admin/login/", username="ada", password=PASSWORD)
        assert "sessionid" in self.session.cookies, answer.text

    def post(self, path: str, **values: str) -> requests.Response:
        token = {"csrfmiddlewaretoken": self.session.cookies["csrftoken"]}
        return self.session.post(self.base + path, data=values | token, timeout=60)

    def fields(self, path: str) -> dict[str, str]:
        """Return the fields of the editor as they are shown."""
        page = self.session.get(self.base + path, timeout=60).text
        texts = dict(re.findall(r'<textarea id="id_\w+" name="(\w+)"[^>]*>\n(.*?)</textarea>', page, re.S))
        seen_at = re.search(r'name="seen_at" value="([^"]+)"', page)
        assert seen_at and set(texts) == {"subject", "body_text", "body_html"}, page
        return {**{name: html.unescape(text) for name, text in texts.items()}, "seen_at": seen_at[1]}


def test_a_published_subject_reaches_the_next_email_of_every_process_without_a_restart(shared_shop, editor):
    shop = shared_shop
    other = free_port()
    shop.start("web:2", port=other)
    first = shop.place()
    shop.pay(first)
    shop.until(lambda: shop.all_sent(1), "the e-mail of the file is sent")

    added = editor.post(f"{TEMPLATES}add/", event_type="order.paid", source="", locale="")
    path = added.url.removeprefix(editor.base)
    values = editor.fields(path) | {"subject": "Thanks from {{ shop_name }}", "act": "publish"}
    assert "Version 1 is published." in editor.post(path, **values).text
    shop.pay(shop.place())
    shop.until(lambda: shop.all_sent(2), "the e-mail of the template is sent")
    sent = shop.rows("subject, template_version IS NULL")
    assert sent[0][0].startswith("Payment received") and sent[0][1]
    assert sent[1] == ("Thanks from Example Shop", False)
    ((id,),) = shop.query("SELECT id FROM email_notifications WHERE template_version IS NOT NULL")
    page = editor.session.get(f"{editor.base}/admin/notifications/emailnotification/{id}/change/", timeout=60)
    assert f'<a href="{path}?version=1">version 1 of order.paid</a>' in page.text

    def other_process_has_it() -> bool:
        order = shop.place()
        url = f"http://{HOST}:{other}/api/v1/orders/{order}/pay"
        assert shop.session.post(url, timeout=30).status_code == 200
        return bool(shop.rows("subject")[-1] == ("Thanks from Example Shop",))

    shop.until(other_process_has_it, "the other web process has read the version")
    shop.kill("web:2")
    assert "template fails" not in shop.log("web") + shop.log("web:2")


def memory_of(pid: int) -> int:
    """Return the resident kilobytes of a process and its children that have its program."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has just exited
            continue
        if pid in (int(lines["Pid"]), int(lines["PPid"])):
            found += int(lines.get("VmRSS", "0 kB").split()[0])
    return found


def test_attacks_in_the_editor_get_errors_while_orders_go_on_and_the_web_does_not_grow(shared_shop, editor):
    shop, pid = shared_shop, shared_shop.processes["web"].pid
    added = editor.post(f"{TEMPLATES}add/", event_type="order.paid", source="", locale="")
    assert added.url.endswith("/change/"), added.text
    preview = added.url.removeprefix(editor.base).replace("change/", "preview/")
    plain = {"subject": "Hello", "body_text": "Hello", "language": "en"}
    assert editor.post(preview, **plain, body_html="<p>{{ name }}</p>").json()["mail"]  # warm
    shop.pay(shop.place())
    before = memory_of(pid)

    def attack(name: str) -> tuple[str, str]:
        answer = editor.post(preview, **plain, body_html=ATTACKS[name][0])
        assert answer.status_code == 200, name
        return name, "; ".join(one["says"] for one in answer.json()["mistakes"])

    with ThreadPoolExecutor(4) as pool:
        attacks = pool.map(attack, ATTACKS)
        for _ in range(40):
            shop.pay(shop.place())
        told = dict(attacks)
    missed = {name: said for name, said in told.items() if ATTACKS[name][1] not in said}
    assert missed == {}
    assert memory_of(pid) - before < 60_000
    shop.until(lambda: shop.all_sent(41), "the e-mails of the orders are sent")
