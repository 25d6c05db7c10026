"""Who could pass for a Saleor: another app, another connection, another Saleor, another key, an old post."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, hmac, serialization
from django.test import Client
from django.utils import timezone
from prometheus_client import REGISTRY, generate_latest

from shop_connections import refresh
from shop_connections.encryption import decrypt, encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_waiting
from shop_connections.saleor import signature
from shop_connections.saleor.client import SaleorApi
from shop_connections.saleor.signature import clean_keys
from tests.api.test_logs import written
from tests.api.test_sentry import caught
from tests.kit.api import assert_problem
from tests.kit.plain_shop import SOURCE, connect
from tests.kit.saleor import FakeSaleor, encode, global_id, jwk, private_key, sign
from tests.rules.connections.conftest import Talk
from tests.rules.connections.test_saleor_posts import BASE, SECRET, send, shop
from web.api import correlation

__all__ = ["caught", "shop", "written"]
pytestmark = pytest.mark.django_db


def row() -> ShopConnection:
    return ShopConnection.objects.get(source=SOURCE)


def post_of(shop: FakeSaleor) -> tuple[dict[str, str], bytes]:
    shop.place()
    shop.waiting = shop.waiting[-1:]
    (post,) = shop.deliveries()
    return post


def hs256(body: bytes) -> str:
    """Sign with the public key as if it were a secret."""
    head = encode(json.dumps({"alg": "HS256", "kid": "key-0", "crit": ["b64"], "b64": False}).encode())
    public = private_key().public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    mac = hmac.HMAC(public.public_bytes(serialization.Encoding.PEM, form), hashes.SHA256())
    mac.update(head.encode() + b"." + body)
    return f"{head}..{encode(mac.finalize())}"


class TestSignatures:
    @pytest.mark.parametrize(
        "forge",
        [
            lambda body: sign(body, key=1, kid="key-0"),
            lambda body: sign(body + b" "),
            lambda body: sign(body, alg="none"),
            lambda body: sign(body, alg="none").rpartition(".")[0] + ".",
            lambda body: sign(body, alg="HS256"),
            hs256,
            lambda body: sign(body, b64=True),
            lambda body: sign(body, crit=["b64", "exp"]),
            lambda body: sign(body, crit=None),
            lambda body: sign(body, kid=None),
            lambda body: sign(body).replace("..", f".{encode(body)}."),
            lambda body: sign(body) + "=",
            lambda body: "a..b",
            lambda body: "",
            lambda body: "e" * 20_000,
        ],
    )
    def test_another_one_is_refused(self, shop, forge):
        headers, body = post_of(shop)
        assert send(headers | {"Saleor-Signature": forge(body)}, body) == 401
        assert not ConnectionPost.objects.exists()

    def test_that_of_an_unknown_key_is_for_later_and_a_worker_asks_for_the_keys(self, shop):
        headers, body = post_of(shop)
        shop.keys = [jwk(1)]
        headers |= {"Saleor-Signature": sign(body, key=1)}
        assert not refresh.is_due()
        for _ in range(3):
            assert send(headers, body) == 503
        assert row().refresh_at <= timezone.now() + refresh.SOONEST
        asked_at = row().refresh_at
        assert send(headers, body) == 503 and row().refresh_at == asked_at  # many posts ask no more often
        ShopConnection.objects.update(refresh_at=timezone.now())
        assert refresh.is_due() and refresh.refresh_some() is False
        assert send(headers, body) == 202
        assert not refresh.is_due() and row().refresh_at > timezone.now() + refresh.EVERY / 2
        assert ShopConnection.objects.get().installation["app"] == shop.app

    def test_while_the_shop_is_away_the_keys_stay(self, shop):
        kept = row().installation
        ShopConnection.objects.update(refresh_at=timezone.now(), address="http://127.0.0.1:1")
        refresh.refresh_some()
        assert row().installation == kept
        assert refresh.SOONEST / 2 < row().refresh_at - timezone.now() <= refresh.SOONEST

    @pytest.mark.parametrize(
        "key",
        [
            {**jwk(), "kty": "oct", "k": "c2VjcmV0"},
            {**jwk(), "use": "enc"},
            {**jwk(), "n": "AQAB"},
            {**jwk(), "n": "A" * 100_000},
            {**jwk(), "e": None},
            {**jwk(), "kid": 7},
            {**jwk(), "n": "é"},
            "no key",
        ],
    )
    def test_a_key_that_cannot_verify_is_none(self, shop, key):
        shop.keys = [key, jwk()]
        ShopConnection.objects.update(refresh_at=timezone.now())
        refresh.refresh_some()
        assert row().installation["keys"] == [{name: jwk()[name] for name in ("kid", "n", "e")}]

    def test_of_many_keys_few_are_made(self, monkeypatch):
        made = []
        monkeypatch.setattr(signature, "_make_key", lambda *key: made.append(key))
        keys = clean_keys({**jwk(), "kid": str(number)} for number in range(1000))
        assert len(keys) == len(made) == 20

    def test_of_many_that_cannot_verify_few_are_looked_at(self):
        offered = iter([{"kty": "oct"}] * 1000)
        assert clean_keys(offered) == [] and len(list(offered)) == 800

    def test_keys_that_never_end(self, shop, talk: Talk, monkeypatch):
        monkeypatch.setattr(refresh, "SHOP_SECONDS", 0.5)
        head = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"keys": ['
        address = talk(head, b'{"kty": "RSA"},' * 1000, repeat=True)
        kept = row().installation
        ShopConnection.objects.update(refresh_at=timezone.now(), address=address)
        refresh.refresh_some()
        assert row().installation == kept


class TestOthers:
    def test_another_app_of_the_same_saleor_whose_query_is_like_ours(self, shop):
        """It has a true signature. It knows no address of ours, and its body names it as the recipient."""
        shop.place()
        body = shop.waiting[-1] | {"recipient": {"id": global_id("App", 9)}}
        post = shop.signed(shop._made(body))
        assert send(*post) == 401
        for path in (f"/connect/{SOURCE}", f"/connect/{SOURCE}/posts", f"/connect/{SOURCE}/{'x' * 43}/posts"):
            assert send(*post, path=path) == 404
        assert not ConnectionPost.objects.exists()

    def test_a_post_of_one_connection_at_another(self, shop):
        connect("shop-v", secret=encrypt("v" * 43), platform="saleor", address=shop.address)
        ShopConnection.objects.filter(source="shop-v").update(
            installation=row().installation | {"app": global_id("App", 2)}
        )
        post = post_of(shop)
        assert send(*post, path=f"/connect/shop-v/{SECRET}/posts") == 404
        assert send(*post, path=f"/connect/shop-v/{'v' * 43}/posts") == 401
        assert not ConnectionPost.objects.exists()

    def test_an_order_of_another_channel_is_not_stored(self, shop):
        ShopConnection.objects.update(installation=row().installation | {"channel": "poland"})
        assert send(*post_of(shop)) == 202
        assert not ConnectionPost.objects.exists()

    def test_what_is_signed_and_no_order_is_stored_for_a_person(self, shop):
        for body in (b"[]", b"{", b'{"recipient": {"id": "' + shop.app.encode() + b'"}}'):
            headers, _ = shop.signed({})
            assert send(headers | {"Saleor-Signature": sign(body)}, body) == 202
        process_waiting(seconds=60)
        states = list(ConnectionPost.objects.order_by("id").values_list("state", flat=True))
        assert states == ["unusable", "unusable", "done"]


class TestInstallation:
    def assert_refused(self, answer: Any, said: str) -> None:
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"] and len(answer.json()["error"]["message"]) <= 255

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"token": "of this one"}, "does not know this token"),
            ({"identifier": "orderpost.other"}, "does not know this token"),
            ({"permissions": ["MANAGE_CHECKOUTS"]}, "MANAGE_ORDERS"),
            ({"keys": []}, "no key"),
            ({"answers": [(502, b"<html>", {})]}, "status 502"),
            ({"answers": [(302, b"", {"Location": "https://elsewhere.example/"})]}, "elsewhere.example"),
        ],
    )
    def test_a_token_that_is_not_the_apps(self, shop, change, said):
        """Such as that of another Saleor: only the connection's own is asked."""
        before = ShopConnection.objects.values().get()
        token = shop.token
        vars(shop).update(change)
        self.assert_refused(shop.register(Client(), auth_token=token), said)
        assert ShopConnection.objects.values().get() == before

    @pytest.mark.parametrize("change", [{"address": "https://other.example"}, {"secret": "another"}])
    def test_a_connection_that_changes_while_its_saleor_is_asked(self, shop, monkeypatch, change):
        """The token and the keys are those of the former address."""
        whole = SaleorApi.keys

        def keys(api: SaleorApi) -> Any:
            ShopConnection.objects.update(**change)
            return whole(api)

        monkeypatch.setattr(SaleorApi, "keys", keys)
        before = row()
        self.assert_refused(shop.register(Client(), auth_token=shop.token), "has changed meanwhile")
        assert (row().api_secret, row().installation) == (before.api_secret, before.installation)

    @pytest.mark.parametrize("token", [None, 7, "", "with a blank", "é", "x" * 2000, "\n"])
    def test_what_is_no_token_asks_nobody(self, shop, token):
        self.assert_refused(shop.register(Client(), auth_token=token), "auth_token")
        assert shop.requests == []

    def test_a_body_that_is_too_large_or_no_json(self, shop):
        for body, said in ((b" " * 20_000, "too large"), (b"[]", "auth_token"), (b"{", "auth_token")):
            answer = Client().post(f"{BASE}/register", body, content_type="application/json")
            self.assert_refused(answer, said)

    def test_installing_again_replaces_the_token(self, shop):
        shop.token, shop.app = "u" * 30, global_id("App", 2)
        assert shop.install(Client(), f"{BASE}/manifest").status_code == 200
        assert (decrypt(row().api_secret), row().installation["app"]) == (shop.token, shop.app)
        assert shop.token not in str(ShopConnection.objects.values().get())

    def test_without_the_secret_nothing_is_there(self, shop):
        for rest in ("manifest", "register", "posts", "", "other", "posts/manifest"):
            for secret in ("x" * 43, SECRET[:-1], "", "é"):
                for method in ("get", "post"):
                    answer = getattr(Client(), method)(f"/connect/{SOURCE}/{secret}/{rest}")
                    assert_problem(answer, 404, "not-found")
        assert Client().get(f"{BASE}/other").status_code == 404
        ShopConnection.objects.update(state="off")
        assert Client().get(f"{BASE}/manifest").status_code == 404

    def test_other_methods(self, shop):
        for place, method in (("manifest", "post"), ("register", "get"), ("posts", "get")):
            assert getattr(Client(), method)(f"{BASE}/{place}").status_code == 405

    def test_a_changed_key_answers_503(self, shop, settings):
        settings.CONNECTION_KEY = ["x" * 40]
        assert_problem(Client().get(f"{BASE}/manifest"), 503, "connection-unreadable")
        assert_problem(Client().get(f"/connect/{SOURCE}/other/manifest"), 404, "not-found")

    def test_the_manifest_names_addresses_with_the_secret_and_nobody_stores_it(self, shop):
        answer = Client().get(f"{BASE}/manifest")
        manifest = answer.json()
        assert answer["Cache-Control"] == "no-store"
        assert manifest["tokenTargetUrl"] == f"http://testserver{BASE}/register"
        (webhook,) = manifest["webhooks"]
        assert webhook["targetUrl"] == f"http://testserver{BASE}/posts"
        assert manifest["permissions"] == ["MANAGE_ORDERS"]


