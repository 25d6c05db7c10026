"""Times of the product that tests of several files shorten. The fixture `fast` restores them at the end."""

from __future__ import annotations

import pytest

from runtime.database.postgres import base
from tests.kit.words import loop, pause_watch


class Fast:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._set = monkeypatch.setattr

    def retries(self) -> None:
        """Ask a neighbour that is away again at once."""
        self._set(loop, "BASE_SECONDS", 0.001)

    def pauses(self) -> None:
        """See a pause and its end at once."""
        self._set(pause_watch, "SECONDS", 0.0)

    def health_checks(self) -> None:
        """Ask each idle connection for its health, however recently it answered."""
        self._set(base, "RECENT_SECONDS", 0.0)
