"""A host that vanishes with an advisory lock in its hands: beat's, or a relay's shard."""

from __future__ import annotations

import subprocess
import sys

import pytest

from local.machine import PROJECT
from tests.kit.needs import reason

pytestmark = [pytest.mark.flow, pytest.mark.drill]


def test_the_locks_of_a_host_that_is_gone_are_free_within_a_minute():
    inside = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*inside, "ip", "link", "show"], capture_output=True, timeout=30).returncode != 0:
        pytest.skip(reason("network namespaces"))
    done = subprocess.run(
        [*inside, sys.executable, "-m", "tests.drills.gone_host"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 60
