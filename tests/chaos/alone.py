"""Django for programs that use the tests' tools without pytest, such as `make chaos`."""

from __future__ import annotations

import os

import django

from tests.kit.servers import FIXED


def prepare() -> None:
    """Set up Django as pytest does, without a database. Call it before other imports."""
    os.environ.update(FIXED)
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    os.environ["DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/none"
    os.environ["REDIS_URL"] = "redis://127.0.0.1:1/0"
    django.setup()
