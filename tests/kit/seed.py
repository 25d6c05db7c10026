"""A pytest plugin: each test gets random numbers that follow from one seed, which the end of a run prints.

`TESTS_SEED=123456 make test` gives each test the random numbers of that run again. `random.Random` objects
with their own seed, and derandomized tests of Hypothesis, do not depend on it.

No test of Hypothesis has a deadline, because an example takes long on a busy machine.
"""

from __future__ import annotations

import os
import random
import secrets

import hypothesis.core
import pytest
from hypothesis import settings

NAME = "TESTS_SEED"
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    # The processes of a parallel run inherit it from the first one.
    seed = os.environ.setdefault(NAME, str(secrets.randbelow(10**6)))
    if config.getoption("hypothesis_seed", None) is None:
        setattr(hypothesis.core, "global_force_seed", int(seed))  # noqa: B010 (declared as None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(f"{os.environ[NAME]} {item.nodeid}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.line(f"random numbers: {NAME}={os.environ[NAME]}")
