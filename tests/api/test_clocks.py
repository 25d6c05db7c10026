"""A change that is made by a wrong clock is refused loudly. Nothing is changed, and nothing lost."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid

import pytest

import events.publishing.write
from tests.kit.orders import make_order
from tests.kit.words import DomainEvent, EmailNotification, IdempotencyKey, id_floor

pytestmark = pytest.mark.django_db


def a_clock(monkeypatch, **off: float) -> None:
    """Ids of events as a host makes them whose clock is so far off."""
    start = id_floor(dt.datetime.now(dt.UTC) + dt.timedelta(**off)).int
    ids = (uuid.UUID(int=start + number) for number in itertools.count())
    monkeypatch.setattr(events.publishing.write, "new_id", lambda: next(ids))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("days", [61, 3, -3, -400, 4000])
def test_a_host_whose_clock_is_days_off_refuses_the_change_and_says_why(api, monkeypatch, days, caplog):
    order = make_order()
    a_clock(monkeypatch, days=days)
    answer = api.post(f"/api/v1/orders/{order.id}/pay", key="k")
    assert answer.status_code == 503
    assert answer.json()["type"].endswith(":clock") and answer.headers["Retry-After"]
    assert "a row fits no partition: is a clock wrong?" in caplog.text
    order.refresh_from_db()
    assert order.status == "pending" and not EmailNotification.objects.exists()
    assert not IdempotencyKey.objects.exists() and not DomainEvent.objects.exists()
    monkeypatch.undo()
    assert api.post(f"/api/v1/orders/{order.id}/pay", key="k").status_code == 200


@pytest.mark.parametrize("hours", [1, -1])
def test_a_host_whose_clock_is_an_hour_off_goes_on(api, monkeypatch, hours):
    order = make_order()
    a_clock(monkeypatch, hours=hours)
    assert api.post(f"/api/v1/orders/{order.id}/pay").status_code == 200
