"""A month's end: nothing unfinished leaves, nothing is dropped that is not archived byte for byte."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import time
from pathlib import Path

import psycopg
import pytest
from django.core.files.storage import FileSystemStorage
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now

from runtime.models import AuditRow
from tests.kit.mails import make_mails
from tests.kit.months import Steps, age_records, count, dsn, files, fill, make_partition, roll, states
from tests.kit.races import together
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    DetachedPartition,
    DomainEvent,
    EmailNotification,
    Erasure,
    Manifest,
    address_hash,
    archive,
    claim,
    detach,
    exclusive_lock,
    give_up,
    has_table,
    id_floor,
    list_partitions,
    new_id,
    resend,
    restore,
)

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]


@pytest.fixture
def old():
    """Make the partition of a month that is long over."""
    return make_partition(EmailNotification, back=4)


class TestRollover:
    def test_detaches_archives_and_after_the_grace_drops_a_finished_month(self, old, tmp_path, settings):
        fill(old, 25)
        result, steps = roll()
        assert not result.held and not result.failed
        assert states()[old.name] == "detached"
        assert EmailNotification.objects.filter(id__lt=id_floor(old.until)).count() == 0
        record = DetachedPartition.objects.get(name=old.name)
        assert record.manifest["rows"] == 25 and record.archived_at and not record.dropped_at
        assert [name.rpartition(".")[2] for name in files(tmp_path)] == ["zst", "json"]
        assert [step for step in steps if step != "made"] == [
            "detaching",
            "detached",
            "recorded",
            "cold file written",
            "archived",
        ]
        assert roll()[1] == []  # a second run has nothing to do
        age_records(settings.PARTITION_GRACE_DAYS)
        assert roll()[1] == ["compared", "dropped", "drop recorded"]
        assert old.name not in states()
        assert roll()[1] == []

    def test_keeps_a_warm_month_as_a_table_until_its_warm_days_are_over(self, old, tmp_path, settings):
        settings.WARM_DAYS = {"email_notifications": 730}
        fill(old, 5)
        assert roll()[1] == ["detaching", "detached", "recorded"]
        age_records(700)
        assert roll()[1] == [] and files(tmp_path) == [] and count(old.name) == 5
        DetachedPartition.objects.update(until=Now() - dt.timedelta(days=731))
        assert roll()[1] == ["cold file written", "archived"]
        assert count(old.name) == 5

    def test_never_drops_a_month_in_the_run_that_writes_its_file(self, old, settings):
        settings.PARTITION_GRACE_DAYS = 0
        fill(old, 5)
        assert roll()[1][-1] == "archived" and count(old.name) == 5
        assert roll()[1] == ["compared", "dropped", "drop recorded"]

    def test_drops_a_finished_day_of_events_seven_days_after_its_hot_days_without_a_file(self, tmp_path):
        day = make_partition(DomainEvent, back=12)
        event_in(day)
        DomainEvent.objects.update(published_at=Now())
        assert roll()[1] == ["detaching", "detached", "recorded"]
        age_records(6)
        assert roll()[1] == [] and states(DomainEvent)[day.name] == "detached"
        age_records(1)
        assert roll()[1] == ["dropped", "drop recorded"]
        assert day.name not in states(DomainEvent) and files(tmp_path) == [] and roll()[1] == []
        (line,) = [listed for listed in list_partitions(using="default") if listed["partition"] == day.name]
        assert (line["state"], line["cold_file"]) == ("dropped", None)

    def test_never_drops_a_detached_day_with_an_unfinished_event(self):
        day = make_partition(DomainEvent, back=12)
        event_in(day)
        DomainEvent.objects.update(published_at=Now())
        roll()
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {day.name} SET published_at = NULL")
        age_records()
        result, _ = roll()
        assert len(result.failed) == 1 and "not published" in result.failed[0]
        assert states(DomainEvent)[day.name] == "detached"

    def test_leaves_the_present_and_the_hot_months_alone(self):
        hot = make_partition(EmailNotification, back=2)  # may be over for less than 30 days
        before = states()
        recent = dt.datetime.now(dt.UTC) - hot.until < dt.timedelta(days=30)
        roll()
        assert {name: state for name, state in states().items() if state != "attached"} == (
            {} if recent else {hot.name: "detached"}
        )
        assert before.keys() == states().keys()

    @pytest.mark.parametrize("status", ["pending", "failed", "processing", "dead_lettered"])
    def test_never_detaches_a_month_with_an_unfinished_row_and_says_which_and_how(self, old, status):
        claim = {"claimed_at": Now(), "claim_token": new_id()} if status == "processing" else {}
        (held,) = fill(old, 1, status=status, **claim)
        fill_rest(old)
        with pytest.raises(CommandError) as caught:
            call_command("partitions", "rollover")
        assert caught.value.returncode == 1
        assert str(held) in str(caught.value) and "Resend them or give them up" in str(caught.value)
        assert states()[old.name] == "attached"

    def test_goes_on_with_the_other_months_when_one_is_held(self, old):
        older = make_partition(EmailNotification, back=5)
        fill(older, 1, status="dead_lettered")
        result, _ = roll()
        assert [held.partition for held in result.held] == [older.name]
        assert states() | {} == states() and states()[old.name] == "detached"

    def test_takes_a_held_month_once_a_person_gave_its_dead_letters_up(self, old):
        ids = fill(old, 3, status="dead_lettered")
        assert roll()[0].held
        give_up(ids=ids)
        assert not roll()[0].held
        assert states()[old.name] == "detached"

    def test_holds_a_day_of_events_until_they_are_published(self):
        day = make_partition(DomainEvent, back=12)
        event = event_in(day)
        result, _ = roll()
        assert [held.partition for held in result.held] == [day.name]
        DomainEvent.objects.filter(id=event.id).update(published_at=Now())
        assert not roll()[0].held
        assert states(DomainEvent)[day.name] == "detached"

    def test_does_nothing_to_a_table_that_another_run_is_at(self, old):
        with psycopg.connect(dsn(), autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(hashtext('exclusive:email_notifications'))")
            result, steps = roll()
            assert result.waiting and "busy" in steps
            assert states()[old.name] == "attached"
            with pytest.raises(CommandError) as caught:
                call_command("partitions", "drop", old.name)
            assert caught.value.returncode == 75

    def test_deletes_an_archive_after_its_years_and_keeps_the_record(self, old, tmp_path, settings):
        fill(old)
        roll()
        age_records()
        roll()
        years = dt.timedelta(days=366 * settings.ARCHIVE_YEARS)
        DetachedPartition.objects.update(until=Now() - years)
        assert roll()[1] == ["cold file deleted"]
        assert files(tmp_path) == []
        record = DetachedPartition.objects.get()
        assert record.deleted_at and record.manifest["rows"] == 10

    def test_that_was_killed_between_two_files_of_an_old_archive_deletes_the_rest(
        self, old, tmp_path, settings
    ):
        fill(old)
        roll()
        age_records()
        roll()
        years = dt.timedelta(days=366 * settings.ARCHIVE_YEARS)
        DetachedPartition.objects.update(until=Now() - years)
        (path,) = (tmp_path / "archive").rglob("*.zst")
        path.unlink()
        result, steps = roll()
        assert result.failed == [] and steps == ["cold file deleted"]
        assert files(tmp_path) == [] and DetachedPartition.objects.get().deleted_at

    def test_deletes_an_archive_that_waits_for_an_erasure_and_ends_the_wait(self, old, settings):
        fill(old)
        roll()
        age_records()
        roll()
        hash = address_hash("alice@example.com")
        Erasure.objects.create(address_hash=hash, cold_files=[old.name, "other"])
        years = dt.timedelta(days=366 * settings.ARCHIVE_YEARS)
        DetachedPartition.objects.update(until=Now() - years)
        assert roll()[1] == ["cold file deleted"]
        assert Erasure.objects.get().cold_files == ["other"]

    def test_drops_nothing_when_the_table_is_not_what_was_archived(self, old):
        fill(old)
        roll()
        age_records()
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {old.name} SET subject = 'x' WHERE idempotency_key = '3'")
        result, _ = roll()
        assert len(result.failed) == 1 and "has changed" in result.failed[0]
        assert count(old.name) == 10

    @pytest.mark.parametrize("damage", ["flip", "cut", "more", "checksum", "magic", "lose"])
    def test_drops_nothing_when_the_archive_is_damaged_and_writes_it_again(self, old, tmp_path, damage):
        fill(old)
        roll()
        age_records()
        (path,) = (tmp_path / "archive").rglob("*.zst")
        data = path.read_bytes()
        if damage == "lose":
            path.unlink()
        else:
            bad = {
                "flip": data[:60] + bytes([data[60] ^ 1]) + data[61:],
                "cut": data[:-20],
                "more": data + b"x",
                "checksum": data[:-1] + bytes([data[-1] ^ 1]),
                "magic": b"x" + data[1:],
            }
            path.write_bytes(bad[damage])
        result, _ = roll()
        assert result.failed
        assert count(old.name) == 10
        assert roll()[1] == ["cold file written", "archived"]
        assert path.read_bytes() == data and len(files(tmp_path)) == 2
        age_records()
        assert roll()[1] == ["compared", "dropped", "drop recorded"]


class TestDetach:
    def test_a_session_that_has_planned_its_claims_goes_on_while_a_month_is_detached(self, old):
        """Its plans name the month, and a plan is used for a minute."""
        fill(old, 5)
        planned, detached = threading.Event(), threading.Event()

        def claim_all() -> int:
            claimed = rounds = 0
            while not detached.is_set() or claimed < 100:
                claimed += len(claim(limit=1))
                rounds += 1
                if rounds == 20:
                    planned.set()
            return claimed

        def detach_meanwhile() -> int:
            make_mails(60)
            assert planned.wait(PATIENCE)
            roll()
            make_mails(40)
            detached.set()
            return 0

        assert sum(together(2, lambda number: (claim_all, detach_meanwhile)[number]())) == 100
        assert states()[old.name] == "detached"

    def test_a_resend_between_the_check_and_the_detach_attaches_the_month_again(self, old, monkeypatch):
        ids = fill(old, 3, status="discarded")
        checked = detach.check_finished

        def check_then_resend(**which):
            checked(**which)
            if not done:
                done.append(True)
                changes, _ = resend(ids=ids[:1])
                assert len(changes) == 1

        done: list[bool] = []
        monkeypatch.setattr(detach, "check_finished", check_then_resend)
        result, steps = roll()
        assert "attached again" in steps and len(result.held) == 1
        assert states()[old.name] == "attached"
        assert not DetachedPartition.objects.exists()
        assert EmailNotification.objects.due().filter(id=ids[0]).exists()
        assert [mail.id for mail in claim(limit=10)] == ids[:1]

    def test_does_not_begin_while_an_older_transaction_reads_the_table(self, old, fast):
        """Such as a long pg_dump, during which the month's e-mails would be in no list."""
        fast.detaching()
        ids = fill(old, 5)
        with psycopg.connect(dsn()) as dump:
            dump.execute("LOCK TABLE email_notifications IN ACCESS SHARE MODE")
            result, steps = roll()
            assert steps == [] and len(result.waiting) == 1 and not result.failed
            assert states()[old.name] == "attached"
            assert EmailNotification.objects.filter(id__in=ids).count() == 5
        assert roll()[1][:3] == ["detaching", "detached", "recorded"]

    def test_a_lock_timeout_in_its_middle_is_finished_at_once_when_the_reader_ends(
        self, old, fast, monkeypatch
    ):
        monkeypatch.setattr(detach, "wait_for_readers", lambda **_: None)  # as if the reader began after it
        fast.locks("200ms")
        ids = fill(old, 5)
        reading = psycopg.connect(dsn())
        reading.execute("SELECT count(*) FROM email_notifications")  # an open transaction on the parent
        ended = threading.Timer(1.0, reading.rollback)
        ended.start()
        steps = Steps()
        with exclusive_lock(model=EmailNotification, using="default"):
            detach.detach(model=EmailNotification, name=old.name, report=steps)
        ended.join()
        reading.close()
        assert states()[old.name] == "detached"
        assert count(old.name) == len(ids)
        assert steps == ["detaching", "detached", "recorded"]

    def test_a_lock_timeout_that_lasts_leaves_it_pending_says_so_and_the_next_run_finishes(
        self, old, fast, monkeypatch
    ):
        monkeypatch.setattr(detach, "wait_for_readers", lambda **_: None)  # as if the reader began after it
        fast.locks("100ms")
        fast.detaching()
        fill(old, 5)
        with psycopg.connect(dsn()) as reading:
            reading.execute("SELECT count(*) FROM email_notifications")
            with exclusive_lock(model=EmailNotification, using="default"), pytest.raises(detach.StillPending):
                detach.detach(
                    model=EmailNotification,
                    name=old.name,
                    report=Steps(),
                )
            assert states()[old.name] == "pending"
        result, steps = roll()
        assert steps[:2] == ["detached", "recorded"] and not result.waiting
        assert states()[old.name] == "detached" and count(old.name) == 5

    def test_a_pending_one_with_an_unfinished_row_becomes_visible_again(self, old):
        ids = fill(old, 2, status="discarded")
        reading = psycopg.connect(dsn())
        reading.execute("SELECT count(*) FROM email_notifications")
        with psycopg.connect(dsn(), autocommit=True) as other:
            other.execute("SET lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute(f"ALTER TABLE email_notifications DETACH PARTITION {old.name} CONCURRENTLY")
            other.execute(f"UPDATE {old.name} SET status = 'pending', ended_by = '' WHERE id = %s", [ids[0]])
        reading.close()
        assert states()[old.name] == "pending"
        assert not EmailNotification.objects.filter(id=ids[0]).exists()
        _, steps = roll()
        assert steps == ["detached", "attached again", "held"]
        assert EmailNotification.objects.due().filter(id=ids[0]).exists()

    def test_what_was_attached_again_can_leave_later(self, old):
        ids = fill(old, 2, status="discarded")
        roll()
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {old.name} SET status = 'dead_lettered', ended_by = 'provider'")
        detach.attach(model=EmailNotification, name=old.name)
        assert roll()[0].held
        give_up(ids=ids)
        roll()
        assert states()[old.name] == "detached"
        assert count(old.name) == 2


class TestArchive:
    def test_restores_every_byte_into_a_table_beside(self, old, tmp_path):
        fill(old, 20)
        fill_nulls(old)
        roll()
        age_records()
        roll()
        assert old.name not in states()
        call_command("partitions", "restore", old.name)
        record = DetachedPartition.objects.get()
        restored = Manifest.of(record)
        archive.verify(manifest=restored, table=old.name + restore.RESTORED)
        assert count(old.name + restore.RESTORED) == restored.rows == 21
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT subject, body, body_text, delivered_at FROM {old.name}_restored ORDER BY id LIMIT 1"
            )
            assert cursor.fetchone() == ('Ünicode, "quotes" \\N', "<p>a\r\nb,\tc</p>", "", None)
        with pytest.raises(CommandError, match="already exists"):
            call_command("partitions", "restore", old.name)
        call_command("partitions", "drop", old.name + restore.RESTORED)
        assert not has_table(name=old.name + restore.RESTORED, using="default")
        assert DetachedPartition.objects.count() == 1

    def test_an_empty_month_is_archived_too(self, old):
        roll()
        age_records()
        roll()
        call_command("partitions", "restore", old.name)
        assert count(old.name + restore.RESTORED) == 0

    def test_an_archive_written_and_not_recorded_is_taken_not_written_again(self, old, tmp_path):
        fill(old)
        roll()
        first = files(tmp_path)
        DetachedPartition.objects.update(archived_at=None, manifest=None)
        assert roll()[1] == ["archived"]
        assert files(tmp_path) == first

    def test_half_an_archive_is_swept_away(self, old, tmp_path):
        fill(old)
        roll()
        good = files(tmp_path)
        DetachedPartition.objects.update(archived_at=None, manifest=None)
        for path in (tmp_path / "archive").rglob("*.json"):
            path.unlink()
        (tmp_path / "archive/email_notifications" / f"{old.name}.000000000000.csv.zst").write_bytes(b"half")
        _, steps = roll()
        assert steps == ["cold file written", "archived", "swept"]
        assert files(tmp_path) == good


