"""The page of a Saleor: its one address for who may change it, its channel, and what is still to do."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client

from shop_connections import refresh
from shop_connections.encryption import decrypt
from shop_connections.models import ShopConnection
from tests.admin.test_connections import _key, act, operator, page
from tests.kit.admin import SHOPS
from tests.kit.people import staff_client
from tests.kit.plain_shop import connect
from tests.kit.saleor import FakeSaleor

__all__ = ["_key", "operator"]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
_MANIFEST = re.compile(r"http://testserver(/connect/tea-shop/[\w-]{43}/manifest)")


def is_done(text: str, step: str) -> bool:
    match = re.search(rf'id="step-{step}" data-done="(yes|no)"', text)
    assert match is not None
    return match[1] == "yes"


def test_it_is_added_and_installed_from_its_page(operator, settings):
    settings.CONNECTIONS_PRIVATE = True
    fake = FakeSaleor()
    with fake.serve() as address:
        new = {"source": "tea-shop", "platform": "saleor", "address": address}
        text = html.unescape(operator.post(f"{SHOPS}add/", new, follow=True).content.decode())
        manifest = _MANIFEST.search(text)
        assert manifest is not None and not is_done(text, "install")
        for word in ("Install external app", "HTTP_IP_FILTER_ENABLED", "CONNECTIONS_PRIVATE"):
            assert word in text
        assert fake.install(Client(), manifest[1]).status_code == 200
    shop = ShopConnection.objects.get()
    text = page(operator, shop)
    assert is_done(text, "install") and not refresh.is_due()
    viewer = page(staff_client("view_shopconnection", name="viewer"), shop)
    assert manifest[1] not in viewer and manifest[1].split("/")[3] not in viewer
    before = shop.secret
    offered = re.search(r'name="offered" value="([^"]+)"', text)
    seen = re.search(r'name="seen" value="([^"]+)"', text)
    assert offered is not None and seen is not None
    act(operator, shop, "secret", offered=html.unescape(offered[1]), seen=seen[1])
    ShopConnection.objects.update(installation={**shop.installation, "channel": "poland"})
    operator.post(f"{SHOPS}{shop.id}/change/", {"address": "https://other.example.com"})
    shop.refresh_from_db()
    assert shop.installation == {"channel": "poland"}  # the app and the keys are the former shop's
    assert shop.refresh_at is None and shop.api_secret == ""
    assert shop.secret != before and not is_done(page(operator, shop), "install")  # its posts come no more


def test_its_channel_is_chosen(operator):
    operator.post(
        f"{SHOPS}add/", {"source": "tea-shop", "platform": "saleor", "address": "https://tea.example.com"}
    )
    shop = ShopConnection.objects.get()
    assert not is_done(page(operator, shop), "channel")
    assert "not changed" in act(operator, shop, "channel", channel="a b").lower() or not shop.installation
    assert "poland" in act(operator, shop, "channel", channel=" poland ")
    assert shop.installation == {"channel": "poland"}
    text = page(operator, shop)
    assert is_done(text, "channel") and 'value="poland"' in text
    assert "all channels" in act(operator, shop, "channel", channel="")
    assert shop.installation == {"channel": ""}


def test_who_may_only_add_one_is_told_the_address_to_install_it_from():
    new = {"source": "tea-shop", "platform": "saleor", "address": "https://tea.example.com"}
    answer = staff_client("add_shopconnection", name="adder").post(f"{SHOPS}add/", new)
    secret = decrypt(ShopConnection.objects.get().secret)
    text = re.sub("<[^>]+>", "", answer.content.decode())
    assert f"from this address: http://testserver/connect/tea-shop/{secret}/manifest" in text


@pytest.mark.parametrize(("platform", "action"), [("saleor", "key"), ("woocommerce", "channel")])
def test_a_button_of_another_platform_does_nothing(operator, platform, action):
    shop = connect(platform=platform)
    values = {"action": action, "key": "k", "key_secret": "s", "channel": "poland"}
    assert operator.post(f"{SHOPS}{shop.id}/act/", values).status_code == 404
    shop.refresh_from_db()
    assert (shop.api_key, shop.installation) == ("", {})
