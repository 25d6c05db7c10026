"""Each act of a person, a token or a command has one row in the audit, and one line in the log."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.conf import settings as django_settings
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

from notifications.models import MailProfile
from outbox.drain import gate
from runtime.audit import Actor, record
from runtime.database.transactions import TransactionRequired
from runtime.models import AuditRow
from tests.kit.acts import acts, record_now
from tests.kit.admin import MAILS, ORDERS
from tests.kit.api import Api, make_token
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.people import client_of, staff_client
from tests.kit.profiles import save_profile
from tests.kit.words import ApiToken, EmailNotification
from web.admin.acts import AuditedPage, LibraryPage

pytestmark = pytest.mark.django_db
PROFILES = "/admin/notifications/mailprofile/"


def run(*words: str) -> None:
    call_command(*words, stdout=io.StringIO(), stderr=io.StringIO())


def dead(**fields: Any) -> EmailNotification:
    return make_mail(status="dead_lettered", **fields)


def resend_over_the_api() -> None:
    mail = dead(source="shop-a")
    assert Api(make_token(name="erp")).post(f"/api/v1/notifications/{mail.id}/resend").status_code == 202


def discard_over_the_api() -> None:
    assert Api(make_token(name="erp")).post(f"/api/v1/notifications/{dead().id}/discard").status_code == 200


def copy_over_the_api() -> None:
    mail = make_mail(status="sent", order_id=make_order().id)
    assert Api(make_token(name="erp")).post(f"/api/v1/notifications/{mail.id}/copies", {}).status_code == 201


def load_suppressions(folder: Path) -> None:
    file = folder / "list.csv"
    file.write_text("Email Address,Suppression Reason\nann@example.com,HardBounce\n")
    run("suppressions", "load", str(file))


def load_profiles(folder: Path) -> None:
    file = folder / "profiles.yaml"
    file.write_text("- {source: shop-a, from_email: a@tea.test, shop_name: Tea, postal_address: 1 Road}\n")
    run("profiles", "load", str(file))


def change_password() -> None:
    User.objects.create_user("ann", password="right horse battery")
    with mock.patch("getpass.getpass", return_value="left horse battery"):
        run("changepassword", "ann")
    assert User.objects.get(username="ann").check_password("left horse battery")


def forget_factors() -> None:
    User.objects.create_user("ann")
    run("factors", "reset", "ann")


#: By command and API: (what to do, the kind of its row, who, what the act begins with).
BY_PROGRAMS: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "resend": (lambda _: resend_over_the_api(), "resend", "erp (API token ", "Resent (was dead_lettered)."),
    "discard": (lambda _: discard_over_the_api(), "email", "erp (API token ", "Given up (was "),
    "copy": (lambda _: copy_over_the_api(), "copy", "erp (API token ", "Copied as "),
    "superuser": (
        lambda _: run("createsuperuser", "--noinput", "--username", "ada", "--email", "ada@example.com"),
        *("setup", "", "Created a superuser."),
    ),
    "password": (lambda _: change_password(), "setup", "", "Changed password."),
    "factors": (lambda _: forget_factors(), "setup", "", "Second factors reset."),
    "wrong passwords": (lambda _: run("axes_reset"), "login_pause", "", "Forgot the wrong passwords of 0 "),
    "create": (lambda _: run("tokens", "create", "shop", "--scope", "all"), "token", "", "Created. scopes="),
    "pause": (lambda _: run("pause", "relay", "--reason", "a sale"), "pause", "", "Paused."),
    "suppressions": (load_suppressions, "suppression", "", "Suppressed 1 addresses of a list of postmark."),
    "profiles": (load_profiles, "profile", "", "Added."),
}


@pytest.mark.parametrize("name", BY_PROGRAMS)
def test_a_command_and_the_api_write_one_row_with_who_and_from_where(name, tmp_path, settings):
    settings.ORDER_SOURCES = ["shop-a"]
    do, kind, who, act = BY_PROGRAMS[name]
    do(tmp_path)
    (row,) = acts()
    assert (row.kind, row.act.startswith(act)) == (kind, True), row.act
    if who:
        mail = EmailNotification.objects.order_by("id")[0]
        assert row.who.startswith(who) and row.address == "127.0.0.1"
        assert (row.order_id, row.source, row.subject_id) == (mail.order_id, mail.source, str(mail.id))
    else:
        assert row.who.endswith(" (command)") and row.address == ""
    assert row.reason == ("a sale" if name == "pause" else "")


def test_every_page_of_the_admin_writes_into_the_audit_also_those_of_libraries():
    pages = admin.site._registry.values()
    assert [page for page in pages if not isinstance(page, AuditedPage)] == []
    assert {type(page).log_change.__module__ for page in pages} == {
        "web.admin.acts",
        "notifications.admin.profiles",
    }


def test_a_change_of_users_and_groups_has_a_row(admin_client):
    group = Group.objects.create(name="night")
    path = f"/admin/auth/group/{group.pk}/change/"
    assert admin_client.post(path, {"name": "day", "permissions": []}).status_code == 302
    (row,) = acts()
    assert (row.kind, row.who, row.subject, row.act) == ("setup", "admin", "day", "Changed Name.")
    answer = admin_client.get(f"/admin/auth/group/{group.pk}/history/")
    assert answer.url == f"/admin/runtime/auditrow/?q={group.pk}"
    admin_client.post(f"/admin/auth/group/{group.pk}/delete/", {"post": "yes"})
    assert acts().last().act == "Deleted."


@pytest.fixture
def deletable(transactional_db: None, valkey_url: str) -> dict[str, Any]:
    """Return a row of each page from whose list rows can be deleted."""
    every = IntervalSchedule.objects.create(every=7, period="days")
    rows = [
        Group.objects.create(name="night"),
        User.objects.create_user("ann", password="right horse battery"),
        PeriodicTask.objects.create(name="sweep", task="outbox.poll", interval=every),
        IntervalSchedule.objects.create(every=8, period="days"),
        CrontabSchedule.objects.create(),
        ClockedSchedule.objects.create(clocked_time=dt.datetime(2030, 1, 1, tzinfo=dt.UTC)),
        save_profile(source="shop-b"),
    ]
    return {row._meta.label: row for row in rows}


def test_views_of_libraries_commit_their_act_with_the_change(deletable, admin_client, admin_user, rf):
    request = rf.get("/admin/")
    request.user = admin_user
    pages = {model._meta.label: page for model, page in admin.site._registry.items()}
    assert set(deletable) == {
        name for name, page in pages.items() if "delete_selected" in page.get_actions(request)
    }
    ann = deletable["auth.User"]
    passwords = {"password1": "left horse battery", "password2": "left horse battery"}
    path = f"/admin/auth/user/{ann.pk}/password/"
    posted = {**passwords, "usable_password": "true", "set-password": "1"}
    with mock.patch("web.admin.acts.record", side_effect=DatabaseError), pytest.raises(DatabaseError):
        admin_client.post(path, posted)
    assert User.objects.get(pk=ann.pk).check_password("right horse battery")
    assert admin_client.post(path, posted).status_code == 302
    assert User.objects.get(pk=ann.pk).check_password("left horse battery")
    assert acts().get().act == "Changed password."
    for row in deletable.values():
        posted = {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"}
        path = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_changelist")
        assert admin_client.post(path, posted).status_code == 302
        last = acts().last()
        assert (last.act, last.subject_id) == ("Deleted.", str(row.pk))


def test_each_action_of_a_librarys_list_has_a_row(admin_client, admin_user, rf, valkey_url):
    request = rf.get("/admin/")
    request.user = admin_user
    every = IntervalSchedule.objects.create(every=7, period="days")
    made = {PeriodicTask: PeriodicTask.objects.create(name="sweep", task="outbox.poll", interval=every)}
    for model, page in admin.site._registry.items():
        actions = page.get_actions(request)
        if not isinstance(page, LibraryPage):
            continue
        for name in actions.keys() - {"delete_selected"}:
            row = made[model]
            path = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_changelist")
            was = acts().count()
            posted = {"action": name, "_selected_action": row.pk}
            assert admin_client.post(f"{path}?enabled__exact=1", posted).status_code == 302
            assert acts().count() == was + 1, name
            act = acts().last()
            assert (act.act, act.subject_id) == (f"Chosen: {actions[name][2]}.", str(row.pk))
            PeriodicTask.objects.update(enabled=True)
    assert {row.act for row in acts()} >= {"Chosen: Disable selected tasks.", "Chosen: Run selected tasks."}


class TestTheOwnPassword:
    PATH = "/admin/password_change/"
    POSTED = {
        "old_password": "right horse battery",
        "new_password1": "left horse battery",
        "new_password2": "left horse battery",
    }

    @pytest.fixture
    def ann(self) -> Client:
        user = User.objects.create_superuser("ann", password="right horse battery")
        return client_of(user)

    def test_has_a_row_if_it_was_changed(self, ann):
        assert ann.post(self.PATH, self.POSTED | {"new_password2": "x"}).status_code == 200
        assert not acts().exists()
        assert ann.post(self.PATH, self.POSTED).status_code == 302
        (row,) = acts()
        assert (row.kind, row.who, row.subject) == ("setup", "ann", "ann")
        assert row.act == "Changed their own password." and row.address == "127.0.0.1"
        assert ann.get("/admin/").status_code == 200

    @pytest.mark.django_db(transaction=True)
    def test_changes_with_its_row_or_not_at_all(self, ann):
        broken = mock.patch("web.login.passwords.record", side_effect=DatabaseError)
        with broken, pytest.raises(DatabaseError):
            ann.post(self.PATH, self.POSTED)
        assert User.objects.get().check_password("right horse battery") and not acts().exists()


def test_rows_that_are_deleted_together_are_recorded_by_one_statement(admin_client):
    groups = [Group.objects.create(name=f"night {number}") for number in range(5)]
    posted = {"action": "delete_selected", "_selected_action": [row.pk for row in groups], "post": "yes"}
    with CaptureQueriesContext(connection) as statements:
        assert admin_client.post("/admin/auth/group/", posted).status_code == 302
    inserts = [row["sql"] for row in statements if row["sql"].startswith('INSERT INTO "audit_rows"')]
    assert len(inserts) == 1 and acts().filter(act="Deleted.").count() == 5


def test_an_act_in_the_admin_has_the_order_the_shop_the_reason_and_a_line_without_it(
    admin_client, django_capture_on_commit_callbacks, caplog
):
    mail = dead(source="shop-a")
    posted = {"action": "resend", "reason": "Ann Smith called"}
    with django_capture_on_commit_callbacks(execute=True):
        admin_client.post(f"{MAILS}{mail.id}/act/", posted, REMOTE_ADDR="203.0.113.9")
    (row,) = acts()
    assert (row.kind, row.who, row.address, row.source) == ("resend", "admin", "203.0.113.9", "shop-a")
    assert (row.order_id, row.subject_id, row.reason) == (mail.order_id, str(mail.id), "Ann Smith called")
    (line,) = [record.msg for record in caplog.records if record.name == "runtime.audit"][-1:]
    assert line["event"] == "act recorded" and line["network"] == "203.0.113.0/24"
    assert line["order_id"] == str(mail.order_id) and "Smith" not in str(line)


def test_an_act_without_its_transaction_is_refused(transactional_db):
    with pytest.raises(TransactionRequired):
        record(AuditRow(kind="email", act="x"), by=Actor("x"))
    assert not AuditRow.objects.exists()


def test_no_address_of_a_customer_is_kept_in_our_words():
    record_now(AuditRow(kind="token", act="Revoked ann@example.com.", subject="of ann@example.com"))
    assert "ann@" not in str(list(AuditRow.objects.values()))


def test_a_breaker_that_cannot_be_forced_has_no_row(admin_client, monkeypatch):
    monkeypatch.setattr(type(gate()), "force", lambda *_, **__: False)
    name = django_settings.EMAIL_PROVIDERS[0]
    admin_client.post("/admin/providers/", {"provider": name, "to": "open"})
    assert not acts().exists()


class TestLogins:
    def log_in(self, password: str, name: str = "ann") -> int:
        posted = {"username": name, "password": password}
        return Client(REMOTE_ADDR="203.0.113.9").post("/admin/login/", posted).status_code

    def rows(self) -> list[tuple[str, str, str]]:
        return list(AuditRow.objects.order_by("id").values_list("kind", "who", "address"))

    def test_a_login_has_a_row_and_a_pause_has_one_at_its_beginning(self):
        User.objects.create_user("ann", password="right horse", is_staff=True)
        assert [self.log_in("wrong") for _ in range(8)] == [200] * 4 + [429] * 4
        assert self.rows() == [("login_pause", "ann", "203.0.113.9")]
        from axes.models import AccessAttempt

        AccessAttempt.objects.update(attempt_time=F("attempt_time") - dt.timedelta(minutes=6))
        assert self.log_in("right horse") == 302
        assert self.rows()[1:] == [("login", "ann", "203.0.113.9")]

    def test_a_logout_has_a_row_of_who_was_logged_in(self):
        client = Client(REMOTE_ADDR="203.0.113.9")
        client.force_login(User.objects.create_user("ann", is_staff=True))
        assert client.post("/admin/logout/").status_code == 200
        client.post("/admin/logout/")  # nobody is logged in any more
        assert [row.act for row in AuditRow.objects.order_by("id")] == ["Logged in.", "Logged out."]
        assert self.rows()[1:] == [("login", "ann", "203.0.113.9")]

    def test_a_name_that_nobody_has_is_not_kept(self):
        assert [self.log_in("wrong", "ann@example.com") for _ in range(5)][-1] == 429
        assert self.rows() == [("login_pause", "an unknown name", "203.0.113.9")]


class TestTheHistoryOfAProfile:
    @pytest.fixture
    def profile(self, admin_client, settings) -> MailProfile:
        settings.ORDER_SOURCES = ["shop-a"]
        values = {"source": "shop-a", "from_email": "Tea <a@tea.test>", "postal_address": "1 Road"}
        names = ("Tea", "Tea & Co", "Tee")
        path = f"{PROFILES}add/"
        for number, name in enumerate(names):
            colour = "#7c2d12" if number == 2 else ""
            posted = values | {"shop_name": name, "colour": colour}
            assert admin_client.post(path, posted).status_code == 302
            path = f"{PROFILES}{MailProfile.objects.get().id}/change/"
        return MailProfile.objects.get()

    def test_has_from_what_to_what(self, profile):
        added, *changed = acts()
        assert (added.act, added.source) == ("Added.", "shop-a") and added.changes["shop_name"] == ["", "Tea"]
        assert [row.changes for row in changed] == [
            {"shop_name": ["Tea", "Tea & Co"]},
            {"shop_name": ["Tea & Co", "Tee"], "colour": ["", "#7c2d12"]},
        ]

    def test_is_put_back_to_before_a_change(self, admin_client, profile):
        page = f"{PROFILES}{profile.id}/history/"
        shown = admin_client.get(page).content.decode()
        assert "Tea &amp; Co → Tee" in shown and shown.count("Put back to before this") == 2
        _, second, _ = acts()
        admin_client.post(page, {"row": str(second.id)})
        profile.refresh_from_db()
        assert (profile.shop_name, profile.colour) == ("Tea", "")
        last = acts().last()
        assert last.changes == {"shop_name": ["Tee", "Tea"], "colour": ["#7c2d12", ""]}
        admin_client.post(page, {"row": str(last.id)})
        profile.refresh_from_db()
        assert (profile.shop_name, profile.colour) == ("Tee", "#7c2d12")

    def test_is_put_back_only_by_who_may_change_it_and_only_if_it_is_allowed(self, admin_client, profile):
        page, (added, *_) = f"{PROFILES}{profile.id}/history/", acts()
        viewer = staff_client("view_mailprofile")
        assert viewer.get(page).status_code == 200
        assert viewer.post(page, {"row": str(added.id)}).status_code == 403
        answer = admin_client.post(page, {"row": str(added.id)}, follow=True)
        assert "Nothing was changed." in answer.content.decode()
        other = save_profile(source="shop-b")
        assert admin_client.post(f"{PROFILES}{other.id}/history/", {"row": str(added.id)}).status_code == 404
        profile.refresh_from_db()
        assert profile.shop_name == "Tee"


def test_the_first_page_counts_tokens_that_end_soon_and_those_that_nobody_uses(admin_client):
    now = dt.datetime.now(dt.UTC)
    make_token(name="young", expires_at=now + dt.timedelta(days=15))
    make_token(name="soon", expires_at=now + dt.timedelta(days=13))
    make_token(name="idle")
    make_token(name="gone", revoked_at=now, expires_at=now + dt.timedelta(days=1))
    ApiToken.objects.filter(name__in=["idle", "gone"]).update(created_at=now - dt.timedelta(days=91))
    shown = {tile["label"]: tile["value"] for tile in admin_client.get("/admin/").context["tiles"]}
    assert shown["API tokens that end within 14 days"] == "1"
    assert shown["API tokens unused for 90 days"] == "1"
    for state, name in (("expiring", "soon"), ("unused", "idle")):
        listed = admin_client.get("/admin/web/apitoken/", {"state": state}).context["cl"].result_list
        assert [token.name for token in listed] == [name]
    tokens = ApiToken.objects.order_by("id")
    assert [token for token in tokens if token.is_unused()] == list(ApiToken.objects.unused())


def test_the_page_links_an_order_only_for_whom_may_see_it(admin_client):
    mail = dead()
    record_now(AuditRow(kind="email", act="x", order_id=mail.order_id))
    link = f"{ORDERS}{mail.order_id}/change/"
    for client, is_shown in ((admin_client, True), (staff_client("view_logentry"), False)):
        assert (link in client.get("/admin/runtime/auditrow/").content.decode()) is is_shown