class TestCommands:
    def test_list_tells_range_state_size_and_unfinished_rows(self, old, capsys):
        fill(old, 3, status="dead_lettered")
        call_command("partitions", "list")
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (line,) = [line for line in lines if line["partition"] == old.name]
        assert line["state"] == "attached" and line["unfinished"] == 3 and line["bytes"] > 0
        assert line["since"] == old.since.date().isoformat()

    def test_list_gives_an_estimate_of_the_rows_only_after_the_first_analyze(self, old):
        fill(old, 3)
        (line,) = [line for line in list_partitions(using="default") if line["partition"] == old.name]
        assert line["rows"] is None
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {old.name}")
        (line,) = [line for line in list_partitions(using="default") if line["partition"] == old.name]
        assert line["rows"] == 3

    @pytest.mark.parametrize("verb", ["restore", "drop"])
    def test_a_name_that_is_no_partition_ends_with_2_and_changes_nothing(self, verb):
        before = states()
        for name in ("orders", "email_notifications_p209913", "email_notifications_p190001", "x; DROP"):
            with pytest.raises(CommandError, match=f"Unknown partition {name}") as caught:
                call_command("partitions", verb, name)
            assert caught.value.returncode == 2
        assert states() == before and not AuditRow.objects.exists()

    def test_drop_waits_for_no_grace_and_does_its_step_once(self, old, tmp_path):
        fill(old)
        call_command("partitions", "rollover")
        for _ in range(2):
            call_command("partitions", "drop", old.name)
        assert old.name not in states()
        assert len(files(tmp_path)) == 2
        rows = AuditRow.objects.order_by("id").values_list("act", "subject")
        dropped = ("Began partitions drop.", old.name)
        assert list(rows) == [("Began partitions rollover.", "partitions"), dropped, dropped]

    def test_drop_refuses_what_is_attached(self, old):
        with pytest.raises(CommandError, match="is not detached") as caught:
            call_command("partitions", "drop", old.name)
        assert caught.value.returncode == 2 and states()[old.name] == "attached"

    def test_drop_refuses_what_is_not_archived(self, old, settings):
        settings.WARM_DAYS = {"email_notifications": 730}
        fill(old)
        call_command("partitions", "rollover")
        with pytest.raises(CommandError, match="has no cold file") as caught:
            call_command("partitions", "drop", old.name)
        assert caught.value.returncode == 1
        assert count(old.name) == 10


