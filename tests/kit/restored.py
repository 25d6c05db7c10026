"""A database that was restored to now, log lines of the time that it does not know, and `after_restore`."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from runtime.audit import Actor
from tests.kit.logs import shipped_to
from tests.kit.words import EmailNotification, Pause, pauses, read_database_time


def after_restore(*logs: Path) -> tuple[list[dict[str, Any]], str]:
    """Run the command. Return what the database lost, and the summary."""
    output, errors = io.StringIO(), io.StringIO()
    call_command("after_restore", "--log", *map(str, logs), stdout=output, stderr=errors)
    return [json.loads(line) for line in output.getvalue().splitlines()], errors.getvalue()


def restore_to_now() -> None:
    pauses.pause(parts=Pause.Part.values, reason="", by=Actor("x"), restored_to=read_database_time())


def line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, "timestamp": read_database_time().isoformat(), **fields}) + "\n"


def sent(id: uuid.UUID, **fields: Any) -> str:
    return line("notification changed", notification_id=str(id), now="sent", provider="ses", **fields)


def states() -> dict[uuid.UUID, str]:
    return dict(EmailNotification.objects.values_list("id", "status"))


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Path]:
    """Return the file to which this process logs as the others do."""
    path = tmp_path / "worker.log"
    with path.open("w") as stream, shipped_to(stream):
        yield path
