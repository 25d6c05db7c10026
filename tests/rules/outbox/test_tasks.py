"""Wake-ups as Celery tasks, on a real broker."""

from __future__ import annotations

import pytest
from celery import current_app

from tests.kit.words import Drained, make_client, tasks


@pytest.fixture
def queue(valkey_url, settings):
    settings.REDIS_URL = valkey_url
    tasks._broker.cache_clear()
    with make_client() as client:
        yield lambda: client.llen(current_app.conf.task_default_queue)
    tasks._broker.cache_clear()


def test_wake_ups_do_not_pile_up_while_no_worker_takes_them(queue):
    for _ in range(3 * tasks.MOST_WAITING):
        tasks._enqueue_drain()
    assert queue() == tasks.MOST_WAITING


def test_a_queue_that_a_worker_empties_gets_wake_ups_again(queue):
    for _ in range(tasks.MOST_WAITING + 1):
        tasks._enqueue_drain()
    with make_client() as client:
        client.delete(current_app.conf.task_default_queue)
    tasks._enqueue_drain()
    assert queue() == 1


def test_a_worker_waits_while_no_provider_may_be_asked_although_e_mails_are_due(settings, monkeypatch):
    settings.FAST_PATH = True
    waits: list[float] = []
    monkeypatch.setattr(tasks.timer, "wake", lambda *, in_seconds: waits.append(in_seconds))
    tasks._go_on(Drained(pause_seconds=25.0, next_due_seconds=0.0))
    assert waits == [25.0]
