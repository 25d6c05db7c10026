"""Expensive pages of the admin: which they are, and that each gives its turn back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from runtime.models import BulkJob
from tests.kit.orders import make_order
from tests.kit.waiting import PATIENCE, until
from web.admin.base import TriageAdmin
from web.admin.page_limits import MOST, TURNS, Refused, Turns


@pytest.fixture
def full() -> Any:
    """Let other users have all turns of the process."""
    keys = [("preview", f"user-{number}") for number in range(MOST)]
    for key in keys:
        TURNS.take(key, is_newest_wanted=False)
    yield
    for key in keys:
        TURNS.give(key)


def expensive_paths() -> list[str]:
    job = BulkJob.objects.create(action="x", filter={})
    order = make_order()
    lists = [
        page.opts
        for page in admin.site._registry.values()
        if isinstance(page, TriageAdmin) and page.csv_columns
    ]
    assert len(lists) > 3
    return [
        "/admin/search/?q=ann@example.com",
        *(f"{reverse(f'admin:{model.app_label}_{model.model_name}_changelist')}?q=x" for model in lists),
        *(reverse(f"admin:{model.app_label}_{model.model_name}_csv") for model in lists),
        reverse("admin:runtime_auditrow_csv"),
        reverse("admin:runtime_bulkjob_result", args=[job.id]),
        reverse("admin:orders_order_emails", args=[order.id]),
        reverse("admin:orders_order_email_body", args=[order.id]),
        reverse("admin:notifications_emailtext_preview", args=["order.paid", "en"]),
        reverse("admin:notifications_mailprofile_preview_new"),
    ]


@pytest.mark.django_db
def test_every_expensive_page_waits_for_its_turn_and_says_so(admin_client: Client, full: None) -> None:
    for path in expensive_paths():
        answer = admin_client.get(path)
        assert (answer.status_code, answer.headers.get("Retry-After")) == (429, "1"), path
        assert "Others are using the slow pages" in answer.content.decode(), path


@pytest.mark.django_db
def test_a_list_without_a_search_needs_no_turn(admin_client: Client, full: None) -> None:
    for path in ("/admin/", "/admin/orders/order/", "/admin/orders/order/?q="):
        assert admin_client.get(path).status_code == 200, path


@pytest.mark.django_db
def test_every_expensive_page_gives_its_turn_back(admin_client: Client) -> None:
    for path in expensive_paths():
        answer = admin_client.get(path)
        assert answer.status_code != 429, path
        if answer.streaming:
            assert answer.getvalue()
        assert (TURNS.in_work, TURNS.waiting) == (0, 0), path


@pytest.mark.django_db
def test_a_password_that_comes_during_another_one_is_neither_checked_nor_counted(
    settings: Any, django_user_model: Any
) -> None:
    from axes.models import AccessAttempt

    from web.admin.logins import OneAtATime

    django_user_model.objects.create_user("ann", password="right horse", is_staff=True)
    settings.PASSWORD_HASHERS = ["web.admin.logins.OneAtATime"]
    with OneAtATime._turn:
        answer = Client().post("/admin/login/", {"username": "ann", "password": "wrong"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert "password is being checked" in answer.content.decode()
    assert not AccessAttempt.objects.exists()
    assert Client().post("/admin/login/", {"username": "ann", "password": "wrong"}).status_code == 200
    assert AccessAttempt.objects.count() == 1


class TestTurns:
    def request(self, pk: int = 1) -> HttpRequest:
        request = RequestFactory().get("/")
        request.user = type("User", (), {"pk": pk})()
        return request

    def answer(self, turns: Turns, view: Callable[[], HttpResponse], kind: str = "file") -> HttpResponse:
        return turns.answer(self.request(), kind, view)

    def test_a_user_has_one_of_a_kind(self) -> None:
        turns = Turns()

        def second() -> HttpResponse:
            with pytest.raises(Refused, match="Your last file is not finished yet"):
                self.answer(turns, HttpResponse)
            return self.answer(turns, HttpResponse, kind="search")

        assert self.answer(turns, second).status_code == 200
        assert self.answer(turns, HttpResponse).status_code == 200

    @pytest.mark.django_db  # Django looks at the connection at the end of an answer
    def test_a_streamed_file_keeps_its_turn_until_it_is_closed_even_unread(self) -> None:
        turns = Turns()
        answer = turns.answer(self.request(), "file", lambda: StreamingHttpResponse(iter([b"a"])))
        assert turns.in_work == 1
        answer.close()
        assert turns.in_work == 0

    def test_an_error_gives_the_turn_back(self) -> None:
        turns = Turns()

        def fail() -> HttpResponse:
            raise ValueError

        for _ in range(2):
            with pytest.raises(ValueError):
                self.answer(turns, fail)
        assert turns.in_work == 0

    def test_a_newest_one_that_waits_in_vain_is_refused_and_leaves_nothing_behind(self) -> None:
        turns = Turns(patience_seconds=0)
        turns.take(("preview", 1), is_newest_wanted=True)
        with pytest.raises(Refused, match="not finished yet"):
            turns.take(("preview", 1), is_newest_wanted=True)
        turns.give(("preview", 1))
        assert (turns.in_work, turns.waiting) == (0, 0)

    def test_only_the_newest_of_those_that_wait_gets_the_next_turn(self) -> None:
        turns, key = Turns(patience_seconds=PATIENCE), ("preview", 1)
        turns.take(key, is_newest_wanted=True)
        with ThreadPoolExecutor(2) as pool:
            older = pool.submit(turns.take, key, is_newest_wanted=True)
            until(lambda: turns.waiting == 1)
            newer = pool.submit(turns.take, key, is_newest_wanted=True)
            with pytest.raises(Refused) as caught:
                older.result(PATIENCE)
            assert caught.value.status == 409
            assert not newer.done()
            turns.give(key)
            newer.result(PATIENCE)
        assert (turns.in_work, turns.waiting) == (1, 0)
