"""A database that was restored to a moment, and what was done after that moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection

from tests.kit.events import give as give_external
from tests.kit.events import told
from tests.kit.inbound_commands import RESEND, give
from tests.kit.jobs import job_after, started
from tests.kit.mails import make_mail
from tests.kit.months import Steps, age_records, fill, make_partition
from tests.kit.months import states as states_of_partitions
from tests.kit.orders import make_order
from tests.kit.restored import after_restore, restore_to_now, sent, shipped, states
from tests.kit.words import (
    BulkJob,
    DetachedPartition,
    EmailNotification,
    Manifest,
    Order,
    archive,
    claim,
    id_floor,
    restart_job,
    rollover,
    send_copy,
)

__all__ = ["shipped"]
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def read_logs(tmp_path: Path, text: str = "") -> None:
    """Reconcile the restored database with the logs of the time that it does not know."""
    log = tmp_path / "a.log"
    log.write_text(text)
    after_restore(log)


def test_a_correction_that_the_database_lost_is_listed_so_that_somebody_repeats_it(shipped, settings):
    settings.FAST_PATH = False
    order = make_order(email="alice@exampel.com")
    mail = make_mail(status="dead_lettered", order_id=order.id)
    restore_to_now()
    copy_id = send_copy(notification_id=mail.id, recipient_email="alice@example.com", update_order=True)
    # As the moment found them.
    EmailNotification.objects.filter(id=copy_id).delete()
    Order.objects.filter(id=order.id).update(email=order.email, updated_at=order.updated_at)
    lost, _ = after_restore(shipped)
    assert {(change["kind"], change["id"], change["order_known"]) for change in lost} == {
        ("e-mail", str(copy_id), True),
        ("correction", str(order.id), True),
    }


@pytest.mark.parametrize("changed", [False, True], ids=["the same", "another row"])
def test_a_month_that_was_archived_after_the_moment_is_archived_again_as_the_database_has_it(
    archive_folder, changed
):
    old = make_partition(EmailNotification, back=4)
    ids = fill(old, 3)
    rollover.rollover(report=Steps())
    first = DetachedPartition.objects.get(name=old.name).manifest
    # As the moment found them: attached, without a record of the archive.
    DetachedPartition.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(
            f"ALTER TABLE email_notifications ATTACH PARTITION {old.name} FOR VALUES FROM (%s) TO (%s)"
            % (f"'{id_floor(old.since)}'", f"'{id_floor(old.until)}'")
        )
    if changed:
        EmailNotification.objects.filter(id=ids[0]).update(provider_message_id="not known yet")
    result = rollover.rollover(report=Steps())
    record = DetachedPartition.objects.get(name=old.name)
    assert not result.failed and (record.manifest["file"] != first["file"]) is changed
    archive.verify(manifest=Manifest.of(record), table=old.name)
    age_records()
    rollover.rollover(report=Steps())
    assert old.name not in states_of_partitions()  # dropped: archive and table are the same
    names = {path.name.partition(".")[0] for path in archive_folder.rglob("*") if path.is_file()}
    assert names == {old.name} and len(list(archive_folder.rglob("*.zst"))) == 1


def test_a_resend_command_that_is_delivered_again_leaves_what_a_person_has_to_decide(tmp_path):
    doubtful, refused = make_mail(), make_mail(status="dead_lettered", last_error="400 no")
    restore_to_now()
    read_logs(tmp_path)
    assert give(RESEND) == "done"
    assert states() == {doubtful.id: "dead_lettered", refused.id: "pending"}
    assert give(RESEND, notificationIds=[str(doubtful.id)]) == "done"  # somebody has decided
    assert states()[doubtful.id] == "pending"


def test_an_external_event_that_is_delivered_again_moves_the_order_on_and_owes_its_email_once(
    tmp_path, settings
):
    settings.ORDER_SOURCES = ["shop-a"]
    paid = told("paid", "A-1", 2)
    give_external(told("placed", "A-1", 1))
    restore_to_now()
    read_logs(tmp_path)
    assert [give_external(paid) for _ in range(2)] == ["done", "repeat"]
    assert Order.objects.get().status == "paid"
    assert list(EmailNotification.objects.values_list("event_type", "status")) == [("order.paid", "pending")]
    assert claim(limit=5) == []  # until somebody resumes


def test_bulk_jobs_that_came_with_the_backup_wait_for_the_logs_and_are_then_stopped(tmp_path):
    sent_since, unproven = make_mail(status="dead_lettered"), make_mail(status="dead_lettered")
    job, failed = started(), started()
    BulkJob.objects.fail(id=failed.id, error="a defect")
    restore_to_now()
    job_after(job)  # what it resends now may be sent a second time
    assert states() == {sent_since.id: "dead_lettered", unproven.id: "dead_lettered"}
    later = started(status="failed")
    read_logs(tmp_path, sent(sent_since.id))
    job = job_after(job)
    assert job.state == "stopped" and job.error.startswith("the database was restored")
    assert not restart_job(id=failed.id)
    assert job_after(later).state == "done"
    assert states() == {sent_since.id: "sent", unproven.id: "dead_lettered"}
