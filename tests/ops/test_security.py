"""What a browser is told, who may log in how often, and what the app's database role may do."""

from __future__ import annotations

import datetime as dt
import io
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import redis
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db.models import F
from django.test import Client, RequestFactory
from django.urls import URLResolver, get_resolver

from config.headers import POLICY
from local.machine import PROJECT
from tests.kit.api import Api, make_token
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.shop import PAYMENT, Shop, payment_event
from tests.kit.waiting import PATIENCE
from tests.kit.words import PROBES, mask_address
from web.proxies import client_address

INLINE = re.compile(
    r"<script(?![^>]*\bsrc=)(?![^>]*application/json)[^>]*>|\son[a-z]+\s*=|javascript:", re.IGNORECASE
)


#: Paths that answer without a token, a password or a signature. Review each path before you add it.
UNAUTHENTICATED = {
    "/",  # redirects to /api/docs
    "/api/docs",
    "/api/schema",
    "/api/schemas",
    "/api/schemas/<str:direction>/<str:name>",
    "/api/asyncapi",  # made once of the schemas
    "/api/problems",  # fixed texts, like its pages
    "/api/problems/<str:slug>",
    "/connect/<str:source>",  # 404 without a connection; tests/api/test_connect.py has the others
    "/connect/<str:source>/<path:rest>",
    "/admin/login/",
    "/admin/logout/",
    "/healthz",
    "/readyz",
    "/metrics",  # unless METRICS_TOKEN is set
}
#: Parts of a path, by the name that the URL gives them.
PARTS = {
    "provider": "sendgrid",
    "direction": "out",
    "name": "order.order.paid.v1",
    "slug": "clock",
    "content_type_id": "1",
}
SOME_ID = "0199b6a0-0000-7000-8000-000000000000"


def paths(patterns: list[Any], before: str = "/") -> Iterator[tuple[str, str]]:
    """Yield each path that the web process serves, as it is declared and as a request may have it."""
    for pattern in patterns:
        declared = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from paths(pattern.url_patterns, declared)
        else:
            yield declared, re.sub(r"<(?:\w+:)?(\w+)>", lambda part: PARTS.get(part[1], SOME_ID), declared)


@pytest.mark.django_db
def test_no_other_path_answers_without_a_token_a_login_or_a_signature():
    here = [(path, path) for path in PROBES]
    here += [
        (declared, asked) for declared, asked in paths(get_resolver().url_patterns) if "^" not in declared
    ]
    assert len(here) > 100
    answering = set()
    for declared, asked in here:
        for method in ("get", "post"):
            answer = getattr(Client(), method)(asked)
            to_login = answer.status_code == 302 and answer.headers["Location"].startswith("/admin/login/")
            if answer.status_code not in (401, 405) and not to_login:
                answering.add(declared)
    assert answering == UNAUTHENTICATED


class TestHeaders:
    @pytest.mark.django_db
    def test_nobody_keeps_an_answer_about_a_shop_or_its_customers(self):
        here = [asked for _, asked in paths(get_resolver().url_patterns) if "^" not in asked]
        here += [*PROBES, "/api/v1", "/nothing"]
        assert "/api/v1/orders" in here
        reader = Api(make_token())
        for path in here:
            for answer in (Client().get(path), reader.get(path), reader.post(path, {})):
                assert "no-store" in answer.headers.get("Cache-Control", ""), path

    @pytest.mark.django_db
    def test_an_order_and_its_list_are_not_kept_either(self):
        order = make_order()
        for path in ("/api/v1/orders", f"/api/v1/orders/{order.id}", f"/api/v1/orders/{order.id}/timeline"):
            answer = Api(make_token()).get(path)
            assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store"), path

    @pytest.mark.django_db
    def test_every_page_forbids_what_it_does_not_need_and_has_no_inline_script(self, admin_client):
        mail, order = make_mail(status="dead_lettered"), make_order()
        here = "/admin/notifications/emailnotification/"
        for path in (
            "/admin/",
            "/admin/set-up/",
            "/admin/runtime/auditrow/",
            here,
            f"{here}{mail.id}/change/",
            "/admin/providers/",
            f"/admin/orders/order/{order.id}/change/",
            "/admin/events/domainevent/",
            "/admin/web/apitoken/add/",
            "/admin/retention/detachedpartition/",
            "/admin/notifications/suppression/",
            "/admin/django_celery_beat/periodictask/",
            "/api/docs",
        ):
            answer = admin_client.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["Content-Security-Policy"] == POLICY, path
            assert answer.headers["X-Content-Type-Options"] == "nosniff", path
            assert answer.headers["X-Frame-Options"] == "SAMEORIGIN", path
            assert answer.headers["Referrer-Policy"] == "same-origin", path
            assert not INLINE.search(answer.content.decode()), (path, INLINE.search(answer.content.decode()))
        assert "'unsafe-inline'" not in POLICY.partition("style-src")[0]

    @pytest.mark.django_db
    def test_errors_and_the_api_have_them_too(self):
        for answer in (
            Client().get("/api/v1/orders", headers={"Host": "elsewhere.example.com"}),
            Client().get("/nothing"),
            Api(make_token()).get("/api/v1/orders"),
            Api().get("/api/v1/x"),
        ):
            assert answer.headers["Content-Security-Policy"] == POLICY

    @pytest.mark.django_db  # to end an answer looks at the connections that other tests left
    def test_files_have_them_too(self):
        answer = Client().get("/static/admin/css/base.css")
        assert answer.status_code == 200 and answer.headers["Content-Security-Policy"] == POLICY
        answer.close()


