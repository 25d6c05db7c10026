"""kill -9 at every step of a rollover: the next run ends it rightly, and nothing is archived twice."""

from __future__ import annotations

import datetime as dt
import sys

import psycopg
import pytest
from django.db.models.functions import Now

from tests.kit import warm
from tests.kit.deaths import dying_environment, run_until_killed, sessions
from tests.kit.months import (
    Steps,
    age_records,
    count,
    dsn,
    files,
    fill,
    make_partition,
    states,
)
from tests.kit.people import erase, grep_cold_files
from tests.kit.waiting import until
from tests.kit.words import DetachedPartition, EmailNotification, Erasure, restore, rollover

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]

#: Runs a rollover in a process of its own that kills itself right after the step that is named.
DYING = """
import os, signal, sys
import django
django.setup()
from retention.cold_files import storage
from retention import rollover
from retention.partitions import detach

if sys.argv[1] == "none":
    detach.wait_for_readers = lambda **_: None  # as if the reader began after it

def report(step, **facts):
    if step == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

def dies_after(function):
    def wrapped(*args, **named):
        function(*args, **named)
        report(function.__name__)
    return wrapped

storage.save = dies_after(storage.save)  # the file is stored, the manifest is not
rollover.rollover(report=report)
"""
STEPS = [
    "detaching",
    "detached",
    "recorded",
    "save",
    "cold file written",
    "archived",
    "compared",
    "dropped",
    "drop recorded",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_rollover_killed_right_after_this_step_is_ended_by_the_next(step, tmp_path):
    old = make_partition(EmailNotification, back=4)
    fill(old, 30)
    if STEPS.index(step) >= STEPS.index("compared"):  # the grace is over
        rollover.rollover(report=Steps())
        age_records()
    run_until_killed(DYING, step, tmp_path=tmp_path)
    for _ in range(2):
        result = rollover.rollover(report=Steps())
        assert not (result.held or result.failed or result.waiting)
    age_records()
    rollover.rollover(report=Steps())
    assert old.name not in states()
    record = DetachedPartition.objects.get()
    assert record.dropped_at and record.manifest["rows"] == 30
    assert [name.rpartition(".")[2] for name in files(tmp_path)] == ["zst", "json"]
    restored = restore.restore(record=record)
    assert count(restored) == 30


def test_an_erasure_after_a_rollover_was_killed_between_drop_and_record_reaches_the_cold_file(tmp_path):
    fill(make_partition(EmailNotification, back=4), 3)
    rollover.rollover(report=Steps())
    age_records()
    run_until_killed(DYING, "dropped", tmp_path=tmp_path)
    assert grep_cold_files(tmp_path, "alice@")
    erase("alice@example.com")
    Erasure.objects.update(requested_at=Now() - dt.timedelta(days=31))
    result = rollover.rollover(report=Steps())
    assert not (result.held or result.failed or result.waiting)
    assert grep_cold_files(tmp_path, "alice@") == [] and Erasure.objects.get().cold_files == []
    assert DetachedPartition.objects.get().dropped_at


def test_a_rollover_killed_while_it_waits_in_a_detach_is_ended_by_the_next(tmp_path):
    old = make_partition(EmailNotification, back=4)
    ids = fill(old, 3, status="discarded")
    others = sessions()
    with psycopg.connect(dsn()) as reading:
        reading.execute("SELECT count(*) FROM email_notifications")
        command = [sys.executable, "-c", DYING, "none"]
        process = warm.Program(command, environment=dying_environment(tmp_path), stdout=1, stderr=2)
        try:
            until(lambda: process.poll() is not None or states()[old.name] == "pending")
            assert process.poll() is None
            # Between the check and here a person resent one: invisible now, and must not stay so.
            with psycopg.connect(dsn(), autocommit=True) as other:
                other.execute(
                    f"UPDATE {old.name} SET status = 'pending', ended_by = '' WHERE id = %s", [ids[0]]
                )
        finally:
            process.kill()
            process.wait()
    until(lambda: sessions() <= others, "PostgreSQL has noticed the death")
    result = rollover.rollover(report=Steps())
    assert len(result.held) == 1
    assert states()[old.name] == "attached"
    assert EmailNotification.objects.due().get().id == ids[0]
