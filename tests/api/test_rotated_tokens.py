"""A token gets a new secret next to the old one, and may be limited to networks."""

from __future__ import annotations

import datetime as dt
import io

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F
from django.test import Client

from tests.kit.api import Api, assert_problem, make_token, order_body
from tests.kit.words import ApiToken
from web.api import first_read
from web.front import callers

pytestmark = pytest.mark.django_db(transaction=True)


def tokens(*words: str) -> str:
    """Run `manage.py tokens`, and return what it prints on stdout."""
    out = io.StringIO()
    call_command("tokens", *words, stdout=out, stderr=io.StringIO())
    return out.getvalue().strip()


def statuses(*secrets: str) -> list[int]:
    return [Api(secret).get("/api/v1/orders").status_code for secret in secrets]


def test_two_secrets_are_taken_and_a_second_rotation_ends_the_oldest():
    first = make_token(name="shop")
    second = tokens("rotate", "shop")
    assert statuses(first, second) == [200, 200]
    third = tokens("rotate", second[:12], "--overlap", "7d")
    assert statuses(first, second, third) == [401, 200, 200]
    assert set(callers._load_digests()) == {ApiToken.digest_of(secret) for secret in (second, third)}
    ApiToken.objects.update(previous_until=F("previous_until") - dt.timedelta(days=8))
    assert statuses(second, third) == [401, 200]
    assert ApiToken.objects.count() == 1


def test_one_is_revoked_by_the_prefix_of_a_secret_that_is_taken():
    first = make_token(name="shop")
    second = tokens("rotate", "shop")
    assert f"the secret before {first[:12]} until" in tokens("list")
    ApiToken.objects.update(previous_until=F("previous_until") - dt.timedelta(days=2))
    with pytest.raises(CommandError, match="There is no token"):
        tokens("revoke", first[:12])
    ApiToken.objects.update(previous_until=F("previous_until") + dt.timedelta(days=2))
    tokens("revoke", first[:12])
    assert statuses(first, second) == [401, 401]


def test_a_key_of_the_old_secret_finds_its_answer_with_the_new_one():
    old = make_token(name="shop")
    answer = Api(old).post("/api/v1/orders", body := order_body(), key="k")
    new = tokens("rotate", "shop")
    again = Api(new).post("/api/v1/orders", body, key="k")
    assert (again.status_code, again.content) == (answer.status_code, answer.content)
    assert again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize("key", [None, "k"])
def test_without_an_overlap_the_old_one_ends_at_once_though_a_process_has_just_read_it(key):
    old = make_token(name="shop")
    first_read.forget()
    assert Api(old).post("/api/v1/orders", order_body(), key="warm").status_code == 201
    tokens("rotate", "shop", "--overlap", "0")
    assert_problem(Api(old).post("/api/v1/orders", order_body(), key=key), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rotate", "nobody"), "There is no token nobody"),
        (("rotate", "twice"), "Several tokens are called twice"),
        (("rotate", "ended"), "There is no token ended"),
        (("rotate", "shop", "--overlap", "1w"), "--overlap must be like 0, 30m, 24h or 7d"),
        (("rotate", "shop", "--overlap", "91d"), "at most 90d"),
        (("create", "x", "--scope", "all", "--networks", "10.0.0.1/8"), "has host bits set"),
    ],
)
def test_a_mistake_changes_nothing(words, says):
    for name in ("shop", "twice", "twice"):
        make_token(name=name)
    make_token(name="ended", revoked_at=dt.datetime.now(dt.UTC))
    before = list(ApiToken.objects.order_by("id").values_list())
    with pytest.raises(CommandError, match=says):
        tokens(*words)
    assert list(ApiToken.objects.order_by("id").values_list()) == before


class TestNetworks:
    @pytest.mark.parametrize(
        ("networks", "address", "is_taken"),
        [
            ([], "203.0.113.9", True),
            (["10.0.0.0/8"], "10.1.2.3", True),
            (["10.0.0.0/8"], "::ffff:10.1.2.3", True),
            (["10.0.0.0/8", "2001:db8::/32"], "2001:db8::1", True),
            (["10.0.0.0/8"], "203.0.113.9", False),
            (["10.0.0.0/8"], "unix:", False),
        ],
    )
    def test_a_token_is_taken_only_from_its_own(self, settings, networks, address, is_taken):
        settings.HTTPS = False
        headers = {"Authorization": f"Bearer {make_token(networks=networks)}"}
        answer = Client().get("/api/v1/orders", headers=headers, REMOTE_ADDR=address)
        if is_taken:
            assert answer.status_code == 200
        else:
            assert_problem(answer, 403, "forbidden")

    def test_none_is_made_or_taken_while_each_request_seems_to_come_from_the_proxy(self, settings):
        settings.HTTPS = True
        words = ("create", "shop", "--scope", "orders:read", "--networks", "127.0.0.0/8")
        with pytest.raises(CommandError, match="Set TRUSTED_PROXIES first"):
            tokens(*words)
        settings.TRUSTED_PROXIES = ["127.0.0.1"]
        secret = tokens(*words)
        api = Api(secret)
        assert api.get("/api/v1/orders", X_Forwarded_For="127.0.0.9").status_code == 200
        settings.TRUSTED_PROXIES = []
        assert_problem(api.get("/api/v1/orders"), 403, "forbidden")
