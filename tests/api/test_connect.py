"""POST /connect/<source>: what a shop signed is stored and answered at once, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.http import JsonResponse
from django.test import Client

from shop_connections import encryption, platforms, receive
from shop_connections.encryption import encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from tests.kit.api import assert_problem
from tests.kit.plain_shop import PLAIN, SECRET, SOURCE, body_of, connect, plain_shop, post, sign

__all__ = ["plain_shop"]
pytestmark = pytest.mark.django_db
BODY = body_of("A-1001", "placed")


def nothing_stored() -> bool:
    return (
        not ConnectionPost.objects.exists() and ShopConnection.objects.get(source=SOURCE).last_post_at is None
    )


class TestStored:
    def test_a_signed_post_is_stored_as_it_came_before_it_is_understood(self, plain_shop):
        for body in (BODY, b"not JSON at all", b'{"id": "\\u0000"}'):
            assert post(body).status_code == 202
        assert [row.body.encode() for row in ConnectionPost.objects.order_by("id")][:2] == [
            BODY,
            b"not JSON at all",
        ]

    def test_the_first_post_begins_the_trial(self, plain_shop):
        ShopConnection.objects.update(state="waiting")
        assert post(BODY).status_code == 202
        shop = ShopConnection.objects.get()
        assert (shop.state, shop.last_post_at is not None) == ("trial", True)

    @pytest.mark.parametrize("state", ["trial", "live"])
    def test_a_later_post_leaves_the_state(self, plain_shop, state):
        ShopConnection.objects.update(state=state)
        post(BODY)
        assert ShopConnection.objects.get().state == state

    def test_a_post_takes_two_statements(self, plain_shop, django_assert_num_queries):
        with django_assert_num_queries(2):
            post(BODY)


class TestRefused:
    @pytest.mark.parametrize(
        "headers",
        [{"X-Signature": ""}, {"X-Signature": "0" * 64}, {"X-Signature": sign(BODY + b" ")}],
        ids=["unsigned", "forged", "another body's"],
    )
    def test_a_post_without_the_right_signature(self, plain_shop, headers):
        assert_problem(post(BODY, **headers), 401, "unsigned")
        assert nothing_stored()

    def test_a_post_that_is_signed_with_the_secret_of_another_connection(self, plain_shop):
        connect("shop-v", secret=encrypt("the other's"))
        assert_problem(post(BODY, secret="the other's"), 401, "unsigned")
        assert nothing_stored()

    def test_a_post_to_no_connection_or_to_one_that_is_off(self, plain_shop):
        for name in ("shop-x", "shop%00w", "shop-w%0A"):
            assert_problem(post(BODY, source=name), 404, "not-found")
        ShopConnection.objects.update(state="off")
        assert_problem(post(BODY), 404, "not-found")
        assert nothing_stored()

    def test_a_post_while_the_database_is_away(self, plain_shop, monkeypatch):
        def fail(_: object) -> None:
            raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(type(ShopConnection.objects), "active", fail)
        answer = Client().post(f"/connect/{SOURCE}", BODY, content_type="application/json")  # raises a 500
        assert_problem(answer, 503, "unavailable")

    def test_a_body_of_10_mb(self, plain_shop):
        assert_problem(post(b" " * 10_000_000), 413, "too-large")
        assert nothing_stored()

    @pytest.mark.parametrize("method", ["get", "put", "delete"])
    def test_another_method(self, plain_shop, method):
        answer = getattr(Client(), method)(f"/connect/{SOURCE}")
        assert_problem(answer, 405, "method-not-allowed")

    def test_a_burst_is_stored(self, plain_shop):
        assert {post(BODY).status_code for _ in range(100)} == {202}

    def test_more_posts_than_may_wait(self, plain_shop, monkeypatch):
        monkeypatch.setattr(receive, "MOST_WAITING", 2)
        assert [post(BODY).status_code for _ in range(3)] == [202, 202, 503]
        assert ConnectionPost.objects.count() == 2
        ConnectionPost.objects.update(state="unusable")
        assert post(BODY).status_code == 202

    def test_more_bytes_than_may_wait(self, plain_shop, monkeypatch):
        monkeypatch.setattr(receive, "MOST_WAITING_BYTES", 2 * len(BODY))
        assert [post(BODY).status_code for _ in range(3)] == [202, 202, 503]


class TestPing:
    def test_an_unsigned_ping_is_answered_200_and_nothing_is_stored(self, plain_shop):
        answer = Client().post(f"/connect/{SOURCE}", b"webhook_id=7", "application/x-www-form-urlencoded")
        assert answer.status_code == 200
        assert nothing_stored()


class TestKeys:
    def test_a_changed_key_answers_503_and_stores_nothing(self, plain_shop, settings: Any):
        settings.CONNECTION_KEY = ["x" * 40]
        answer = post(BODY)
        assert_problem(answer, 503, "connection-unreadable")
        assert answer["Retry-After"] == "60"
        assert nothing_stored()

    @pytest.mark.parametrize("keys", [["x" * 40, "k" * 40], ["k" * 40, "x" * 40]])
    def test_a_former_key_still_reads(self, plain_shop, settings: Any, keys):
        settings.CONNECTION_KEY = keys
        assert post(BODY).status_code == 202

    def test_no_key_reads_and_writes_nothing(self, plain_shop, settings: Any):
        settings.CONNECTION_KEY = []
        assert post(BODY).status_code == 503
        with pytest.raises(encryption.KeyMissing):
            encrypt(SECRET)

    def test_a_secret_is_stored_encrypted(self, plain_shop):
        assert SECRET not in ShopConnection.objects.get().secret


class TestPlatforms:
    """What a platform may answer other than by storing a post at the connection's own address."""

    def use(self, monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
        monkeypatch.setitem(platforms.PLATFORMS, "woocommerce", PLAIN._replace(**functions))

    @pytest.mark.parametrize(("verdict", "status"), [("later", 503), ("other", 202), ("no", 401)])
    def test_a_post_that_is_not_stored(self, plain_shop, monkeypatch, verdict, status):
        self.use(monkeypatch, is_authentic=lambda *_, **__: verdict)
        answer = post(BODY)
        assert (answer.status_code, answer.get("Retry-After")) == (status, "60" if status == 503 else None)
        assert nothing_stored()

    def test_a_platform_has_its_own_paths_below_the_address_and_may_take_posts_there_alone(
        self, plain_shop, monkeypatch
    ):
        views = {"key/manifest": lambda *_: JsonResponse({"id": SOURCE}), "key/posts": "posts"}
        self.use(monkeypatch, route=lambda _, rest: views.get(rest))
        client = Client()
        assert client.get(f"/connect/{SOURCE}/key/manifest").json() == {"id": SOURCE}
        assert post(BODY).status_code == 404
        assert client.get(f"/connect/{SOURCE}/other/manifest").status_code == 404
        assert nothing_stored()
        at = f"/connect/{SOURCE}/key/posts"
        signed = {"X-Signature": sign(BODY)}
        assert client.post(at, BODY, content_type="application/json", headers=signed).status_code == 202
        assert ConnectionPost.objects.count() == 1
