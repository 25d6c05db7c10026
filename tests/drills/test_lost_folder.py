"""Drill: the folder of archives is lost, wrong copies come back, then the right one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from retention.cold_files.restore import RESTORED
from tests.kit.months import Steps, age_records, count, fill, make_partition, roll
from tests.kit.words import DetachedPartition, EmailNotification, export_person, has_table

pytestmark = [
    pytest.mark.drill,
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
]
ANN = "ann@example.com"


def find(address: str) -> list[str]:
    document = export_person(email=address, report=Steps())
    return [mail["id"] for mail in document["email_notifications"]]


def left_out(address: str) -> list[str]:
    document = export_person(email=address, report=Steps())
    return [part["cold_file"] for part in document["cold_files_left_out"]]


def records() -> list[tuple[object, ...]]:
    return list(DetachedPartition.objects.order_by("name").values_list())


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.rglob(pattern)
    return path


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])


WRONG: dict[str, Callable[[Path, Path], object]] = {
    "nothing": lambda folder, other: None,
    "a damaged archive": lambda folder, other: flip(only(folder, "*.zst")),
    "half an archive": lambda folder, other: only(folder, "*.zst").write_bytes(
        only(folder, "*.zst").read_bytes()[:-30]
    ),
    "an empty file": lambda folder, other: only(folder, "*.zst").write_bytes(b""),
    "another shop's archive": lambda folder, other: shutil.copy(other, only(folder, "*.zst")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_copy_is_a_clear_error_that_changes_nothing_and_the_right_one_works(
    wrong, archive_folder, tmp_path
):
    old, other = make_partition(EmailNotification, back=4), make_partition(EmailNotification, back=5)
    (ann,) = fill(old, 1, recipient_email=ANN)
    fill(other, 7)
    roll()
    age_records()
    assert not roll()[0].failed
    copy, elsewhere = tmp_path / "copy", tmp_path / "elsewhere.zst"
    shutil.copy(only(archive_folder, f"{other.name}.*.zst"), elsewhere)
    for path in archive_folder.rglob(f"{other.name}.*"):
        path.unlink()
    DetachedPartition.objects.filter(name=other.name).delete()
    assert find(ANN) == [str(ann)]
    shutil.copytree(archive_folder, copy)
    shutil.rmtree(archive_folder)
    before = records()

    if wrong != "nothing":
        shutil.copytree(copy, archive_folder)
        WRONG[wrong](archive_folder, elsewhere)
    assert left_out(ANN) == [old.name]
    # The daily rollover compares only the size, because it would otherwise read seven years of files.
    for verb in [["restore", old.name]] + ([] if wrong == "a damaged archive" else [["rollover"]]):
        with pytest.raises(CommandError, match=old.name) as caught:
            call_command("partitions", *verb)
        assert caught.value.returncode == 1
    assert records() == before
    assert not has_table(name=old.name + RESTORED, using="default")
    assert list(archive_folder.rglob("*.tmp")) == []

    shutil.rmtree(archive_folder, ignore_errors=True)
    shutil.copytree(copy, archive_folder)
    assert (find(ANN), left_out(ANN)) == ([str(ann)], [])
    call_command("partitions", "restore", old.name)
    assert count(old.name + RESTORED) == 1
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT recipient_email FROM {old.name}{RESTORED}")
        assert cursor.fetchall() == [(ANN,)]
    assert records() == before
    steps = Steps()
    assert not roll()[0].failed and steps == []
