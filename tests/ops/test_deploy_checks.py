"""`check --deploy` and the admin's first page warn of settings that are wrong for production."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import Client

from config.database_url import parse_database
from operations.checks import databases_without_tls
from runtime.conditions import PRODUCTION
from tests.kit import warm
from tests.kit.people import staff_client
from tests.kit.words import Heartbeat

REAL = {
    "DEFAULT_FROM_EMAIL": "Tea <orders@tea.test>",
    "SHOP_NAME": "Tea & Co",
    "SHOP_ADDRESS": "Tea & Co, 5 High Street, Leeds",
    "SHOP_URL": "https://tea.test",
}


def warnings() -> list[str]:
    return [warning.msg for warning in run_checks(tags=[PRODUCTION], include_deployment_checks=True)]


def without_tls(url: str, *, environ: dict[str, str] | None = None, **others: str) -> list[tuple[str, str]]:
    """Return the settings and hosts that lack TLS, if each database but those in `others` has `url`."""
    names = {"default": url, "direct": url, "owner": url} | others
    databases = {name: parse_database(address) for name, address in names.items()}
    return [(name, host) for name, host, _ in databases_without_tls(databases, environ=environ or {})]


class TestExamples:
    def test_each_example_that_customers_would_read_is_named(self) -> None:
        assert [text.partition(": ")[0] for text in warnings()] == [
            f"E-mails to customers show the example of {name}"
            for name in ("DEFAULT_FROM_EMAIL", "SHOP_URL", "SHOP_NAME", "SHOP_ADDRESS")
        ]

    def test_real_values_are_not(self, settings: Any) -> None:
        for name, value in REAL.items():
            setattr(settings, name, value)
        assert warnings() == []

    @pytest.mark.parametrize(
        ("sender", "warned"),
        [
            ("Tea <orders@mail.example.org>", True),
            ("orders@EXAMPLE.com", True),
            ("orders@notexample.com", False),
        ],
    )
    def test_a_sender_counts_as_an_example_by_its_domain(
        self, settings: Any, sender: str, warned: bool
    ) -> None:
        settings.DEFAULT_FROM_EMAIL = sender
        assert any("DEFAULT_FROM_EMAIL" in text for text in warnings()) is warned


class TestTls:
    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://u:secret@127.0.0.1:5432/shop",
            "postgresql://u:secret@localhost/shop",
            "postgresql://u:secret@[::1]/shop",
            "postgresql:///shop",
            "postgresql:///shop?host=/run/postgresql",
            "postgresql://u:secret@%2Frun%2Fpostgresql/shop",
            "postgresql://u:secret@db.tea.test/shop?sslmode=require",
            "postgresql://u:secret@db1.tea.test,db2.tea.test/shop?sslmode=verify-full",
        ],
    )
    def test_a_database_on_this_machine_or_with_tls_is_fine(self, url: str) -> None:
        assert without_tls(url) == []

    @pytest.mark.parametrize(
        ("url", "host"),
        [
            ("postgresql://u:secret@db.tea.test/shop", "db.tea.test"),
            ("postgresql://u:secret@10.0.0.5/shop?sslmode=prefer", "10.0.0.5"),
            ("postgresql://u:secret@127.0.0.1,db2.tea.test/shop", "db2.tea.test"),
            ("postgresql:///shop?host=db.tea.test", "db.tea.test"),
        ],
    )
    def test_a_remote_database_without_tls_is_named_once(self, url: str, host: str) -> None:
        assert without_tls(url) == [("DATABASE_URL", host)]

    def test_each_url_that_differs_is_named(self) -> None:
        assert without_tls(
            "postgresql://u@db.tea.test/shop?sslmode=require", owner="postgresql://o@db.tea.test/shop"
        ) == [("PARTITION_DATABASE_URL", "db.tea.test")]

    def test_a_replica_is_named_as_well(self) -> None:
        replica = "postgresql://u@replica.tea.test/shop"
        assert without_tls("postgresql:///shop", replica=replica) == [
            ("REPLICA_DATABASE_URL", "replica.tea.test")
        ]

    def test_the_variables_of_libpq_count(self) -> None:
        assert without_tls("postgresql:///shop", environ={"PGHOST": "db.tea.test"}) == [
            ("DATABASE_URL", "db.tea.test")
        ]
        assert without_tls("postgresql://u@db.tea.test/shop", environ={"PGSSLMODE": "require"}) == []

    @pytest.mark.parametrize(
        ("url", "host"),
        [
            ("redis://:secret@valkey.tea.test:6379/0", "valkey.tea.test"),
            ("rediss://:secret@valkey.tea.test:6379/0", None),
            ("redis://127.0.0.1:6379/0", None),
            ("redis://localhost", None),
            ("unix:///run/valkey.sock", None),
        ],
    )
    def test_valkey_is_named_if_it_is_remote_and_without_tls(
        self, settings: Any, url: str, host: str | None
    ) -> None:
        settings.REDIS_URL = url
        texts = [text for text in warnings() if "REDIS_URL" in text]
        assert texts == ([f"REDIS_URL leads to {host} without TLS."] if host else [])

    @pytest.mark.django_db
    @pytest.mark.parametrize(
        ("transport", "beats", "protocol", "host"),
        [
            ("kafka", [], "SASL_PLAINTEXT", "k2.tea.test"),
            ("kafka", [], "SASL_SSL", None),
            ("redis", ["cdc", "poll"], "PLAINTEXT", "k2.tea.test"),
            ("redis", ["cdc", "poll"], "ssl", None),
            ("redis", ["poll"], "PLAINTEXT", None),
        ],
    )
    def test_kafka_is_named_if_events_go_there_or_a_consumer_of_debeziums_changes_ran(
        self, settings: Any, transport: str, beats: list[str], protocol: str, host: str | None
    ) -> None:
        for name in beats:
            Heartbeat.beat(name=name)
        settings.EVENT_TRANSPORT, settings.KAFKA_OPTIONS = transport, {"security.protocol": protocol}
        settings.KAFKA_BOOTSTRAP_SERVERS = "localhost:9092, k2.tea.test:9092"
        texts = [text for text in warnings() if "KAFKA" in text]
        assert texts == ([f"KAFKA_BOOTSTRAP_SERVERS leads to {host} without TLS."] if host else [])


def test_check_deploy_warns_of_no_kafka_while_the_database_cannot_say_who_uses_it() -> None:
    environment = os.environ | {
        "DATABASE_URL": "postgresql://u@127.0.0.1:1/shop?sslmode=require",
        "KAFKA_BOOTSTRAP_SERVERS": "k2.tea.test:9092",
    }
    done = warm.run([sys.executable, "manage.py", "check", "--deploy"], environment=environment)
    assert done.returncode == 0, done.stderr
    assert "orderpost.W001" not in done.stderr and "example of SHOP_NAME" in done.stderr


def test_check_deploy_warns_without_a_password_and_other_commands_start() -> None:
    environment = os.environ | {
        "DATABASE_URL": "postgresql://u:hidden1@db.tea.test/shop",
        "REDIS_URL": "redis://:hidden2@valkey.tea.test/0",
    }

    def run(*words: str) -> Any:
        return warm.run([sys.executable, "manage.py", *words], environment=environment)

    done = run("check", "--deploy")
    assert done.returncode == 0, done.stderr
    for text in (
        "DATABASE_URL leads to db.tea.test",
        "REDIS_URL leads to valkey.tea.test",
        "example of DEFAULT_FROM_EMAIL: orders@example.com",
    ):
        assert done.stderr.count(text) == 1, done.stderr
    assert "hidden" not in done.stdout + done.stderr
    done = run("check")
    assert done.returncode == 0 and "without TLS" not in done.stderr, done.stderr


@pytest.mark.django_db
class TestFirstPage:
    SENTENCE = "show the example of DEFAULT_FROM_EMAIL"

    def test_it_shows_the_warnings_in_production(self, admin_client: Client, settings: Any) -> None:
        settings.HTTPS = True
        assert self.SENTENCE in admin_client.get("/admin/").content.decode()
        for name, value in REAL.items():
            setattr(settings, name, value)
        assert "E-mails to customers show" not in admin_client.get("/admin/").content.decode()

    def test_a_local_run_shows_none(self, admin_client: Client) -> None:
        assert self.SENTENCE not in admin_client.get("/admin/").content.decode()

    def test_a_person_without_permissions_sees_none(self, settings: Any) -> None:
        settings.HTTPS = True
        assert self.SENTENCE not in staff_client().get("/admin/").content.decode()
        viewer = staff_client("view_heartbeat", name="viewer")
        assert self.SENTENCE in viewer.get("/admin/").content.decode()