@pytest.mark.django_db
class TestLogin:
    def log_in(self, password: str, name: str = "ann", ip: str = "10.0.0.1", client: str = "") -> int:
        headers = {"X-Forwarded-For": client} if client else {}
        answer = Client(REMOTE_ADDR=ip, headers=headers).post(
            "/admin/login/", {"username": name, "password": password}
        )
        return answer.status_code

    @pytest.fixture(autouse=True)
    def ann(self):
        get_user_model().objects.create_user("ann", password="right horse", is_staff=True)

    def test_five_wrong_passwords_lock_that_name_from_that_address_for_five_minutes(self):
        from axes.models import AccessAttempt

        assert [self.log_in("wrong") for _ in range(4)] == [200] * 4
        assert self.log_in("wrong") == 429
        assert self.log_in("right horse") == 429
        assert self.log_in("right horse", ip="10.0.0.2") == 302
        AccessAttempt.objects.update(attempt_time=F("attempt_time") - dt.timedelta(minutes=6))
        assert self.log_in("right horse") == 302

    def test_twenty_wrong_passwords_for_any_names_lock_their_address_for_five_minutes(self):
        from axes.models import AccessAttempt

        tries = [self.log_in("wrong", name=f"name-{number}") for number in range(25)]
        assert tries == [200] * 19 + [429] * 6
        assert AccessAttempt.objects.count() == 20  # a refused one stores nothing, and makes no pause longer
        assert self.log_in("right horse") == 429
        assert self.log_in("right horse", ip="10.0.0.2") == 302
        AccessAttempt.objects.update(attempt_time=F("attempt_time") - dt.timedelta(minutes=6))
        assert self.log_in("right horse") == 302

    def test_a_right_one_forgets_no_wrong_ones_of_other_names(self):
        for number in range(19):
            self.log_in("wrong", name=f"name-{number}")
        assert self.log_in("right horse") == 302
        assert self.log_in("wrong", name="another") == 429

    def test_behind_a_proxy_the_clients_address_is_locked_and_not_the_proxys(self, settings):
        settings.TRUSTED_PROXIES = ["10.0.0.1"]
        assert [self.log_in("wrong", client="198.51.100.1") for _ in range(5)] == [200] * 4 + [429]
        assert self.log_in("right horse", client="198.51.100.1") == 429
        assert self.log_in("right horse", client="198.51.100.1, 198.51.100.2") == 302

    @pytest.mark.parametrize(
        ("addresses", "elsewhere"),
        [
            ([f"2001:db8:1:2:{n:x}::{n + 1:x}" for n in range(5)], "2001:db8:1:3::1"),
            (["::1", "::2:0:0:0", "::3", "0:0:0:0:5::", "::1"], "0:0:0:1::1"),
            (
                [
                    "192.0.2.9",
                    "::ffff:192.0.2.9",
                    "::ffff:c000:209",
                    "64:ff9b::192.0.2.9",
                    "2002:c000:209:7::1",
                ],
                "::ffff:192.0.2.10",
            ),
            (["fe80::1%eth0", "fe80::2%eth1", "fe80::3", "fe80::4", "fe80::5"], "fe80:0:0:1::1"),
            (["127.0.0.1"] * 5, "::1"),
            ([""] * 5, "192.0.2.9"),
            (["unix:"] * 5, "192.0.2.9"),
        ],
    )
    @pytest.mark.parametrize("is_forwarded", [False, True])
    def test_addresses_that_count_as_the_same_are_locked_together(
        self, settings, addresses, elsewhere, is_forwarded
    ):
        from axes.models import AccessAttempt

        settings.TRUSTED_PROXIES = ["10.0.0.1"]

        def try_from(address: str, password: str) -> int:
            if not is_forwarded:
                return self.log_in(password, ip=address)
            return self.log_in(password, ip="10.0.0.1", client=address)

        assert [try_from(address, "wrong") for address in addresses] == [200] * 4 + [429]
        assert [try_from(address, "right horse") for address in addresses] == [429] * 5
        assert AccessAttempt.objects.count() == 1
        assert try_from(elsewhere, "right horse") == 302

    def test_twenty_names_from_a_network_of_ipv6_lock_it(self):
        def tries(password: str, number: int) -> int:
            return self.log_in(password, name=f"name-{number}", ip=f"2001:db8:1:2::{number + 1:x}")

        assert [tries("wrong", number) for number in range(40)] == [200] * 19 + [429] * 21
        assert self.log_in("right horse", ip="2001:db8:1:2:3:4:5:6") == 429
        assert self.log_in("right horse", ip="2001:db8:1:4::1") == 302

    @pytest.mark.parametrize("written", ["2001:db8:1:2::77", "2001:DB8:1:2:3::4", "2001:db8:1:2::"])
    def test_the_command_forgets_the_failures_of_all_that_count_as_an_address(self, written):
        for number in range(5):
            self.log_in("wrong", ip=f"2001:db8:1:2::{number}")
        call_command("axes_reset_ip", "2001:db8:1:3::1", stdout=io.StringIO())
        assert self.log_in("right horse", ip="2001:db8:1:2::9") == 429
        call_command("axes_reset_ip", written, stdout=io.StringIO())
        assert self.log_in("right horse", ip="2001:db8:1:2::9") == 302

    def test_a_right_one_in_between_forgets_the_wrong_ones(self):
        for _ in range(3):
            assert [self.log_in("wrong") for _ in range(3)] == [200] * 3
            assert self.log_in("right horse") == 302