class Recorded(dict[str, Any]):
    def set_status(self, *_: object) -> None:
        pass

    def update_name(self, name: str) -> None:
        self["name"] = name

    def set_attribute(self, name: str, value: Any) -> None:
        self[name] = value


def test_the_secret_is_in_no_log_event_span_or_metric(shop, written, caught, monkeypatch):
    spans = []

    def describe(span: Any, request: Any, status: int) -> None:
        spans.append(recorded := Recorded())
        whole(recorded, request, status)

    class Recording:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def is_recording(self) -> bool:
            return True

    whole = correlation._describe
    monkeypatch.setattr(correlation, "_describe", describe)
    monkeypatch.setattr(correlation, "_span", lambda *_: Recording())
    monkeypatch.setattr(correlation.tracing, "traceparent_of", lambda _: "")
    assert send(*post_of(shop)) == 202
    assert Client().get(f"{BASE}/other").status_code == 404
    shop.keys = []
    shop.register(Client())

    def fail(*_: object, **__: object) -> None:
        logging.getLogger("other").warning("asked for %s", f"https://x.example{BASE}/posts?a=1")
        raise RuntimeError(f"{BASE}/posts")

    monkeypatch.setattr("shop_connections.receive.store_post", fail)
    assert send(*post_of(shop)) == 500
    told = json.dumps(written()) + caught.text + str(spans) + generate_latest(REGISTRY).decode()
    assert len(spans) == 4 and caught.events and f"/connect/{SOURCE}/***/posts" in told
    assert SECRET not in told and shop.token not in told
