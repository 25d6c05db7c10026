"""Other work of workers: a poll wakes a worker for it, and a standby leaves what waits for other hosts."""

from __future__ import annotations

import pytest

from runtime.jobs import work
from runtime.jobs.work import BackgroundStep
from runtime.tasks import do_work
from tests.kit.words import wake_for_unfinished


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Register two kinds of work, of which one waits for other hosts. Return the list of what was done."""
    names: list[str] = []

    def note(name: str) -> bool:
        names.append(name)
        return name == "here"

    monkeypatch.setattr(
        work,
        "_work",
        [
            BackgroundStep(lambda: True, lambda: note("here")),
            BackgroundStep(lambda: False, lambda: note("elsewhere"), waits_for_others=True),
        ],
    )
    return names


def test_a_worker_does_all_work_and_a_standby_what_waits_for_no_other_host(done):
    assert work.do_work() is True
    assert done == ["here", "elsewhere"]
    done.clear()
    assert work.do_work(is_standby=True) is True
    assert done == ["here"]


@pytest.mark.django_db
def test_a_poll_wakes_a_worker_for_waiting_work(done, monkeypatch):
    wakes: list[str] = []
    monkeypatch.setattr(work.waker, "wake", lambda *_, **__: wakes.append(""))
    wake_for_unfinished()
    assert len(wakes) == 1
    do_work()
    assert done == ["here", "elsewhere"] and len(wakes) == 2
    work._work.clear()
    wake_for_unfinished()
    assert len(wakes) == 2
