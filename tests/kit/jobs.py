"""Run bulk jobs in tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.test import Client

from tests.kit.words import bulk

LIST = "/admin/notifications/emailnotification/"


def run_jobs() -> None:
    """Run batches until none is due, as workers do."""
    while bulk.run_batch():
        pass


def act(client: Client, action: str, ids: Iterable[object], **fields: str) -> Any:
    """Tick e-mails in the admin's list, confirm the action, run its job, and return the job's page.

    Return the list's answer if it does not ask.
    """
    ticked = {"action": action, "_selected_action": [str(id) for id in ids]}
    asked = client.post(LIST, ticked, follow=True)
    if "hidden" not in asked.context:
        return asked
    answer = dict(asked.context["hidden"]) | {"action": action, "confirmed": "yes"} | fields
    started = client.post(f"{LIST}bulk/", answer)
    run_jobs()
    return client.get(started["Location"])
