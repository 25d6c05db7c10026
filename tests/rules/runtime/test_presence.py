"""Each process has a row, and one whose beat is old is named until it is replaced, removed or forgotten."""

from __future__ import annotations

import datetime as dt
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from django.db.models.functions import Now

from operations.status import read_status
from runtime.process.presence import Presence, ProcessState, find_state
from tests.kit.people import staff_client
from tests.kit.waiting import until
from tests.kit.words import Heartbeat

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet_shop(valkey_url, settings):
    settings.REDIS_URL = valkey_url
    Heartbeat.beat(name="poll")
    stay_fresh()


def stay_fresh() -> None:
    """Move all beats an hour ahead, so that none is old however slow the machine is."""
    Heartbeat.objects.update(beat_at=Now() + dt.timedelta(hours=1))


def gone() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def age(presence: Presence, *, seconds: float) -> None:
    Heartbeat.objects.filter(name=presence.name).update(beat_at=Now() - dt.timedelta(seconds=seconds))


def numbers() -> list[int]:
    return [row["process"] for row in read_status()["processes"]]


def test_a_beat_is_one_statement_and_one_row(django_assert_num_queries):
    presence = Presence(kind="worker")
    for _ in range(2):
        with django_assert_num_queries(1):
            presence.beat()
    stay_fresh()
    (row,) = read_status()["processes"]
    assert (row["kind"], row["process"]) == ("worker", os.getpid()) and row["host"] and row["release"]
    assert read_status()["needs"] == []
    assert "process" not in read_status()["jobs"]


def test_one_without_a_beat_is_named_although_others_beat():
    frozen = Presence(kind="worker", host="a", process=1)
    for presence in (frozen, Presence(kind="worker", host="b", process=2), Presence(kind="standby")):
        presence.beat()
    stay_fresh()
    age(frozen, seconds=3 * 3600 + 10)
    (sentence,) = read_status()["needs"]
    assert sentence.startswith("worker (process 1 on a): no beat for 180 min: start it again")


def test_one_that_stopped_is_not_named_and_one_is_forgotten_after_a_day():
    stopped, removed = (Presence(kind="worker", host="a", process=number) for number in (1, 2))
    stopped.beat()
    stopped.forget()
    removed.beat()
    age(removed, seconds=86_401)
    assert read_status()["needs"] == [] and numbers() == []


def test_a_successor_takes_the_rows_of_dead_processes_of_its_kind_and_host():
    dead = gone()
    rows = [
        Presence(kind="worker", process=dead),
        Presence(kind="worker", process=os.getpid()),  # of the container before its restart
        Presence(kind="worker", process=os.getppid()),  # exists
        Presence(kind="standby", process=dead),
        Presence(kind="worker", process=dead, host="another"),
    ]
    for row in rows:
        row.beat()
    new = Presence(kind="worker")
    new.beat()
    new.forget_predecessors()
    assert set(Heartbeat.objects.exclude(kind=None).values_list("name", flat=True)) == {
        *(row.name for row in rows[2:]),
        new.name,
    }


@pytest.mark.parametrize("may", [True, False])
def test_a_person_who_may_forgets_one(may):
    presence = Presence(kind="worker", host="a", process=1)
    presence.beat()
    client = staff_client("view_heartbeat", *(["delete_heartbeat"] if may else []))
    client.post(
        "/admin/runtime/heartbeat/", {"action": "forget", "_selected_action": [presence.name]}, follow=True
    )
    assert Heartbeat.objects.filter(name=presence.name).exists() is not may


def test_the_first_page_lists_them(admin_client):
    Presence(kind="worker", host="a", process=1).beat()
    page = admin_client.get("/admin/").content.decode()
    assert '<th scope="row">worker</th><td>a</td><td>1</td>' in page


def test_a_frozen_process_of_this_host_is_told_from_one_that_hangs_or_is_gone():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    presence = Presence(kind="worker", process=process.pid)
    presence.beat()
    age(presence, seconds=30)
    number = process.pid
    try:
        for number_of_signal, cure in (
            (signal.SIGSTOP, f"it is frozen: `kill -CONT {number}`, or `kill -9 {number}`"),
            (signal.SIGCONT, f"it hangs: `kill -9 {number}`"),
            (signal.SIGKILL, "it was killed: start it"),
        ):
            process.send_signal(number_of_signal)
            until(lambda cure=cure: cure in "".join(read_status()["needs"]))
    finally:
        process.kill()
        process.wait()
    assert find_state(host="another", process=number, up_seconds=0.0) is None
    assert find_state(host=socket.gethostname(), process=os.getpid(), up_seconds=1e6) is ProcessState.GONE


@pytest.mark.parametrize(("seconds", "way"), [(600, "10 min ahead of"), (-90, "90 s behind")])
def test_a_wrong_clock_is_named(seconds, way, monkeypatch):
    class Wrong(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return dt.datetime.now(tz) + dt.timedelta(seconds=seconds)

    presence = Presence(kind="worker", host="a", process=7)
    presence.beat()
    presence.beat()
    assert read_status()["needs"] == []
    monkeypatch.setattr(
        "runtime.process.presence.dt", SimpleNamespace(datetime=Wrong, UTC=dt.UTC, timedelta=dt.timedelta)
    )
    presence.beat()  # it measures
    presence.beat()
    (sentence,) = read_status()["needs"]
    assert sentence.startswith(f"the clock of worker (process 7 on a) is {way} PostgreSQL's: set the clocks")


def test_a_process_begins_again_after_a_long_gap():
    presence = Presence(kind="worker")
    presence.beat()
    Heartbeat.objects.filter(name=presence.name).update(since=Now() - dt.timedelta(hours=1))
    presence.beat()
    assert read_status()["processes"][0]["up_seconds"] > 3000
    age(presence, seconds=180)
    presence.beat()
    assert read_status()["processes"][0]["up_seconds"] < 100
