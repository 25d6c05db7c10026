"""A real Keycloak, and people who log in by it through the documented proxy.

It passed with Keycloak 26.0.8.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
import requests
from allauth.core.context import request_context
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from django.test import RequestFactory

from local.machine import HOST, free_port
from tests.drills.keycloak import CLIENT, PERSON, SECRET, RealKeycloak, fill_in, open_page, why_not
from tests.kit.needs import needs, reason
from tests.kit.shop import Shop
from tests.ops.test_proxy import PROGRAM, Front, proxy_of
from web.login.oidc import IdToken

pytestmark = [pytest.mark.flow, pytest.mark.drill, needs("nginx", PROGRAM)]
PAGE, PAUSES, ANSWER = "/admin/orders/order/", "/admin/runtime/pause/", "/admin/login/oidc/answer/"
#: Lets more than an hour pass for each session since the provider was asked.
_AN_HOUR_LATER = """
from django.contrib.sessions.models import Session
for row in Session.objects.all():
    data = row.get_decoded()
    if "oidc_at" in data:
        data["oidc_at"] -= 3700
        row.session_data = Session.objects.encode(data)
        row.save()
"""


class Browser:
    """A person's browser, which has the cookies of both and follows one redirect after the other."""

    def __init__(self, front: Front) -> None:
        self.session, self.url = front.client(), front.url
        self.asked: list[str] = []

    def get(self, address: str) -> requests.Response:
        """Open a page, and be sent to the provider and back without a click or a password."""
        for _ in range(10):
            if not address.startswith("http"):
                address = f"{self.url}{address}"
            self.asked.append(address)
            answer = open_page(self.session, "GET", address)
            if answer.is_redirect:
                address = answer.headers["Location"]
            elif away := re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', answer.text):
                address = html.unescape(away[1])
            else:
                return answer
        raise AssertionError(f"a circle: {self.asked}")

    def log_in(self) -> requests.Response:
        """Log in, also at the provider."""
        page = self.get(f"/admin/login/oidc/?next={PAGE}")
        if page.url.startswith(self.url):  # it knows the person
            return page
        return self.get(fill_in(self.session, page))

    def is_in(self, page: str = PAGE) -> bool:
        """Return whether a page opens without asking anybody."""
        answer = open_page(self.session, "GET", f"{self.url}{page}")
        return answer.status_code == 200 and "http-equiv" not in answer.text


class World:
    def __init__(self, keycloak: RealKeycloak, front: Front) -> None:
        self.keycloak, self.front, self.shop = keycloak, front, front.shop

    def wait_an_hour(self) -> None:
        self.shop.manage("shell", "-c", _AN_HOUR_LATER)

    def groups(self) -> list[str]:
        rows = self.shop.query(
            "SELECT g.name FROM auth_group g JOIN auth_user_groups m ON m.group_id = g.id"
            f" JOIN auth_user u ON u.id = m.user_id WHERE u.username = '{PERSON}' ORDER BY 1"
        )
        return [name for (name,) in rows]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if why := why_not():
        pytest.skip(reason("java and maven", why))
    port = free_port()
    settings: dict[str, Any] = {
        **{"HTTPS": "on", "TRUSTED_PROXIES": HOST, "OIDC_ISSUER": f"http://{HOST}:{port}/realms/shop"},
        **{"OIDC_CLIENT_ID": CLIENT, "OIDC_CLIENT_SECRET": SECRET},
        "OIDC_GROUP_MAP": "shop-support=support@*,shop-ops=operator@*",
    }
    folder = tmp_path_factory.mktemp("keycloak")
    with Shop(**settings) as shop, proxy_of(shop) as front:
        redirect = f"{front.url}{ANSWER}"
        with RealKeycloak(folder, port=port, redirect=redirect) as keycloak:
            shop.start("web")
            yield World(keycloak, front)


@pytest.fixture
def browser(world: World) -> Browser:
    world.keycloak.end_sessions()
    world.keycloak.set_groups("shop-support", "others")
    return Browser(world.front)


def test_a_person_logs_in_through_the_proxy_and_has_the_rights_of_the_groups(
    world: World, browser: Browser
) -> None:
    answer = browser.log_in()
    assert (answer.status_code, answer.url) == (200, f"{browser.url}{PAGE}"), answer.text
    assert world.groups() == ["support"] and not browser.is_in(PAUSES)
    [address] = [address for address in browser.asked if "/openid-connect/auth?" in address]
    asked = parse_qs(urlsplit(address).query)
    assert asked["redirect_uri"] == [f"{world.front.url}{ANSWER}"] and asked["nonce"]
    assert asked["code_challenge_method"] == ["S256"]
    assert any(cookie.name == "sessionid" and cookie.secure for cookie in browser.session.cookies)


def test_the_renewal_is_silent_while_the_person_is_logged_in_there(world: World, browser: Browser) -> None:
    browser.log_in()
    world.wait_an_hour()
    assert not browser.is_in()
    browser.asked.clear()
    answer = browser.get(f"{PAGE}?status=paid")
    assert (answer.status_code, answer.url) == (200, f"{browser.url}{PAGE}?status=paid")
    assert any("prompt=none" in address for address in browser.asked)
    world.keycloak.end_sessions()
    world.wait_an_hour()
    answer = browser.get(PAGE)
    assert urlsplit(answer.url).path == "/admin/login/" and not browser.is_in()


def test_a_group_that_is_taken_away_ends_the_open_session_within_the_hour(
    world: World, browser: Browser
) -> None:
    browser.log_in()
    world.keycloak.set_groups("others")
    assert browser.is_in()  # the claim is an hour's
    world.wait_an_hour()
    answer = browser.get(PAGE)
    assert answer.status_code == 403 and "None of your groups" in answer.text
    assert not browser.is_in() and world.groups() == []


def test_the_next_login_has_the_rights_of_the_groups_of_then(world: World, browser: Browser) -> None:
    browser.log_in()
    world.keycloak.set_groups("shop-ops")
    other = Browser(world.front)
    assert other.log_in().status_code == 200
    assert world.groups() == ["operator"] and other.is_in(PAUSES)
    world.keycloak.set_groups("others")
    answer = Browser(world.front).log_in()
    assert answer.status_code == 403 and "None of your groups" in answer.text
    assert world.groups() == [] and not other.is_in()


def test_a_token_and_a_code_of_another_client_are_refused(
    world: World, browser: Browser, settings: Any
) -> None:
    token, issuer = world.keycloak.id_token_of_other_client(), world.keycloak.issuer
    settings.OIDC_ISSUER, settings.OIDC_CLIENT_SECRET = issuer, SECRET
    request = RequestFactory().get("/")
    with request_context(request):
        settings.OIDC_CLIENT_ID = CLIENT
        with pytest.raises(OAuth2Error, match="Audience"):
            IdToken(request, issuer).decode(token)
        settings.OIDC_CLIENT_ID = "another"
        assert IdToken(request, issuer).decode(token)["preferred_username"] == PERSON
    assert jwt.decode(token, options={"verify_signature": False})["aud"] == "another"
    code, _ = world.keycloak.code_of_other_client()
    page = browser.get(f"/admin/login/oidc/?next={PAGE}")
    state = parse_qs(urlsplit(page.url).query)["state"][0]
    answer = browser.get(f"{ANSWER}?code={code}&state={state}")
    assert answer.status_code == 403 and "its answer is not valid" in answer.text
    assert not browser.is_in()
