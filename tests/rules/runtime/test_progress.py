"""A command on a terminal shows a person words, and no log lines below an error."""

from __future__ import annotations

import io
import logging

import pytest
import structlog

from runtime.progress import words_on_a_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_no_log_lines_between_the_words_and_other_logs_stay_complete(
    is_terminal, monkeypatch
):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    log = structlog.get_logger("ours")
    with words_on_a_terminal():
        log.warning("resumed")
        log.error("a defect")
    log.warning("later")
    lines = stream.getvalue()
    assert ("resumed" in lines) is not is_terminal
    assert "a defect" in lines and "later" in lines
