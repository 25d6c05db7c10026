"""A NUL, half of a surrogate pair, or bytes that are no UTF-8 in what a browser sends are never a 500.

The requests are made of the URL configuration, and of the forms and links on the pages.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from tests.kit.admin import every_page
from tests.kit.api import make_token
from tests.kit.plain_shop import KEY
from tests.kit.words import new_id

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
#: A NUL, the bytes of a surrogate, and one that UTF-8 does not have. Of a path, a parameter or a field.
BYTES = b"a\x00\xed\xa0\x80\xff"
#: Of a field, which may take JSON, with its escapes.
BAD = [BYTES, b'{"a\\u0000": "", "b": "\\u0000"}', b'{"\\ud800": ""}', b'{"a": "\\ud800"}']
#: Parameters that only a script or a link in a message sends, and those that Django reads of a list.
SENT = {"next", "part", "version"}
OF_LISTS = {"q", "o", "p", "e", "all", "ids", "_popup", "_to_field", "_changelist_filters"}
#: Of these, Django reads only whether they are there, or its test client does not check them.
UNREAD = {"csrfmiddlewaretoken", "_save", "_addanother", "_continue", "_saveasnew"}
#: Pages of Django and of Celery's beat, next to those that `every_page` lists.
MORE = ["/admin/login/", "/admin/password_change/", "/admin/web/apitoken/", "/admin/web/apitoken/add/"]
MORE += [
    f"/admin/{name}/{end}"
    for name in (
        "auth/user",
        "auth/group",
        "notifications/suppression",
        "notifications/mailprofile",
        "django_celery_beat/periodictask",
        "django_celery_beat/intervalschedule",
        "django_celery_beat/crontabschedule",
        "django_celery_beat/clockedschedule",
    )
    for end in ("", "add/")
]


class Form(NamedTuple):
    """A form of a page: where it goes, how, and what a click on its first button would send."""

    action: str
    method: str
    values: dict[str, str]


class Page(HTMLParser):
    """The forms and the parameters of links of a page."""

    def __init__(self, path: str, content: str) -> None:
        super().__init__()
        self.path, self.forms, self.names = path, list[Form](), set[str]()
        self._select = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        name = values.get("name", "")
        if tag == "a":
            self.names.update(name for name, _ in parse_qsl(urlsplit(values.get("href", "")).query))
        elif tag == "form":
            action, method = values.get("action") or self.path, values.get("method", "get").lower()
            self.forms.append(Form(action, method, {}))
        elif self.forms and tag in ("input", "button", "textarea", "select") and name:
            self.forms[-1].values.setdefault(name, values.get("value", ""))
            self._select = name if tag == "select" else ""
        elif self.forms and tag == "option" and self._select:
            value = values.get("value", "")
            if "selected" in values or not self.forms[-1].values.get(self._select):
                self.forms[-1].values[self._select] = value


def routes(resolver: URLResolver | None = None, before: str = "") -> Iterator[str]:
    """Yield each path of the URL configuration, with `<…>` or a group of a pattern for what differs."""
    for pattern in (resolver or get_resolver()).url_patterns:
        path = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, path)
        else:
            assert isinstance(pattern, URLPattern)
            yield path


def failures(client: Client, requests: Iterator[tuple[str, str, bytes]]) -> list[tuple[Any, ...]]:
    client.raise_request_exception = False
    token = {"Authorization": f"Bearer {make_token()}"}
    failed = []
    for method, path, body in requests:
        answer = client.generic(method, path, body, "application/x-www-form-urlencoded", headers=token)
        if answer.status_code >= 500:
            failed.append(
                (answer.status_code, method, path, body[-200:], repr(getattr(answer, "exc_info", ""))[:300])
            )
    return failed


@pytest.fixture(autouse=True)
def _settings(settings: Any) -> None:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.ORDER_SOURCES = [KEY], False, ["shop-a"]
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def test_in_a_path(admin_client: Client) -> None:
    paths = set()
    for route in routes():
        parts = re.split(r"<[^>]+>|\([^)]*\)", re.sub(r"\(\?:([^|)]*)[^)]*\)", r"\1", route))
        if len(parts) > 1:
            paths.add("/" + re.sub(r"[\^$]|\\[AZz]", "", quote(BYTES).join(parts)))
        paths.add("/" + re.sub(r"[\^$]|\\[AZz]", "", "x".join(parts)) + quote(BYTES))
    assert len(paths) > 150
    requests = ((method, path, b"") for path in sorted(paths) for method in ("GET", "POST"))
    assert failures(admin_client, requests) == []


def test_in_a_parameter(admin_client: Client) -> None:
    def requests() -> Iterator[tuple[str, str, bytes]]:
        for path, described in admin_client.get("/api/schema?format=json").json()["paths"].items():
            for name in [each["name"] for each in described.get("get", {}).get("parameters", [])]:
                yield "GET", f"{path.replace('{id}', str(new_id()))}?{quote(name)}={quote(BYTES)}", b""
        for path in dict.fromkeys(urlsplit(path).path for path in [*every_page(), *MORE]):
            content = admin_client.get(path, follow=True).content.decode()
            page = Page(path, content)
            names = {name for form in page.forms for name in form.values if form.method == "get"}
            names |= page.names | SENT
            # A page without a list ignores its parameters, so that they need no request each.
            names |= OF_LISTS if 'id="changelist"' in content else set()
            for query in [*([name] for name in sorted(names)), sorted(OF_LISTS)]:
                yield "GET", f"{path}?{urlencode(dict.fromkeys(query, BYTES))}", b""

    assert failures(admin_client, requests()) == []


def test_in_a_field_of_a_form(admin_client: Client) -> None:
    def requests() -> Iterator[tuple[str, str, bytes]]:
        seen = set()
        for path in dict.fromkeys(urlsplit(path).path for path in [*every_page(), *MORE]):
            page = Page(path, admin_client.get(path, follow=True).content.decode())
            for form in page.forms:
                key = (form.action, form.method, *form.values)
                if form.method != "post" or key in seen or "logout" in form.action:
                    continue
                seen.add(key)
                for name, bad in itertools.product([name for name in form.values if name not in UNREAD], BAD):
                    if bad != BYTES and not form.values[name].startswith(("{", "[")):
                        continue
                    yield "POST", form.action, urlencode({**form.values, name: bad}).encode()
        assert len(seen) > 40

    assert failures(admin_client, requests()) == []
