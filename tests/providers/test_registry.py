"""The registry declares each provider, and refuses settings that cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from environs import Env

from notifications.providers.base import Provider
from notifications.providers.registry import read_settings
from notifications.providers.webhook import Webhook
from tests.kit import warm
from tests.kit.words import PROVIDERS, Dialect, declarations, make_key


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
