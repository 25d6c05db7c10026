"""What the processes of a local run are told, and what `manage.py` finds beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from dotenv import dotenv_values

from local import environment
from tests.kit import servers


def complete(tmp_path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    return environment.complete(
        environ=environ,
        database_url="postgresql://orderpost@127.0.0.1:20000/orderpost",
        redis_url="redis://127.0.0.1:20001/0",
        sandbox_port=8001 if environment.played(environ=environ) else None,
        secret_key_file=tmp_path / "secret_key",
        connection_key_file=tmp_path / "connection_key",
        webhook_keys_file=tmp_path / "webhook_keys.json",
    )


def test_it_fills_every_gap(tmp_path: Path) -> None:
    whole = complete(tmp_path, {"HOME": "/home/ada", "DATABASE_URL": "", "PGSSLMODE": "require"})
    assert whole["HOME"] == "/home/ada"
    assert whole["DATABASE_URL"] == "postgresql://orderpost@127.0.0.1:20000/orderpost"
    assert whole["SENDGRID_API_URL"] == "http://127.0.0.1:8001/v3/"
    assert len(whole["SECRET_KEY"]) >= 50
    assert len(whole["CONNECTION_KEY"]) >= 50
    assert "PGSSLMODE" not in whole


def test_what_a_person_has_set_wins_also_as_a_file(tmp_path: Path) -> None:
    variables = {"SECRET_KEY_FILE": "/run/secrets/key", "HTTPS": "on", "LOG_FORMAT": "json"}
    whole = complete(tmp_path, variables)
    assert "SECRET_KEY" not in whole
    assert not (tmp_path / "secret_key").exists()
    assert {name: whole[name] for name in variables} == variables


@pytest.mark.parametrize("name", ["SENDGRID_API_KEY", "SENDGRID_API_KEY_FILE"])
def test_a_key_of_ones_own_means_the_real_provider(tmp_path: Path, name: str) -> None:
    whole = complete(tmp_path, {name: "SG.mine"})
    assert whole[name] == "SG.mine"
    assert "SENDGRID_API_URL" not in whole


def test_the_secret_key_stays_the_same_and_private(tmp_path: Path) -> None:
    first = complete(tmp_path, {})["SECRET_KEY"]
    assert complete(tmp_path, {})["SECRET_KEY"] == first
    assert (tmp_path / "secret_key").stat().st_mode & 0o777 == 0o600


def test_the_mailbox_signs_with_keys_that_stay_the_same_and_private(tmp_path: Path) -> None:
    whole = complete(tmp_path, {})
    assert whole["EMAIL_PROVIDERS"] == "sendgrid"
    again = complete(tmp_path, {})["SENDGRID_WEBHOOK_VERIFICATION_KEY"]
    assert again == whole["SENDGRID_WEBHOOK_VERIFICATION_KEY"] != ""
    path = tmp_path / "webhook_keys.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["sendgrid"]["verifies"] == again


def test_the_mailbox_plays_whichever_provider_is_named(tmp_path: Path) -> None:
    whole = complete(tmp_path, {"EMAIL_PROVIDERS": "postmark, mailgun"})
    assert whole["POSTMARK_API_URL"] == "http://127.0.0.1:8001/"
    assert whole["MAILGUN_API_URL"] == "http://127.0.0.1:8001/v3/"
    assert ":" in whole["POSTMARK_WEBHOOK_BASIC_AUTH"] and whole["MAILGUN_WEBHOOK_SIGNING_KEY"]
    assert "SENDGRID_API_KEY" not in whole


@pytest.mark.parametrize("providers", ["smtp", "pigeon"])
def test_the_mailbox_stays_away_where_it_plays_nobody(providers: str) -> None:
    assert not environment.played(environ={"EMAIL_PROVIDERS": providers})


def test_local_env_is_private_and_reads_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "local.env"
    variables = {"SECRET_KEY": 'a\'b\\c "d" #e', "HOME": "/home/ada", "ORDER_SOURCES": "my-shop"}
    whole = complete(tmp_path, variables)
    environment.write_local_env(path, environment=whole)
    assert path.stat().st_mode & 0o777 == 0o600
    read = dotenv_values(path)
    assert read == {name: whole[name] for name in environment.NAMES if name in whole}
    assert read["ORDER_SOURCES"] == "my-shop", "else `manage.py tokens create --source` refuses the shop"


def test_the_tests_set_every_name_that_local_env_can_hold() -> None:
    assert set(environment.NAMES) <= servers.FIXED.keys() | {"DATABASE_URL", "REDIS_URL"}
