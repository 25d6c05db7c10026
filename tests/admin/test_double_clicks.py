"""Two posts of one form at once, and a name that exists: each is answered with a message."""

from __future__ import annotations

import re
import threading
from typing import Any
from unittest import mock

import pytest
from django.contrib.admin import ModelAdmin, site
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django_celery_beat.models import IntervalSchedule

from shop_connections.encryption import decrypt
from shop_connections.models import ShopConnection
from tests.kit.admin import SHOPS
from tests.kit.people import staff_client
from tests.kit.plain_shop import KEY, connect
from tests.kit.races import together
from tests.kit.waiting import PATIENCE
from tests.kit.words import ApiToken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]
#: What *Save* sends on each page that adds a row with a unique value, and the message of a second click.
FORMS = {
    "connections/shopconnection": (
        {"source": "tea", "platform": "woocommerce", "address": "https://tea.example.com", "statuses": "{}"},
        "already exists",
    ),
    "notifications/mailprofile": (
        {"source": "", "from_email": "a@example.com", "shop_name": "Tea", "postal_address": "1 Road"},
        "already exists",
    ),
    "notifications/suppression": ({"address": "ann@example.com", "reason": "manual"}, "suppressed already"),
    "auth/group": ({"name": "packers"}, "already exists"),
    "auth/user": (
        {
            "username": "ann",
            "usable_password": "true",
            "password1": "right horse 77",
            "password2": "right horse 77",
        },
        "already exists",
    ),
    "django_celery_beat/periodictask": (
        {"name": "sweep", "task": "outbox.poll", "interval": "7"},
        "already exists",
    ),
}
#: Pages that add rows without a unique value of a person's. Each click adds one.
NOT_UNIQUE = {
    "web/apitoken",
    *(f"django_celery_beat/{name}" for name in ("clockedschedule", "crontabschedule", "intervalschedule")),
}


@pytest.fixture(autouse=True)
def _settings(settings: Any) -> None:
    settings.CONNECTION_KEY, settings.FAST_PATH = [KEY], False


@pytest.fixture
def clients(settings: Any) -> list[Client]:
    """Two windows of one browser."""
    user = User.objects.create_superuser("boss", password="x")
    IntervalSchedule.objects.create(id=7, every=1, period="hours")
    made = [Client(), Client()]
    made[0].force_login(user)
    made[1].cookies = made[0].cookies
    return made


