"""People who log in by password: the second factor, how long they stay, and what a password must be."""

from __future__ import annotations

import time
from io import StringIO
from typing import Any
from unittest import mock

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.test import Client, RequestFactory
from django.urls import NoReverseMatch, reverse

from runtime.models import AuditRow
from web.login.passwords import usable_page

PASSWORD = "right horse battery"
LOGIN, CODE, FACTORS = "/admin/login/", "/admin/login/code/", "/admin/factors/"
PAGE = "/admin/auth/group/"


@pytest.fixture(autouse=True)
def no_counts() -> None:
    """Forget the codes and tries of earlier tests."""
    cache.clear()


@pytest.fixture
def ann(db: None, settings: Any) -> User:
    settings.REQUIRE_MFA = True
    return User.objects.create_superuser("ann", password=PASSWORD)


def log_in(client: Client, page: str = "", password: str = PASSWORD) -> Any:
    return client.post(f"{LOGIN}?next={page}" if page else LOGIN, {"username": "ann", "password": password})


def code_of(secret: str, step: int = 0) -> str:
    """Return the code of now, or of `step` times 30 seconds later."""
    return str(format_hotp_value(hotp_value(secret, int(time.time()) // 30 + step)))


def set_up(client: Client) -> str:
    """Set an app up, and return its secret."""
    secret = str(client.get(f"{FACTORS}app/").context["form"].secret)
    answer = client.post(f"{FACTORS}app/", {"code": code_of(secret)})
    assert answer.headers["Location"] == f"{FACTORS}codes/"
    return secret


def with_app() -> tuple[Client, str]:
    """Return a client that has set an app up some time ago, and the secret."""
    client = Client()
    log_in(client)
    secret = set_up(client)
    row = Authenticator.objects.get(type="totp")
    del row.data["last_counter"]
    row.save()
    cache.clear()
    return client, secret


def setup_acts() -> list[str]:
    return list(AuditRow.objects.filter(kind="setup").order_by("id").values_list("act", flat=True))


def opens(client: Client) -> bool:
    return client.get(PAGE).status_code == 200


class TestSetUp:
    def test_who_has_no_factor_sets_it_up_before_any_other_page(self, ann):
        client = Client()
        assert log_in(client, PAGE).headers["Location"] == PAGE
        for page in (PAGE, "/admin/", "/admin/password_change/", "/admin/search/?q=x"):
            assert client.get(page).headers["Location"] == FACTORS
        assert client.post("/admin/auth/group/add/", {"name": "x"}).headers["Location"] == FACTORS
        secret = set_up(client)
        codes = client.get(f"{FACTORS}codes/").context["unused_codes"]
        assert len(codes) == 10
        again = client.get(f"{FACTORS}codes/").content.decode()
        assert "10 of 10 were not used" in again and codes[0] not in again and "****" not in again
        assert opens(client)
        stored = [str(row.data) for row in Authenticator.objects.all()]
        assert len(stored) == 2 and secret not in "".join(stored)

    def test_a_wrong_first_code_sets_nothing_up(self, ann):
        client = Client()
        log_in(client)
        client.get(f"{FACTORS}app/")
        assert client.post(f"{FACTORS}app/", {"code": "000000"}).status_code == 200
        assert not Authenticator.objects.exists() and not opens(client)

    @pytest.mark.parametrize(
        ("path", "posted", "right"),
        [
            (f"{FACTORS}app/", {"code": "000000"}, "code"),
            ("/admin/password_change/", {"old_password": "wrong"}, "old_password"),
            (f"{FACTORS}password/", {"password": "wrong"}, "password"),
        ],
    )
    def test_a_wrong_code_or_password_of_who_is_logged_in_counts_as_at_the_login(
        self, ann, settings, path, posted, right
    ):
        settings.REQUIRE_MFA = False
        client = Client()
        log_in(client)
        client.get(path)
        assert [client.post(path, posted).status_code for _ in range(5)] == [200] * 4 + [429]
        values = {"code": str(client.session.get("mfa.totp.secret")), "old_password": PASSWORD}
        values = {**values, "password": PASSWORD, "new_password1": "left horse battery"}
        values["code"] = code_of(values["code"]) if right == "code" else ""
        answer = client.post(path, values | {"new_password2": "left horse battery"})
        assert answer.status_code in (200, 429)
        assert not Authenticator.objects.exists() and User.objects.get().check_password(PASSWORD)
        assert log_in(Client()).status_code == 429 and opens(client)
        assert AuditRow.objects.filter(kind="login_pause", who="ann").count() == 1

    def test_nobody_must_if_it_is_off_and_who_has_one_uses_it(self, ann, settings):
        settings.REQUIRE_MFA = False
        client = Client()
        log_in(client)
        assert opens(client)
        set_up(client)
        assert log_in(Client()).headers["Location"] == CODE

    def test_only_these_pages_of_allauth_are_there(self):
        absent = ("account_signup", "account_reset_password", "account_email", "account_logout", "mfa_trust")
        for name in (*absent, "socialaccount_signup", "openid_connect_login", "mfa_download_recovery_codes"):
            with pytest.raises(NoReverseMatch):
                reverse(name)
        assert Client().get("/admin/login/oidc/").status_code in (302, 404)


class TestLogin:
    def test_a_code_counts_once_in_all_processes(self, ann):
        _, secret = with_app()
        client = Client()
        answer = log_in(client, PAGE)
        assert answer.headers["Location"] == CODE and "_auth_user_id" not in client.session
        assert client.get(PAGE).headers["Location"].startswith(LOGIN)
        code = code_of(secret)
        assert client.post(CODE, {"code": "12"}).status_code == 200
        assert client.post(CODE, {"code": code}).headers["Location"] == PAGE and opens(client)
        other = Client()
        log_in(other)
        cache.clear()  # another process
        assert other.post(CODE, {"code": code}).status_code == 200 and not opens(other)
        cache.clear()
        assert other.post(CODE, {"code": code_of(secret, 1)}).status_code == 302 and opens(other)
        third = Client()
        log_in(third)
        cache.clear()
        assert third.post(CODE, {"code": code}).status_code == 200  # older than the last one

    def test_a_recovery_code_counts_once(self, ann):
        client, _ = with_app()
        code = client.get(f"{FACTORS}codes/").context["unused_codes"][0]
        for expected in (302, 200):
            client = Client()
            log_in(client)
            assert client.post(CODE, {"code": code}).status_code == expected

    def test_wrong_codes_count_as_wrong_passwords(self, ann):
        from axes.models import AccessAttempt

        _, secret = with_app()
        client = Client()
        log_in(client, password="wrong")
        for _ in range(4):
            log_in(client)  # a right password forgets nothing
            client.post(CODE, {"code": "000000"})
        answer = client.post(CODE, {"code": code_of(secret, 1)})
        assert "Too many wrong" in answer.content.decode() and not opens(client)
        assert log_in(Client()).status_code == 429
        assert AccessAttempt.objects.get().failures_since_start == 5
        AccessAttempt.objects.all().delete()  # by manage.py axes_reset, after which nothing else is counted
        assert client.post(CODE, {"code": code_of(secret, 1)}).status_code == 302

    def test_the_code_that_set_the_app_up_does_not_count_again(self, ann):
        client = Client()
        log_in(client)
        secret = set_up(client)
        other = Client()
        log_in(other)
        assert "used before" in other.post(CODE, {"code": code_of(secret)}).content.decode()
        assert not opens(other)

    def test_a_factor_of_another_privacy_key_is_told_and_not_counted(self, ann, settings):
        from axes.models import AccessAttempt

        client, secret = with_app()
        settings.PRIVACY_KEY = "another"
        assert "PRIVACY_KEY has changed" in client.get(f"{FACTORS}codes/").content.decode()
        other = Client()
        log_in(other)
        answer = other.post(CODE, {"code": code_of(secret)})
        assert answer.status_code == 200 and "factors reset" in answer.content.decode()
        assert not AccessAttempt.objects.exists() and not opens(other)

    def test_a_factor_changes_with_its_act_and_the_end_of_sessions_or_not_at_all(self, ann, monkeypatch):
        client, _ = with_app()
        other = Client()
        other.force_login(ann)
        monkeypatch.setattr("web.login.factors.end_sessions", mock.Mock(side_effect=DatabaseError))
        before = list(Authenticator.objects.values_list("pk", flat=True))
        for page in ("app/remove/", "codes/new/"):
            with pytest.raises(DatabaseError):
                client.post(f"{FACTORS}{page}")
        assert list(Authenticator.objects.values_list("pk", flat=True)) == before
        assert setup_acts() == ["Second factor added: totp."]

    def test_new_recovery_codes_are_recorded_and_end_the_other_sessions(self, ann):
        client, _ = with_app()
        other = Client()
        other.force_login(ann)
        assert client.post(f"{FACTORS}codes/new/").status_code == 302
        assert setup_acts() == ["Second factor added: totp.", "Recovery codes replaced."]
        assert opens(client) and not opens(other)

    def test_recovery_codes_are_recorded_also_if_there_were_none(self, ann):
        client, _ = with_app()
        Authenticator.objects.filter(type="recovery_codes").delete()
        assert client.post(f"{FACTORS}codes/new/").status_code == 302
        assert setup_acts() == ["Second factor added: totp.", "Recovery codes replaced."]

    @pytest.mark.parametrize("credential", ['"x"', '{"id": 1}', '{"id": "x", "rawId": "x", "response": {}}'])
    def test_what_is_no_new_passkey_is_refused(self, ann, credential):
        client = Client()
        log_in(client)
        client.get(f"{FACTORS}passkey/")
        assert client.post(f"{FACTORS}passkey/", {"credential": credential}).status_code == 200
        assert not Authenticator.objects.exists()

    def test_what_is_no_passkey_is_refused_and_counted(self, ann):
        from axes.models import AccessAttempt

        with_app()
        client = Client()
        log_in(client)
        for number, credential in enumerate(
            ('"x"', '{"id": 1}', '{"id": "x", "rawId": "x", "response": {}}'), 1
        ):
            assert client.post(CODE, {"credential": credential}).status_code == 200
            assert AccessAttempt.objects.get().failures_since_start == number
        assert not opens(client)

    def test_a_change_of_the_factor_or_the_password_ends_the_other_sessions(self, ann):
        first, secret = with_app()
        second = Client()
        log_in(second)
        second.post(CODE, {"code": code_of(secret)})
        assert opens(second)
        first.post(f"{FACTORS}app/remove/")
        assert not opens(second) and first.get(PAGE).headers["Location"] == FACTORS
        assert not Authenticator.objects.exists()
        set_up(first)
        third = Client()
        third.force_login(ann)
        passwords = {"old_password": PASSWORD, "new_password1": "left horse battery"}
        answer = first.post("/admin/password_change/", passwords | {"new_password2": "left horse battery"})
        assert answer.status_code == 302 and opens(first) and not opens(third)

    def test_an_old_login_shows_its_password_before_a_factor_changes(self, ann):
        client, _ = with_app()
        session = client.session
        for record in session["account_authentication_methods"]:
            record["at"] -= 600
        session.save()
        answer = client.post(f"{FACTORS}app/remove/")
        assert answer.headers["Location"].startswith(f"{FACTORS}password/")
        assert client.post(answer.headers["Location"], {"password": "wrong"}).status_code == 200
        assert Authenticator.objects.count() == 2
        client.post(answer.headers["Location"], {"password": PASSWORD})  # goes on with what was asked for
        assert not Authenticator.objects.exists()


class TestReset:
    def test_it_takes_the_factors_and_the_sessions_away(self, ann):
        client, _ = with_app()
        assert opens(client)
        out = StringIO()
        call_command("factors", "reset", "ann", stdout=out)
        assert "had 1 second factor and" in out.getvalue()
        act = AuditRow.objects.get(act="Second factors reset.")
        assert (act.subject, act.who.endswith("(command)")) == ("ann", True)
        assert not opens(client) and not Authenticator.objects.exists()
        log_in(client)
        assert client.get(PAGE).headers["Location"] == FACTORS

    def test_an_unknown_name_is_an_error(self, db):
        with pytest.raises(CommandError, match="No user"):
            call_command("factors", "reset", "nobody")


class TestPasswordLogin:
    def test_only_the_named_user_logs_in_by_password_and_needs_a_factor(self, ann, settings):
        settings.REQUIRE_MFA, settings.PASSWORD_LOGIN = False, "root"
        answer = log_in(Client())
        assert answer.status_code == 200 and "not used here" in answer.content.decode()
        settings.PASSWORD_LOGIN = "ann"
        client = Client()
        log_in(client)
        assert client.get(PAGE).headers["Location"] == FACTORS


class TestSessions:
    def moved(self, client: Client, **back: int) -> Any:
        session = client.session
        for name, seconds in back.items():
            session[name] -= seconds
        session.save()
        return client.get(f"{PAGE}?q=x")

    @pytest.mark.parametrize(
        ("login_at", "click_at", "is_over"),
        [(43_190, 0, False), (43_210, 0, True), (3700, 3590, False), (3700, 3610, True)],
    )
    def test_they_end_after_twelve_hours_and_after_an_hour_without_a_click(
        self, admin_client, login_at, click_at, is_over
    ):
        answer = self.moved(admin_client, login_at=login_at, click_at=click_at)
        assert answer.status_code == (302 if is_over else 200)
        if is_over:
            assert answer.headers["Location"] == f"{LOGIN}?next={PAGE}%3Fq%3Dx"
            assert "_auth_user_id" not in admin_client.session

    def test_the_time_of_a_click_is_written_once_a_minute_and_a_refresh_is_none(self, admin_client):
        def written(path: str, **headers: str) -> bool:
            before = admin_client.session["click_at"]
            assert admin_client.get(path, headers=headers).status_code == 200
            return bool(admin_client.session["click_at"] != before)

        assert not written(PAGE)
        session = admin_client.session
        session["click_at"] -= 61
        session.save()
        assert not written("/admin/?part=1")
        assert not written(PAGE, **{"Sec-Fetch-Dest": "empty"})
        assert written(PAGE) and not written(PAGE)

    def test_a_login_has_a_new_session_key(self, ann, settings):
        settings.REQUIRE_MFA = False
        client = Client()
        client.get(LOGIN)
        keys = []
        for _ in range(2):
            log_in(client)
            keys.append(client.session.session_key)
        assert len(set(keys)) == 2

    def test_a_deactivated_user_has_no_session(self, admin_client):
        assert opens(admin_client)
        User.objects.update(is_active=False)
        assert not opens(admin_client)

    def test_a_session_of_a_release_without_these_times_logs_in_again(self, admin_client):
        session = admin_client.session
        del session["login_at"], session["click_at"]
        session.save()
        assert admin_client.get(PAGE).status_code == 302


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("/admin/orders/order/?status=paid", "/admin/orders/order/?status=paid"),
        ("http://testserver/admin/", "http://testserver/admin/"),
        ("", "/admin/"),
        ("/admin/login/", "/admin/"),
        ("/admin/logout/", "/admin/"),
        ("/admin/login/code/", "/admin/"),
        ("/admin/nothing/here/", "/admin/"),
        ("/admin/?part=1", "/admin/"),
        ("/api/docs", "/admin/"),
        ("//evil.example/admin/", "/admin/"),
        ("https://evil.example/admin/", "/admin/"),
        ("javascript:alert(1)", "/admin/"),
        ("/admin/\\evil", "/admin/"),
    ],
)
def test_a_login_goes_to_a_page_that_exists(url, page):
    assert usable_page(url, request=RequestFactory().get("/")) == page


@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("correct horse battery", ""),
        ("p" * 30 + "äöü€ " * 10, ""),
        ("éléphant gris", ""),
        ("short horse", "too short"),
        ("12football34!", "common word"),
        ("!!!Password2026", "common word"),
        ("my orderpost login", "orderpost"),
        ("Order-Post 4711 x", "orderpost"),
        ("Leaf & Cup is open", "leafcup"),
        ("for annabel only", "annabel"),
        ("like a lovelace", "lovelace"),
    ],
)
def test_a_password_is_long_and_not_easily_guessed(settings, password, said):
    settings.SHOP_NAME = "Leaf & Cup"
    user = User(username="annabel", first_name="Jo", last_name="Lovelace")
    if not said:
        return validate_password(password, user)
    with pytest.raises(ValidationError, match=said):
        validate_password(password, user)
    return None