@pytest.mark.flow
def test_the_apps_role_does_all_its_work_and_can_neither_make_nor_drop():
    with Shop() as shop:
        with psycopg.connect(shop.postgres.url, autocommit=True) as owner:
            owner.execute((PROJECT / "docker" / "app_role.sql").read_bytes())
            owner.execute((PROJECT / "docker" / "app_role.sql").read_bytes())  # may be run again
            far = owner.execute(
                "SELECT max(inhrelid::regclass::text) FROM pg_inherits"
                " WHERE inhparent = 'outbox_events'::regclass"
            ).fetchone()[0]
            owner.execute(f"DROP TABLE {far}".encode())
            days = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass"
            assert owner.execute(days).fetchone()[0] >= 36  # enough for a month in which nobody makes one
        app = shop.postgres.url.replace("orderpost@", "orderpost_app@")
        shop.settings |= {"DATABASE_URL": app, "DIRECT_DATABASE_URL": app}
        shop.start("web", "worker", "beat", "standby", "relay", "consumer")
        shop.start("partitions", PARTITION_DATABASE_URL=shop.postgres.url)
        with redis.Redis.from_url(shop.valkey.url) as client:  # the consumer pays it
            paid = shop.place()
            client.xadd(PAYMENT, payment_event(paid))
        shop.until(lambda: shop.all_sent(1), "it is sent")
        shop.until(lambda: shop.query("SELECT name FROM heartbeats WHERE name = 'poll'"), "beat's poll came")
        with psycopg.connect(shop.postgres.url, autocommit=True) as owner:
            unpublished = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"
            shop.until(lambda: owner.execute(unpublished).fetchone() == (0,), "all is published")
        with psycopg.connect(app, autocommit=True) as connection:
            for statement in (
                "CREATE TABLE t (x int)",
                "DROP TABLE email_notifications",
                "ALTER TABLE orders ADD COLUMN x int",
                "TRUNCATE orders",
                "CREATE SCHEMA s",
                "CREATE ROLE r",
            ):
                with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.WrongObjectType)):
                    connection.execute(statement.encode())
        with psycopg.connect(app, autocommit=True) as connection:
            rolled = "SELECT count(*) FROM heartbeats WHERE name = 'rollover'"
            shop.until(lambda: connection.execute(rolled).fetchone() == (1,), "a rollover is complete")
            made = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [far]).fetchone()
            limit = "SELECT current_setting('statement_timeout')"
            assert made == (True,)
            assert connection.execute(limit).fetchone() == ("30s",)
        shop.pay(shop.place("later@example.com"))
        shop.until(lambda: shop.all_sent(2), "it is sent beside new partitions")
        shop.manage("privacy", "erase", "--email", "later@example.com", "--force")
        for refused in (["partitions", "ensure"], ["privacy", "erase", "--email", "x@example.com", "--now"]):
            with pytest.raises(subprocess.CalledProcessError) as caught:
                shop.manage(*refused)
            assert "PARTITION_DATABASE_URL" in caught.value.stderr
        shop.start("partitions:2")
        assert shop.processes["partitions:2"].wait(PATIENCE) == 1
        assert "PARTITION_DATABASE_URL" in shop.log("partitions:2")
        for name in ("web", "worker", "beat", "relay", "consumer", "partitions"):
            assert "permission denied" not in shop.log(name)


