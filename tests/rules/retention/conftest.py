"""Old orders for the tests of exports and erasures."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid

import pytest

from tests.kit.words import Order, id_floor


@pytest.fixture
def orders_of_last_year(monkeypatch) -> None:
    """Give orders ids of last year, so that e-mails of old months can be theirs."""
    start = id_floor(dt.datetime.now(dt.UTC) - dt.timedelta(days=400)).int
    ids = (uuid.UUID(int=start + number) for number in itertools.count())
    # Not `default`, of which a field that was used once has made this.
    monkeypatch.setattr(Order._meta.get_field("id"), "_get_default", lambda: next(ids), raising=False)
