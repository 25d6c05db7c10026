"""A pytest plugin: report skipped tests at the end of a run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.kit.needs import sentence


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    if not reports:
        return
    reasons = {report.nodeid: why(report) for report in reports}
    line, others = sentence(reasons.values())
    terminalreporter.section("skipped")
    if line:
        terminalreporter.line(line)
    for text, count in sorted(Counter(others).items()):
        terminalreporter.line(f"{count} skipped: {text}")
    if config.option.markexpr == "drill":  # each is a rehearsal that was not done
        for name in sorted(reasons):
            terminalreporter.line(f"skipped drill: {name}")


def why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason for a skip."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
