"""What the app's role could write into the records of partitions, and the tables' owner must not execute."""

from __future__ import annotations

import importlib
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from local.machine import PROJECT
from tests.kit.months import age_records, fill, make_partition, roll
from tests.kit.words import DetachedPartition, EmailNotification, has_table

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]

PWNED = "text); CREATE TABLE pwned(); --"


@pytest.fixture
def archived() -> DetachedPartition:
    """Return the record of a month that only a cold file has."""
    old = make_partition(EmailNotification, back=4)
    fill(old, 3)
    roll()
    age_records()
    roll()
    return DetachedPartition.objects.get(name=old.name)


def tamper(record: DetachedPartition, **changed: object) -> None:
    assert record.manifest is not None
    record.manifest |= changed
    record.save()


def assert_refused(record: DetachedPartition, reason: str) -> None:
    with pytest.raises(CommandError, match=reason) as caught:
        call_command("partitions", "restore", record.name)
    assert caught.value.returncode == 1
    assert not has_table(name="pwned") and not has_table(name=f"{record.name}_restored")


@pytest.mark.parametrize("kind", [PWNED, "regclass", "text DEFAULT pg_sleep(9)::text"])
def test_a_restore_takes_only_the_types_of_the_live_table(archived, kind):
    columns = archived.manifest["columns"]
    tamper(archived, columns=[[columns[0][0], kind], *columns[1:]])
    assert_refused(archived, "column types")


@pytest.mark.parametrize(
    "name", ['"id" int); CREATE TABLE pwned(); --"', 'id" int); CREATE TABLE pwned(); --']
)
def test_a_restore_takes_only_plain_names_of_columns(archived, name):
    columns = archived.manifest["columns"]
    tamper(archived, columns=[[name, "uuid"], *columns[1:]])
    assert_refused(archived, "the column")


@pytest.mark.parametrize(
    "changed",
    [
        {"partition": '"x" (); CREATE TABLE pwned(); --"'},
        {"partition": "orders"},
        {"table": "orders"},
        {"partition": "email_notifications_p201001"},
        {"file": "../other.000000000000.csv.zst"},
    ],
)
def test_a_restore_takes_only_the_manifest_of_its_partition(archived, changed):
    tamper(archived, **changed)
    assert_refused(archived, "manifest")


def test_a_rollover_drops_no_table_that_is_not_a_partition(archived):
    """A record of another name, which is due to be dropped."""
    name = '"orders"; CREATE TABLE pwned(); --"'
    for wrong in ("orders", name):
        old = DetachedPartition(name=wrong, table="outbox_events", since=archived.since, until=archived.until)
        old.detached_at = archived.since
        old.save()
    failed = roll()[0].failed
    assert [wrong for wrong in ("orders", name) if any(text.startswith(f"{wrong}: ") for text in failed)] == [
        "orders",
        name,
    ]
    assert has_table(name="orders") and not has_table(name="pwned")


def test_a_manifest_in_the_store_is_read_no_more_trustingly(archived, tmp_path):
    """Such as one that a killed run left, which the next run takes."""
    (path,) = (tmp_path / "archive").rglob("*.json")
    manifest = json.loads(path.read_text())
    call_command("partitions", "restore", archived.name)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {archived.name}_restored RENAME TO {archived.name}")
    DetachedPartition.objects.update(archived_at=None, dropped_at=None, manifest=None)
    manifest["columns"][0][0] = '"id" FROM orders; CREATE TABLE pwned(); --"'
    path.write_text(json.dumps(manifest))
    result, steps = roll()
    assert "archived" in steps and not result.failed and not has_table(name="pwned")


def privileges() -> dict[str, tuple[bool, ...]]:
    """Return what the app's role may do with each table: SELECT, INSERT, UPDATE, DELETE."""
    verbs = ("SELECT", "INSERT", "UPDATE", "DELETE")
    columns = ", ".join(f"has_table_privilege('orderpost_app', oid, '{verb}')" for verb in verbs)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT relname, {columns} FROM pg_class WHERE relkind IN ('r', 'p')"
            " AND relnamespace = 'public'::regnamespace"
        )
        return {name: tuple(may) for name, *may in cursor.fetchall()}


@pytest.mark.django_db(databases=["default"])
def test_the_apps_role_writes_no_table_that_tells_the_owner_what_to_do_and_takes_no_act_back():
    rows, read_only = (True, True, True, True), (True, False, False, False)
    owners = {"detached_partitions": read_only, "django_migrations": read_only}
    owners["audit_rows"] = (True, True, False, False)
    sql = (PROJECT / "docker" / "app_role.sql").read_text()
    revoke = importlib.import_module("retention.migrations.0001_initial_2").REVOKE
    restrict = importlib.import_module("runtime.migrations.0002_audit_rows").RESTRICT
    with connection.cursor() as cursor:
        cursor.execute(sql)
        cursor.execute(sql)  # it may run again
        try:
            assert {name: may for name, may in privileges().items() if may != rows} == owners
            cursor.execute(
                "GRANT ALL ON detached_partitions, django_migrations, audit_rows TO orderpost_app"
            )  # as the defaults
            cursor.execute(revoke)
            cursor.execute(restrict)
            assert {name: may for name, may in privileges().items() if may != rows} == owners
            cursor.execute(
                "SELECT array_agg(attname::text ORDER BY 1) FROM pg_attribute"
                " WHERE attrelid = 'audit_rows'::regclass AND attnum > 0"
                " AND has_column_privilege('orderpost_app', attrelid, attnum, 'UPDATE')"
            )
            assert cursor.fetchone() == (["address", "reason"],)
        finally:
            cursor.execute("DROP OWNED BY orderpost_app; DROP ROLE orderpost_app")