def values_of(client: Client, path: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return what a browser would post: what the page's form has, and what a person types."""
    form = client.get(path).context["adminform"].form
    shown = {form.add_prefix(name): form[name].value() for name in form.fields}
    return {name: value for name, value in shown.items() if isinstance(value, str) and value} | values


def count(name: str) -> int:
    return next(model for model in site._registry if path_of(model) == name)._default_manager.count()


def path_of(model: Any) -> str:
    return f"{model._meta.app_label}/{model._meta.model_name}"


def test_every_page_that_adds_a_unique_row_is_listed_here(clients: list[Client]) -> None:
    adds = {
        path_of(model)
        for model in site._registry
        if clients[0].get(f"/admin/{path_of(model)}/add/").status_code == 200
    }
    assert adds == set(FORMS) | NOT_UNIQUE


@pytest.mark.parametrize("name", FORMS)
def test_a_name_that_exists_is_a_message(clients: list[Client], name: str) -> None:
    path, (values, message) = f"/admin/{name}/add/", FORMS[name]
    before, values = count(name), values_of(clients[0], path, values)
    first, second = (clients[0].post(path, values) for _ in range(2))
    assert count(name) == before + 1, getattr(first, "context", None) and first.context["errors"]
    assert second.status_code == 200 and message in second.content.decode()


@pytest.mark.parametrize("name", FORMS)
def test_two_posts_of_one_form_at_once_add_one_row(clients: list[Client], name: str) -> None:
    path, (values, message) = f"/admin/{name}/add/", FORMS[name]
    before, values = count(name), values_of(clients[0], path, values)
    both, waited, save_form = threading.Barrier(2), set(), ModelAdmin.save_form

    def wait(page: Any, *args: Any, **options: Any) -> Any:
        """Let both pass their checks before one of them writes. A repeat does not wait."""
        if threading.get_ident() not in waited:
            waited.add(threading.get_ident())
            both.wait(PATIENCE)
        return save_form(page, *args, **options)

    with mock.patch.object(ModelAdmin, "save_form", wait):
        answers = together(2, lambda number: clients[number].post(path, values))
    assert count(name) == before + 1
    assert sorted(answer.status_code for answer in answers) in ([200, 200], [200, 302])
    assert sum(message in answer.content.decode() for answer in answers) == 1


class TestASecret:
    """It is in the answer to the click, and in nothing else."""

    def shown(self, answer: Any) -> list[str]:
        shown = r'(?:shown only once: <code [^>]*>|id="webhook-secret" [^>]* value=")([\w-]+)'
        return re.findall(shown, answer.content.decode())

    def secrets(self, answers: list[Any]) -> list[str]:
        """Return what the answers show, and check that no cookie, address or session has it."""
        secrets = [secret for answer in answers for secret in self.shown(answer)]
        for answer in answers:
            assert answer.status_code == 200
            assert "messages" not in answer.cookies or answer.cookies["messages"].value == ""  # is deleted
        for session in Session.objects.all():
            assert not any(secret in str(session.get_decoded()) for secret in secrets)
        return secrets

    def test_of_a_new_connection_is_in_the_answer_alone(self, clients: list[Client]) -> None:
        answer = clients[0].post(f"{SHOPS}add/", FORMS["connections/shopconnection"][0])
        shop = ShopConnection.objects.get()
        assert self.secrets([answer]) == [decrypt(shop.secret)]
        page = f"{SHOPS}{shop.id}/change/"
        assert f'data-page-url="{page}"' in answer.content.decode()
        again = clients[0].get(page)
        assert self.shown(again) == []
        assert "Save" in again.content.decode()

    def test_of_a_token_is_in_the_answer_alone(self, clients: list[Client]) -> None:
        answer = clients[0].post("/admin/web/apitoken/add/", {"name": "shop", "scopes": ["orders:read"]})
        assert [ApiToken.digest_of(secret) for secret in self.secrets([answer])] == [
            ApiToken.objects.get().digest
        ]
        assert self.shown(clients[0].get("/admin/web/apitoken/")) == []

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("connections/shopconnection", FORMS["connections/shopconnection"][0]),
            ("web/apitoken", {"name": "shop", "scopes": ["orders:read"]}),
        ],
    )
    def test_of_a_person_who_may_add_and_not_view_is_on_the_first_page(self, name: str, values: Any) -> None:
        client = staff_client(f"add_{name.split('/')[1]}")
        answer = client.post(f"/admin/{name}/add/", values)
        assert len(self.secrets([answer])) == count(name) == 1
        assert 'data-page-url="/admin/"' in answer.content.decode()
        assert self.shown(client.get("/admin/")) == []

    def offer(self, client: Client, shop: ShopConnection) -> dict[str, str]:
        """Return what the button of the page sends."""
        context = client.get(f"{SHOPS}{shop.id}/change/").context
        return {"action": "secret", "seen": context["seen_secret"], "offered": context["offered_secret"]}

    def test_the_form_of_the_page_that_shows_it_posts_to_the_page(self, clients: list[Client]) -> None:
        shop = connect()
        answer = clients[0].post(f"{SHOPS}{shop.id}/act/", self.offer(clients[0], shop))
        assert f'<form action="{SHOPS}{shop.id}/change/"' in answer.content.decode()

    def test_of_two_clicks_at_once_both_show_the_stored_one(self, clients: list[Client]) -> None:
        shop = connect()
        fields = self.offer(clients[0], shop)
        answers = together(2, lambda number: clients[number].post(f"{SHOPS}{shop.id}/act/", fields))
        shop.refresh_from_db()
        assert self.secrets(answers) == [decrypt(shop.secret)] * 2

    def test_of_two_pages_the_second_one_makes_none(self, clients: list[Client]) -> None:
        shop = connect()
        offers = [self.offer(client, shop) for client in clients]
        answers = together(
            2, lambda number: clients[number].post(f"{SHOPS}{shop.id}/act/", offers[number], follow=True)
        )
        shop.refresh_from_db()
        assert self.secrets(answers) == [decrypt(shop.secret)]
        assert sum(b"Somebody made another secret" in answer.content for answer in answers) == 1

    def test_the_page_that_shows_it_can_make_another_one(self, clients: list[Client]) -> None:
        shop = connect()
        for _ in range(2):
            fields = self.offer(clients[0], shop)
            answer = clients[0].post(f"{SHOPS}{shop.id}/act/", fields)
            shop.refresh_from_db()
            assert self.secrets([answer]) == [decrypt(shop.secret)]
            assert answer.context["seen_secret"] != fields["seen"]
