"""Modules that Django finds by name in each app: metrics, sums, and actions."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from django.apps import apps

from local.machine import PROJECT
from tests.kit import warm
from tests.kit.waiting import PATIENCE
from tests.kit.words import ACTIONS as REGISTERED

#: One that moved would be missing without any error.
FOUND_BY_NAME = {
    *("notifications.metrics", "outbox.metrics", "events.metrics", "web.metrics", "operations.metrics"),
    *("notifications.conditions", "outbox.conditions", "events.conditions", "orders.conditions"),
    *("shop_connections.conditions", "shop_connections.metrics"),
    *("retention.conditions", "operations.conditions"),
    *("notifications.sums", "orders.sums", "outbox.tasks", "runtime.tasks"),
}
#: Jobs store these names, so a name stays.
ACTIONS = {
    *("notifications.give_up", "notifications.mark_sent", "notifications.render_again"),
    "notifications.resend",
    *("orders.erase_person", "orders.export_person"),
    *("events.discard", "events.discard_inbound", "events.replay", "events.republish"),
}


def test_a_process_finds_each_apps_metrics_sums_tasks_and_actions():
    code = (
        "import json, sys, django; django.setup();"
        "from config.celery import app; app.loader.import_default_modules();"
        "from runtime.jobs.actions import ACTIONS;"
        "print(json.dumps([list(ACTIONS), [name for name in sys.modules]]))"
    )
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"}
    done = warm.run([sys.executable, "-c", code], environment=environment)
    actions, modules = json.loads(done.stdout)
    assert set(actions) == ACTIONS
    assert FOUND_BY_NAME - set(modules) == set()


def test_a_role_has_the_permission_of_each_action() -> None:
    """Otherwise only a superuser could start it, for example if the permission is misspelt."""
    granted = {
        permission
        for app in apps.get_app_configs()
        for permissions in getattr(app, "roles", {}).values()
        for permission in permissions
    }
    lacking = {action.name: action.permission for action in REGISTERED.values()}
    assert {name: permission for name, permission in lacking.items() if permission not in granted} == {}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_ends_in_silence_when_its_reader_has_ended(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as after `manage.py … | head`
    try:
        done = subprocess.run(
            [sys.executable, "manage.py", "help"],
            cwd=PROJECT,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_help_names_a_wrong_setting() -> None:
    done = warm.run([sys.executable, "manage.py", "help"], environment=os.environ | {"POLL_INTERVAL": "0"})
    assert "POLL_INTERVAL" in done.stdout + done.stderr
