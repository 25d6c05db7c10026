"""Fixtures for all tests of providers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.providers import provider, smtp_server
from tests.kit.smtp import SmtpServer

__all__ = ["provider"]


@pytest.fixture
def smtp(settings) -> Iterator[SmtpServer]:
    """Start an SMTP server, which may hang: a second is the longest wait for a reply."""
    with smtp_server(settings, seconds=1) as server:
        yield server
