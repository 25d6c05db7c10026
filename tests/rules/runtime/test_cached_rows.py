"""Small tables in memory: what is registered while they are read."""

from __future__ import annotations

import pytest

from runtime.process import cached_rows
from runtime.process.cached_rows import CachedRows


@pytest.mark.django_db
def test_a_table_that_a_module_adds_during_a_refresh_is_read_by_the_next(monkeypatch):
    """As in a web process, whose heartbeat begins while the main thread still imports the views."""
    monkeypatch.setattr(cached_rows, "CACHED", [])
    added: list[CachedRows[str]] = []

    def load_and_import() -> dict[str, str]:
        if not added:
            added.append(CachedRows(version="'1'", load=lambda: {"a": "late"}))
        return {"a": "early"}

    first = CachedRows(version="'1'", load=load_and_import)
    cached_rows.refresh()
    assert (first.value, added[0].value) == ({"a": "early"}, None)
    cached_rows.refresh()
    assert added[0].value == {"a": "late"}
