"""Logs that grew too long are moved aside, while supervisord and the programs write to them."""

from __future__ import annotations

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
    told: list[int] = []
    monkeypatch.setattr(supervision, "LONGEST_LOG", 5)
    supervisor = Supervisor(var=tmp_path)
    monkeypatch.setattr(supervisor, "_process", SimpleNamespace(send_signal=told.append))
    (logs / "short.log").write_text("12345")
    for text in ("first…", "second", "third…", "fourth", "fifth…"):
        (logs / "web.log").write_text(text)
        supervisor.rotate_logs()
    assert {log.name: log.read_text() for log in logs.iterdir()} == {
        "supervisord.log": "",
        "short.log": "12345",
        "web.log.1": "fifth…",
        "web.log.2": "fourth",
        "web.log.3": "third…",
    }
    assert told == [signal.SIGUSR2] * 5
    supervisor.rotate_logs()
    assert len(told) == 5
