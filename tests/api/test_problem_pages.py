"""Every problem leads to a page that says what to do about it."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

from local.machine import PROJECT
from tests.kit.api import Api, assert_problem
from tests.kit.packages import PACKAGES, files_of
from tests.kit.words import find_types
from web.api import problem_types
from web.api.problem_types import Repeat, declare_type
from web.api.problems import not_found


def test_every_type_in_the_code_has_a_page():
    assert Client().get("/api/problems").status_code == 200  # loads the URLs, and so every declaration
    sources = [path.read_text() for path in files_of(*PACKAGES)]
    declared = re.findall(r'declare_type\(\s*slug="([\w-]+)"', "".join(sources))
    assert sorted(declared) == sorted(find_types()) and len(declared) > 20
    assert not any(re.search(r"problem:[a-z]", text) for text in sources)  # only a type makes a URN
    for slug, type in find_types().items():
        page = Client().get(f"/api/problems/{slug}")
        html = page.content.decode()
        assert page.status_code == 200 and page.headers["Content-Type"].startswith("text/html")
        shown = unescape(html)
        for text in (str(type.status), type.title, type.reason, type.advice, type.repeat.value):
            assert text in shown
        assert html.count("<h2>") == 3


def test_the_reference_has_each_type_with_its_status_and_says_which_to_repeat():
    assert Client().get("/api/problems").status_code == 200  # loads the URLs, and so every declaration
    page = (PROJECT / "docs" / "reference" / "api.md").read_text()
    section = page.partition("## Errors\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE))
    listed = {
        do: {
            (int(part[:3]), slug)
            for part in re.sub(r" \([^)]*\)", "", types).split("; ")  # without the members of a problem
            for slug in re.findall(r"`([^`]+)`", part)
        }
        for do, types in rows.items()
        if do != "do"
    }
    types = find_types().values()
    assert set().union(*listed.values()) == {(type.status, type.slug) for type in types}
    [of_servers] = (entries for do, entries in listed.items() if do.startswith("of webhooks and probes"))
    to_repeat = {(type.status, type.slug) for type in types if type.repeat is Repeat.YES}
    assert listed["repeat"] == to_repeat - of_servers


def test_the_list_links_every_page():
    html = Client().get("/api/problems").content.decode()
    assert re.findall(r'href="([^"]+)"', html) == [f"/api/problems/{slug}" for slug in find_types()]


@pytest.mark.parametrize("path", ["/api/problems", "/api/problems/clock"])
def test_a_page_loads_nothing_and_fits_a_phone(path):
    html = Client().get(path).content.decode()
    assert "width=device-width" in html
    assert "<script" not in html and "<link" not in html and "src=" not in html and "url(" not in html


@pytest.mark.parametrize("path", ["/api/problems", "/api/problems/clock"])
def test_a_page_answers_get_and_head_alone(path):
    assert Client().head(path).status_code == 200
    assert_problem(Api().request("POST", path), 405, "method-not-allowed")


@pytest.mark.parametrize("slug", ["nothing", "Clock", "%00", "<script>"])
def test_an_unknown_type_is_404(slug):
    assert_problem(Api().get(f"/api/problems/{slug}"), 404, "not-found")


def test_the_link_has_the_scheme_and_host_of_the_request(api, settings):
    assert api.get("/api/v1/orders/x").json()["help"] == "http://testserver/api/problems/not-found"
    settings.ALLOWED_HOSTS = ["orders.example.com"]
    for path in ("/api/v1/orders/x", "/nothing", "/api/schemas/in/x"):
        problem = api.get(path, Host="orders.example.com").json()
        assert problem["help"] == "http://orders.example.com/api/problems/not-found"


def test_the_link_is_a_path_for_a_foreign_host_and_without_a_request(db, settings):
    assert Api().get("/api/v1/orders", Host="evil.example").json()["help"] == "/api/problems/malformed"
    settings.METRICS_TOKEN = "secret"
    assert Api().get("/metrics", Host="bad host!").json()["help"] == "/api/problems/unauthenticated"
    assert b'"/api/problems/not-found"' in not_found().response().content


def test_two_types_have_two_slugs(monkeypatch):
    monkeypatch.setattr(problem_types, "_types", {})
    words = {"slug": "x", "title": "X", "reason": "X.", "advice": "X."}
    declare_type(status=400, **words)
    with pytest.raises(ValueError, match="'x'"):
        declare_type(status=401, **words)
