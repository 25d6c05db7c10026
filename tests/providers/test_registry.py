"""A provider is a folder and a line: everything else reads the registry."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from environs import Env

from local.machine import PROJECT
from notifications.providers.base import Provider
from notifications.providers.registry import read_settings
from notifications.providers.webhook import Webhook
from tests.kit import warm
from tests.kit.words import PROVIDERS, Dialect, declarations, make_key

#: Names that are other words, too: only literals and settings are looked for.
AMBIGUOUS = {"resend", "ses", "smtp"}


def names(provider: str) -> re.Pattern[str]:
    literal = rf"""["']{provider}["']|\b{provider.upper()}_[A-Z]|providers[./]{provider}\b"""
    return re.compile(literal if provider in AMBIGUOUS else rf"(?i)\b{provider}|{literal}")


def code() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "config", "orders", "notifications", "outbox", "templates"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [PROJECT / line for line in listed.stdout.splitlines() if line.endswith((".py", ".html", ".txt"))]


#: The admin's action has the same name as a provider.
OTHER_MEANING = {
    "smtp": {"orders/management/commands/demo.py"},  # a Mailpit is reached by it
    "resend": {
        "notifications/admin/email_actions.py",
        "notifications/admin/email_detail.py",
        "templates/admin/notifications/emailnotification/causes.html",
        "templates/admin/notifications/emailnotification/confirm.html",
    },
}


@pytest.mark.parametrize("provider", list(declarations()))
def test_a_provider_is_named_in_its_folder_and_the_registry_alone(provider):
    found = {str(path.relative_to(PROJECT)) for path in code() if names(provider).search(path.read_text())}
    inside = {path for path in found if path.startswith(f"notifications/providers/{provider}/")}
    outside = found - inside - OTHER_MEANING.get(provider, set())
    assert inside and outside == {"notifications/providers/registry.py"}


@pytest.mark.parametrize("name", list(declarations()))
def test_what_is_declared_is_there(name, settings):
    declared = declarations()[name]
    assert declared.name == name and isinstance(PROVIDERS[name], Provider) and PROVIDERS[name].name == name
    own = {setting.name for setting in declared.settings}
    assert {declared.api_key, declared.webhook_key} <= own | {""}
    assert bool(declared.webhook) == bool(declared.webhook_key)
    if declared.webhook:
        assert issubclass(import_string(declared.webhook), Webhook)
        assert isinstance(getattr(settings, declared.webhook_key), str)
    if declared.dialect:
        dialect = import_string(declared.dialect)()
        assert isinstance(dialect, Dialect) and dialect.name == name and declared.sandbox
    if declared.make_key:
        assert declared.check_key is not None
        declared.check_key(declared.make_key()[1])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("SENDGRID_WEBHOOK_VERIFICATION_KEY", "set"),
        ("SENDGRID_WEBHOOK_VERIFICATION_KEY", make_key()[0]),
        ("RESEND_WEBHOOK_SECRET", "whsec_not base64"),
        ("WEBHOOK_BASIC_AUTH", "password-alone"),
        ("WEBHOOK_BASIC_AUTH", "user:"),
        ("POSTMARK_WEBHOOK_BASIC_AUTH", ":password"),
        ("MAILGUN_WEBHOOK_SIGNING_KEY", "sécret"),
    ],
)
def test_a_webhook_key_that_cannot_be_read_is_refused_by_name(monkeypatch, name, wrong):
    monkeypatch.setenv(name, wrong)
    with pytest.raises(ImproperlyConfigured, match=rf"^{name} cannot be read: it must be "):
        read_settings(Env())


def start(**environment: str) -> subprocess.CompletedProcess[str]:
    code = "import config.settings as s; print(s.EMAIL_PROVIDERS)"
    return warm.run([sys.executable, "-c", code], environment=os.environ | environment)


def test_a_key_that_cannot_be_read_stops_the_start_with_a_sentence():
    done = start(SENDGRID_WEBHOOK_VERIFICATION_KEY="set")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and "SENDGRID_WEBHOOK_VERIFICATION_KEY cannot be read" in last


def test_in_production_the_providers_must_be_chosen():
    done = start(EMAIL_PROVIDERS="", SENDGRID_API_KEY="", DEBUG="off")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and "EMAIL_PROVIDERS is not set" in last
    assert all(name in last for name in declarations())


def test_in_production_a_key_is_choice_enough_but_is_warned_of():
    done = start(EMAIL_PROVIDERS="", SENDGRID_API_KEY="SG.x", DEBUG="off")
    assert done.stdout.strip() == "['sendgrid']" and "EMAIL_PROVIDERS is not set" in done.stderr


@pytest.mark.parametrize(
    "environment", [{"EMAIL_PROVIDERS": "", "DEBUG": "on"}, {"EMAIL_PROVIDERS": "sendgrid", "DEBUG": "off"}]
)
def test_otherwise_the_default_needs_no_key_and_no_warning(environment):
    done = start(**{"SENDGRID_API_KEY": ""} | environment)
    assert done.stdout.strip() == "['sendgrid']" and "EMAIL_PROVIDERS" not in done.stderr
