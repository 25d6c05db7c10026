"""Logs that grew too long are moved aside, while supervisord and the programs write to them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from local import supervision
from local.supervision import Supervisor


def test_a_long_log_is_moved_aside_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "log"
    logs.mkdir()
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(supervision, "LONGEST_LOG", 5)
    monkeypatch.setattr(os, "kill", lambda *sent: told.append(sent))
    supervisor = Supervisor(var=tmp_path, servers=[], application=[])
    answers = SimpleNamespace(supervisor=SimpleNamespace(getPID=lambda: 4711))
    monkeypatch.setattr(supervisor, "_rpc", lambda: answers)
    (logs / "short.log").write_text("12345")
    for text in ("first…", "second", "third…", "fourth", "fifth…"):
        (logs / "web.log").write_text(text)
        supervisor.rotate_logs()
    assert {log.name: log.read_text() for log in logs.iterdir()} == {
        "short.log": "12345",
        "web.log.1": "fifth…",
        "web.log.2": "fourth",
        "web.log.3": "third…",
    }
    assert told == [(4711, signal.SIGUSR2)] * 5
    supervisor.rotate_logs()
    assert len(told) == 5
