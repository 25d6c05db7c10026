"""Archives in an S3-like store: the same steps against a fake that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from config.database_url import parse_archive
from tests.kit.months import Steps, age_records, count, fill, make_partition, states, tidy
from tests.kit.words import DetachedPartition, EmailNotification, archive, restore, rollover

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


@pytest.fixture(autouse=True)
def _bucket(settings, monkeypatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws(), tidy():
        boto3.client("s3").create_bucket(Bucket="archive")
        settings.STORAGES = settings.STORAGES | {"archive": parse_archive("s3://archive/shop/one/")}
        settings.WARM_DAYS = {"email_notifications": 1}
        yield


def keys() -> list[str]:
    return sorted(
        file["Key"] for file in boto3.client("s3").list_objects_v2(Bucket="archive").get("Contents", [])
    )


def test_a_month_is_archived_compared_dropped_restored_and_deleted_there():
    old = make_partition(EmailNotification, back=4)
    fill(old, 50, body="<p>a body</p>" * 3000)
    rollover.rollover(report=Steps())
    assert sorted(key.rpartition(".")[2] for key in keys()) == ["json", "zst"]
    assert all(key.startswith(f"shop/one/email_notifications/{old.name}.") for key in keys())
    age_records()
    result = rollover.rollover(report=Steps())
    assert not result.failed and old.name not in states()
    record = DetachedPartition.objects.get()
    assert count(restore.restore(record=record)) == 50
    assert len(list(archive.find_rows(record=record, wanted=lambda row: row["idempotency_key"] == "7"))) == 1
    rollover.delete_cold_file(record=record, report=Steps())
    assert keys() == []


def test_what_a_killed_run_left_there_is_swept():
    old = make_partition(EmailNotification, back=4)
    fill(old, 5)
    leftover = f"shop/one/email_notifications/{old.name}.000000000000.csv.zst"
    boto3.client("s3").put_object(Bucket="archive", Key=leftover, Body=b"half")
    rollover.rollover(report=Steps())
    assert len(keys()) == 2 and leftover not in keys()
