"""A bad setting stops every process with a sentence that names it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from config.local.machine import PROJECT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POLL_INTERVAL", "abc"),
        ("POLL_INTERVAL", "0"),
        ("POLL_BATCH_SIZE", "-1"),
        ("MAX_RETRIES", "many"),
        ("LEASE_SECONDS", "5"),
        ("EMAIL_PROVIDERS", "pigeon"),
        ("NOTIFY_ON", "order.lost"),
        ("DATABASE_URL", "mysql://localhost/shop"),
        ("REDIS_URL", "localhost"),
        ("FAST_PATH", "perhaps"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import config.settings"],
        cwd=PROJECT,
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("django.core.exceptions.ImproperlyConfigured:")
    assert name in last
