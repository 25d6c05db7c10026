"""No migration after an app's first holds a long lock on a table with rows, or removes what is still read.

Two releases run side by side in a deploy. squawk knows PostgreSQL's rules for that.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from django.apps import apps
from django.contrib.postgres.functions import RandomUUID
from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently
from django.core.management import call_command
from django.db import OperationalError, connection, connections, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from operations import former_migrations
from operations.former_migrations import FORMER, FormerDatabase, refuse_former_database
from retention.partitions.indexes import build_missing
from retention.partitions.migrations import AddPartitionedIndex
from runtime.database import indexes
from tests.kit.months import dsn
from tests.kit.waiting import PATIENCE
from tests.kit.words import DomainEvent, attached

APPS = ("connections", "orders", "notifications", "events", "retention", "web", "runtime")
SQUAWK = Path(sys.executable).with_name("squawk")
#: Matters of taste; what is left is about locks and about readers.
TASTE = (
    "transaction-nesting",  # sqlmigrate writes the BEGIN
    "prefer-text-field",
    "prefer-bigint-over-int",
    "prefer-bigint-over-smallint",
    "prefer-identity",
    "prefer-robust-stmts",
    "require-timeout-settings",
    "prefer-timestamp-tz",
    "ban-char-field",
)
#: Migrations of new tables, and of tables of a few rows.
SMALL: tuple[str, ...] = ()


def later() -> list[tuple[str, str]]:
    loader = MigrationLoader(None)
    return sorted(
        (app, name) for app, name in loader.disk_migrations if app in APPS and not name.startswith("0001")
    )


def squawk(folder: Path, sql: str, *excluded: str) -> subprocess.CompletedProcess[str]:
    # An index of the parent ONLY touches no row; its partitions' own are built CONCURRENTLY after it.
    lines = [line for line in sql.splitlines() if " ON ONLY " not in line]
    (folder / "migration.sql").write_text("\n".join(lines))
    options = [f"--exclude={rule}" for rule in (*TASTE, *excluded)]
    command = [str(SQUAWK), "--pg-version=15.0", *options, str(folder / "migration.sql")]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.django_db(transaction=True)  # some build indexes beside their writers
@pytest.mark.parametrize(("app", "name"), later())
def test_a_migration_takes_no_long_lock_and_takes_nothing_away(app, name, tmp_path):
    out = io.StringIO()
    call_command("sqlmigrate", app, name, stdout=out)
    migration = MigrationLoader(None).disk_migrations[app, name]
    checked = squawk(tmp_path, out.getvalue(), *getattr(migration, "squawk_exceptions", ()))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def as_sql(operation: Operation) -> str:
    """Return what an operation of the app orders would do."""
    before = ProjectState.from_apps(apps)
    after = before.clone()
    operation.state_forwards("orders", after)
    with connection.schema_editor(collect_sql=True, atomic=False) as editor:
        operation.database_forwards("orders", editor, before, after)
    return "\n".join(editor.collected_sql)


#: What the release that still runs would stumble over, or what locks a table out, by squawk's rule for it.
REFUSED = {
    "ban-drop-column": migrations.RemoveField("order", "locale"),
    "renaming-column": migrations.RenameField("order", "email", "mail"),
    "changing-column-type": migrations.AlterField("order", "total_amount", models.FloatField()),
    "adding-not-nullable-field": migrations.AlterField(
        "order", "paid_at", models.DateTimeField(default=timezone.now)
    ),
    "ban-drop-default": migrations.AddField("order", "gift", models.BooleanField(default=False)),
    "adding-required-field": migrations.RunSQL("ALTER TABLE orders ADD COLUMN gift boolean NOT NULL;"),
    "adding-field-with-default": migrations.AddField(
        "order", "ticket", models.UUIDField(db_default=RandomUUID())
    ),
    "ban-drop-table": migrations.DeleteModel("Order"),
    "renaming-table": migrations.AlterModelTable("order", "shop_orders"),
    "require-concurrent-index-creation": migrations.AddIndex(
        "order", models.Index(fields=["total_amount"], name="orders_amounts")
    ),
    "require-concurrent-index-deletion": migrations.RunSQL("DROP INDEX orders_by_reference;"),
    "constraint-missing-not-valid": migrations.AddConstraint(
        "order", models.CheckConstraint(condition=Q(total_amount__lt=10**9), name="orders_cheap")
    ),
    "disallowed-unique-constraint": migrations.AddConstraint(
        "order", models.UniqueConstraint(fields=["correlation_id"], name="orders_once")
    ),
    "ban-drop-constraint": migrations.RunSQL("ALTER TABLE orders DROP CONSTRAINT orders_amounts;"),
}

ALLOWED = [
    migrations.AddField("order", "gift_note", models.TextField(null=True)),
    migrations.AddField("order", "gift", models.BooleanField(db_default=False)),
    AddIndexConcurrently("order", models.Index(fields=["total_amount"], name="orders_amounts")),
    AddConstraintNotValid(
        "order", models.CheckConstraint(condition=Q(total_amount__lt=10**9), name="orders_cheap")
    ),
    migrations.CreateModel(
        "Gift", [("id", models.UUIDField(primary_key=True)), ("name", models.TextField())]
    ),
]


@pytest.mark.django_db
@pytest.mark.parametrize("rule", REFUSED)
def test_the_check_refuses_what_breaks_the_release_before_or_locks_it_out(rule, tmp_path):
    checked = squawk(tmp_path, as_sql(REFUSED[rule]))
    assert checked.returncode != 0 and rule in checked.stdout, checked.stdout


@pytest.mark.django_db(transaction=True)  # one of them refuses to be built in a transaction
def test_the_check_lets_what_only_adds_pass(tmp_path):
    for operation in ALLOWED:
        checked = squawk(tmp_path, as_sql(operation))
        assert checked.returncode == 0, checked.stdout


@pytest.mark.django_db
def test_no_index_of_a_large_table_is_left_invalid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")
        assert cursor.fetchall() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("app", "name"), later())
def test_a_migration_of_a_table_in_use_waits_for_no_lock_for_long(app, name):
    out = io.StringIO()
    call_command("sqlmigrate", app, name, stdout=out)
    waits = False
    for line in out.getvalue().splitlines():
        if "lock_timeout = 0" in line or "RESET lock_timeout" in line:
            waits = False
        elif "lock_timeout" in line:
            waits = True
        elif re.match(r"ALTER TABLE|DROP INDEX(?! CONC)|CREATE INDEX(?! CONC)", line) and name not in SMALL:
            assert waits, line


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("app", "name"), later())
def test_a_migration_locks_one_table_in_use(app, name):
    """With a statement that locks two in the other order, they are a deadlock, and a post is refused."""
    out = io.StringIO()
    call_command("sqlmigrate", app, name, stdout=out)
    altered, created = (
        set(re.findall(rf"^{verb} TABLE \"?(\w+)", out.getvalue(), flags=re.MULTILINE))
        for verb in ("ALTER", "CREATE")
    )
    assert len(altered - created) <= 1, altered - created


def test_no_former_name_is_in_use():
    loader = MigrationLoader(None)
    assert {(app, name) for app, names in FORMER.items() for name in names} & set(
        loader.disk_migrations
    ) == set()


class TestFormerDatabase:
    @pytest.fixture(autouse=True)
    def unknown(self, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the test's database be one that this process has not seen yet."""
        monkeypatch.setattr(former_migrations, "_passed", set())

    def name(self, app: str, name: str) -> None:
        MigrationRecorder(connection).record_applied(app, name)

    def test_one_of_this_or_a_newer_release_is_used(self):
        for app in APPS:
            self.name(app, "0001_initial_5")
            self.name(app, "0002_of_a_newer_release")
        self.name("outbox", "0001_initial")
        refuse_former_database(connection=connection)

    @pytest.mark.parametrize("app", FORMER)
    def test_one_with_any_former_name_is_refused_and_its_connection_closed(self, app, monkeypatch):
        closed: list[str] = []
        monkeypatch.setattr(connection, "close", lambda: closed.append("closed"))  # the test's transaction
        for name in FORMER[app]:
            self.name(app, name)
            with pytest.raises(FormerDatabase, match=f"it names the migration {app}.{name}, .* `make clean`"):
                refuse_former_database(connection=connection)
            MigrationRecorder(connection).record_unapplied(app, name)
        assert len(closed) == len(FORMER[app])


