"""A pytest plugin: print a failure when it happens, because pytest prints all of them at the end of a run.

A run that is stopped, or that hangs, then shows what failed before.
"""

from __future__ import annotations

import pytest


class _Printer:
    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)  # after pytest's own letter for the outcome
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        error = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else report.longreprtext
        self._reporter.line("")  # ends the line of letters
        self._reporter.write_line(f"FAILED in its {report.when}: {report.nodeid}", red=True)
        self._reporter.write_line(error)


@pytest.hookimpl(trylast=True)  # pytest registers its reporter in this hook
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:  # the processes of a parallel run have none
        config.pluginmanager.register(_Printer(reporter))
