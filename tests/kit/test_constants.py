"""Processes of tests may have other constants, and others are as shipped."""

from __future__ import annotations

import os
import sys

from config import settings as shipped
from tests.kit import warm
from tests.kit.constants import NAMES, move_constants

CODE = (
    "import django; django.setup(); from django.conf import settings as s;"
    f"print(*(getattr(s, name) for name in {NAMES!r}), s.DATABASES['direct']['OPTIONS']['deadline'])"
)


def read(**given: str) -> list[float]:
    """Return the constants of a process, and the deadline of a connection."""
    environment = move_constants(os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"} | given)
    done = warm.run([sys.executable, "-c", CODE], environment=environment)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_a_process_has_the_shipped_constants():
    assert read() == [*(getattr(shipped, name) for name in NAMES), shipped.DATABASE_TIMEOUT]


def test_a_process_of_a_test_has_others():
    assert read(DATABASE_TIMEOUT="0.7", PARTITION_GRACE_DAYS="0") == [
        0.7,
        shipped.AMBIGUOUS_HOLD_SECONDS,
        shipped.BREAKER_OPEN_SECONDS,
        0.0,
        0.7,
    ]


def test_each_constant_is_no_variable():
    assert not set(NAMES) & {*shipped.env.dump(), *shipped.raw.dump()}