class TestAddPartitionedIndex:
    INDEX = models.Index(fields=["aggregate_type"], name="outbox_events_tried", condition=Q(shard=1))

    def migrate(self) -> None:
        state = ProjectState.from_apps(apps)
        operation = AddPartitionedIndex(model_name="domainevent", index=self.INDEX)
        with connection.schema_editor(atomic=False) as editor:
            operation.database_forwards("events", editor, state, state)

    def valid(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT indisvalid FROM pg_index WHERE indexrelid = 'outbox_events_tried'::regclass"
            )
            return bool(cursor.fetchone()[0])

    @pytest.mark.django_db(transaction=True, databases=["default", "owner"])
    @pytest.mark.parametrize("name", ["outbox_events_next", "bulk_jobs_running"])
    def test_the_command_builds_a_missing_and_an_invalid_index_on_any_table_concurrently(self, name):
        def missing() -> list[tuple[str, bool]]:
            with connection.cursor() as cursor:
                cursor.execute(indexes.select_missing())
                return list(cursor.fetchall())

        assert missing() == []
        table = "bulk_jobs" if name.startswith("bulk") else "outbox_events"
        with connection.cursor() as cursor:
            cursor.execute(f"DROP INDEX {name}")
        assert missing() == [(name, False)]
        with CaptureQueriesContext(connections["owner"]) as captured:
            assert list(build_missing(using="owner")) == [name]
        built = [entry["sql"] for entry in captured if entry["sql"].startswith("CREATE INDEX")]
        # None holds a lock that writers need: each is concurrent, or of the parent alone.
        assert built and all("CONCURRENTLY" in sql or f'ON ONLY "{table}"' in sql for sql in built)
        assert missing() == [] and list(build_missing(using="owner")) == []
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{name}'::regclass")
        assert missing() == [(name, True)]
        assert list(build_missing(using="owner")) == [name] and missing() == []

    @pytest.mark.django_db(transaction=True)
    def test_gives_up_behind_a_writer_and_is_simply_run_again(self, fast):
        fast.locks("100ms")
        try:
            with psycopg.connect(dsn()) as writing:
                writing.execute("LOCK TABLE outbox_events IN ROW EXCLUSIVE MODE")
                with pytest.raises(OperationalError, match="lock timeout"):
                    self.migrate()
            first = attached(model=DomainEvent)[0].name
            with connection.cursor() as cursor:  # and a build that was killed between two partitions
                cursor.execute(
                    "CREATE INDEX outbox_events_tried ON ONLY outbox_events (aggregate_type) WHERE shard = 1"
                )
                cursor.execute(
                    f"CREATE INDEX {first}_outbox_events_tried ON {first} (aggregate_type) WHERE shard = 1"
                )
            assert not self.valid()
            self.migrate()
            assert self.valid()
            self.migrate()
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")
                cursor.execute("DROP INDEX IF EXISTS outbox_events_tried")