@pytest.mark.parametrize(
    ("proxies", "remote", "forwarded", "client"),
    [
        ([], "203.0.113.9", "198.51.100.1", "203.0.113.9"),
        (["10.0.0.0/8"], "10.0.0.5", "198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "10.0.0.5", None, "10.0.0.5"),
        # What the client sends itself stands before what the proxies append.
        (["10.0.0.0/8"], "10.0.0.5", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "10.0.0.5", "1.1.1.1, 10.0.0.7,198.51.100.1,10.0.0.6", "198.51.100.1"),
        # A client that connects directly is believed nothing.
        (["10.0.0.0/8"], "203.0.113.9", "1.1.1.1, 10.0.0.5", "203.0.113.9"),
        (["10.0.0.0/8"], "10.0.0.5", "10.0.0.9, 10.0.0.8", "10.0.0.9"),
        (["10.0.0.0/8"], "10.0.0.5", "unknown", "10.0.0.5"),
        (["2001:db8::/32"], "2001:db8::1", "198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "", "198.51.100.1", ""),
        # A server of both families has a proxy's IPv4 address so. Who may have the other forms is not known.
        (["10.0.0.0/8"], "::ffff:10.0.0.5", "198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "::ffff:11.0.0.5", "198.51.100.1", "::ffff:11.0.0.5"),
        (["10.0.0.0/8"], "64:ff9b::10.0.0.5", "198.51.100.1", "64:ff9b::10.0.0.5"),
        (["10.0.0.0/8"], "2002:a00:5::1", "198.51.100.1", "2002:a00:5::1"),
    ],
)
def test_it_takes_the_nearest_address_that_is_no_trusted_proxy(settings, proxies, remote, forwarded, client):
    settings.TRUSTED_PROXIES = proxies
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    assert client_address(RequestFactory().get("/", headers=headers, REMOTE_ADDR=remote)) == client


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("203.0.113.9", "203.0.113.0/24"),
        ("255.255.255.255", "255.255.255.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"),
        ("::ffff:203.0.113.9", "203.0.113.0/24"),
        ("64:ff9b::203.0.113.9", "203.0.113.0/24"),
        ("64:ff9b::1:cb00:7109", "64:ff9b::/48"),  # not in the /96
        ("64:ff9b:1::203.0.113.9", "64:ff9b:1::/48"),  # of one site only
        ("2002:cb00:7109:1::2", "203.0.113.0/24"),
        ("fe80::1%eth0", "fe80::/48"),
        ("::1", "::/48"),
        ("unix:", ""),
        ("", ""),
    ],
)
def test_a_log_line_has_only_the_network_of_an_address(address, masked):
    assert mask_address(address) == masked
