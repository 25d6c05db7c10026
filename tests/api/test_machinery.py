"""What happens to every request besides its own work: no session, and no serializer made anew."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.utils.module_loading import import_string
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.utils.formatting import lazy_format

from notifications.api.serializers import NotificationQuery
from orders.api.serializers import OrderQuery
from orders.bodies import CancelBody, RefundBody
from tests.kit.api import order_body
from tests.kit.waiting import PATIENCE
from tests.kit.words import OrderBody
from web.api.fields import cached_serializer

#: What `config.pages.skip_page_middleware` leads requests of the API past.
OF_PAGES = [
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "axes.middleware.AxesMiddleware",
]


def test_the_api_and_webhooks_run_no_middleware_of_pages_and_the_admin_runs_all(
    api, admin_client, monkeypatch
):
    called: list[str] = []

    def record(name: str) -> None:
        middleware = import_string(name)
        real = middleware.__call__

        def call(self: Any, request: Any) -> Any:
            called.append(name)
            return real(self, request)

        monkeypatch.setattr(middleware, "__call__", call)

    for name in OF_PAGES:
        record(name)
    record("django.middleware.security.SecurityMiddleware")
    api.post("/api/v1/orders", order_body())
    api.get("/api/v1/nothing")
    api.get("/api/docs")
    api.post("/webhooks/sendgrid", b"[]")
    assert called == ["django.middleware.security.SecurityMiddleware"] * 4
    called.clear()
    admin_client.get("/admin/")
    assert called == ["django.middleware.security.SecurityMiddleware", *OF_PAGES]


@pytest.mark.parametrize("path", ["/api/v1/orders", "/api/v1/nothing", "/webhooks/sendgrid", "/admin/login/"])
def test_every_answer_has_the_headers_that_protect_a_browser(api, path):
    headers = api.get(path).headers
    assert headers["X-Frame-Options"] == "SAMEORIGIN" and headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"].split(", ")[-1] in ("no-store", "private")


@pytest.mark.parametrize("path", ["/api/v1/orders", "/webhooks/sendgrid", "/admin/login/", "/static/x.css"])
def test_a_request_to_a_host_that_is_not_ours_is_refused(client, path):
    assert client.get(path, headers={"Host": "evil.example.com"}).status_code == 400
    assert client.get(path).status_code != 400


def test_the_api_and_webhooks_read_no_session_and_no_user(api, settings):
    cookies = {"Cookie": f"{settings.SESSION_COOKIE_NAME}=x; messages=y"}
    for answer in (
        api.post("/api/v1/orders", order_body(), **cookies),
        api.get("/api/v1/orders", **cookies),
        api.get("/api/v1/nothing", **cookies),
        api.post("/webhooks/sendgrid", b"[]", **cookies),
    ):
        request = answer.wsgi_request
        assert not hasattr(request, "session") and not hasattr(request, "_messages")
        assert getattr(request, "user", None) is None
    answer = api.post("/api/v1/orders", order_body())
    assert "Set-Cookie" not in answer.headers and "Cookie" not in answer.headers.get("Vary", "")


def test_a_login_of_the_admin_opens_no_part_of_the_api(admin_client):
    assert admin_client.get("/api/v1/orders").status_code == 401


def test_pages_keep_theirs(admin_client):
    request = admin_client.get("/admin/").wsgi_request
    assert request.session.session_key and request.user.is_superuser and hasattr(request, "_messages")


def test_an_admin_post_without_its_token_is_refused(admin_user):
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post("/admin/logout/").status_code == 403


def _fields(field: Any) -> Iterator[Any]:
    yield field
    for child in [*getattr(field, "fields", {}).values(), *filter(None, [getattr(field, "child", None)])]:
        yield from _fields(child)


@pytest.mark.parametrize("body", [OrderBody, CancelBody, RefundBody, OrderQuery, NotificationQuery])
def test_a_serializer_is_made_once_and_its_texts_are_formatted_before_threads_share_it(body):
    assert cached_serializer(body) is cached_serializer(body)
    texts = [
        validator.message
        for field in _fields(cached_serializer(body))
        for validator in field.validators
        if isinstance(getattr(validator, "message", None), lazy_format)
    ]
    assert texts and all(text.result for text in texts)


def test_two_threads_that_validate_at_once_get_their_own_values_and_errors():
    barrier = threading.Barrier(2)
    outcomes: dict[str, list[Any]] = {"right": [], "wrong": []}

    def validate(name: str, data: dict[str, Any]) -> None:
        barrier.wait(PATIENCE)
        for _ in range(300):
            try:
                outcomes[name].append(cached_serializer(OrderBody).run_validation(data))
            except ValidationError as error:
                outcomes[name].append(error.detail)

    item = {"sku": "s", "name": "Pen", "quantity": 1, "unit_amount": 1}
    right = order_body(name="Ann", items=[item])
    wrong = order_body(total_amount=0, currency="XXX", items=[item | {"quantity": 0}], more=1)
    threads = [threading.Thread(target=validate, args=pair) for pair in (("right", right), ("wrong", wrong))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes["right"]) == len(outcomes["wrong"]) == 300
    assert all(value["name"] == "Ann" and value["items"] == [item] for value in outcomes["right"])
    assert all(set(errors) == {"more", "total_amount", "currency", "items"} for errors in outcomes["wrong"])
    assert all(errors == outcomes["wrong"][0] for errors in outcomes["wrong"])


def test_what_one_request_gets_is_no_part_of_the_next():
    class Body(serializers.Serializer[Any]):
        amount = serializers.IntegerField()

    first = cached_serializer(Body).run_validation({"amount": 1})
    first["amount"] = 2
    assert cached_serializer(Body).run_validation({"amount": 1}) == {"amount": 1}