def fill_rest(old) -> None:
    """More rows, finished ones."""
    fill(old, 5, to_name="more")


def fill_nulls(old) -> None:
    fill(old, 1, sent_at=None, status="discarded", subject="", provider="")


def event_in(day) -> DomainEvent:
    return DomainEvent.objects.create(
        id=id_floor(day.since + dt.timedelta(hours=1)),
        created_at=day.since + dt.timedelta(hours=1),
        aggregate_type="order",
        aggregate_id=new_id(),
        event_type="order.order.paid.v1",
        sequence=1,
        payload={},
        shard=1,
    )


class TestDurability:
    def test_archive_manifest_and_folder_are_on_disk_before_the_record_says_so(
        self, old, tmp_path, monkeypatch
    ):
        synced: list[str] = []
        real = os.fsync

        def fsync(handle: int) -> None:
            path = str(Path(f"/proc/self/fd/{handle}").readlink())
            assert DetachedPartition.objects.get().archived_at is None
            synced.append(path)
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        fill(old)
        roll()
        stored = {str(path) for path in (tmp_path / "archive").rglob("*") if path.is_file()}
        assert {f"{path}.tmp" for path in stored} <= set(synced)  # and then renamed
        assert {str(tmp_path / "archive"), str(tmp_path / "archive" / "email_notifications")} <= set(synced)

    def test_a_restore_outlives_a_store_that_is_slower_than_an_idle_transaction_may_be(self, old, settings):
        fill(old, 20)
        roll()
        options = settings.STORAGES["archive"]["OPTIONS"]
        slow = {"BACKEND": f"{__name__}.SlowStorage", "OPTIONS": options}
        settings.STORAGES = settings.STORAGES | {"archive": slow}
        with connection.cursor() as cursor:
            cursor.execute("SET idle_in_transaction_session_timeout = '300ms'")
            try:
                restored = restore.restore(record=DetachedPartition.objects.get())
            finally:
                cursor.execute("RESET idle_in_transaction_session_timeout")
        assert count(restored) == 20


class SlowStorage(FileSystemStorage):
    def _open(self, name, mode="rb"):
        time.sleep(0.8)
        return super()._open(name, mode)
