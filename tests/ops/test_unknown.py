"""A variable that looks like a setting and is none stops a deployment, and other processes name it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from config import settings as shipped
from config.unknown import find_unknown
from tests.kit import warm
from tests.kit.chart import documented_settings

KNOWN = (
    *("DATABASE_URL", "KAFKA_BOOTSTRAP_SERVERS", "KAFKA_OPTIONS", "LEASE_SECONDS", "METRICS_HOST"),
    *("METRICS_PORT", "SENTRY_DSN", "SENTRY_TRACES_SAMPLE_RATE", "AWS_REGION", "AWS_DEFAULT_REGION"),
)


def unknown(name: str, value: str = "x") -> dict[str, str]:
    return find_unknown(environ={name: value, "PATH": "/bin"}, known=KNOWN)


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("KAFKA_BOOTSTRAP_SERVER", "KAFKA_BOOTSTRAP_SERVERS"),
        ("KAFKA_XYZ", ""),
        ("KAFKA_OPTION_FILE", "KAFKA_OPTIONS_FILE"),
        ("METRICS_PORTS", "METRICS_PORT"),
        ("LEASE_SECOND", "LEASE_SECONDS"),
        ("METRICS_ADMIN_PORT", "METRICS_PORT"),
    ],
)
def test_an_unknown_variable_is_found_with_the_closest_setting(name: str, closest: str) -> None:
    assert unknown(name) == {name: closest}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KAFKA_OPTIONS_FILE", "/run/secrets/kafka"),
        ("DATABASE_PASSWORD", "part of a URL"),
        ("AWS_PROFILE", "shop"),
        ("SENTRY_RELEASE", "1"),
        ("OTEL_SERVICE_NAME", "orderpost"),
        ("GRANIAN_LOG_LEVEL", "info"),
        ("KAFKA", "on"),
        ("KAFKA_PORT", "tcp://10.96.0.12:9092"),
        ("KAFKA_SERVICE_HOST", "10.96.0.12"),
        ("KAFKA_SERVICE_PORT", "9092"),
        ("KAFKA_SERVICE_PORT_CLIENTS", "9092"),
        ("KAFKA_PORT_9092_TCP", "tcp://10.96.0.12:9092"),
        ("KAFKA_PORT_9092_TCP_ADDR", "10.96.0.12"),
        ("METRICS_UI_PORT", "tcp://10.96.0.13:80"),
    ],
)
def test_a_variable_of_others_is_not(name: str, value: str) -> None:
    assert unknown(name, value) == {}


def manage(*words: str, **given: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"} | given
    return warm.run([sys.executable, "manage.py", *words], environment=environment)


def warnings(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    return [
        (line["variable"], line["closest"]) for line in lines if line["event"] == "variable is not a setting"
    ]


@pytest.mark.parametrize("words", [["check", "--deploy"], ["migrate", "--noinput"]])
@pytest.mark.parametrize("suffix", ["", "_FILE"])
def test_it_stops_the_check_of_a_deployment_and_the_role_migrate(words: list[str], suffix: str) -> None:
    done = manage(*words, **{f"EMAIL_RATE_LIMITS{suffix}": "5"})
    assert done.returncode == 1
    sentence = f"EMAIL_RATE_LIMITS{suffix} is not a setting. Did you mean EMAIL_RATE_LIMIT{suffix}?"
    assert sentence in done.stderr


@pytest.mark.parametrize("words", [["check"], ["help", "status"], ["migrate", "--check", "--skip-checks"]])
def test_another_process_warns_of_it_once_and_starts(words: list[str]) -> None:
    done = manage(*words, EMAIL_RATE_LIMITS="5")
    assert "Did you mean" not in done.stderr
    assert warnings(done) == [("EMAIL_RATE_LIMITS", "EMAIL_RATE_LIMIT")]
    assert words[0] == "migrate" or done.returncode == 0, done.stderr


def test_no_documented_variable_is_unknown() -> None:
    names = documented_settings()
    assert len(names) > 60
    known = {*shipped.env.dump(), *shipped.raw.dump()}
    assert find_unknown(environ=dict.fromkeys(names, "x"), known=known) == {}
