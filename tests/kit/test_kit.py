"""The tests' own tools: emptied tables, processes with other constants, copied clusters, and reports."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connection
from django.test import TransactionTestCase

from config import settings as shipped
from local.machine import PROJECT
from tests.kit import warm
from tests.kit.clones import Run, line, report
from tests.kit.constants import NAMES, move_constants
from tests.kit.emptying import Emptying
from tests.kit.mails import make_mail
from tests.kit.needs import reason, sentence
from tests.kit.orders import make_order
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE
from tests.kit.words import DomainEvent, make_groups

#: Each transactional test finds the database as `migrate` left it, whatever the test before it wrote.
transactional = pytest.mark.django_db(transaction=True, databases=["default", "owner"])


class Counted(Emptying):
    """Counts how often it takes Django's way, and has taken it once."""

    def __init__(self) -> None:
        super().__init__(self.flush)
        self.flushes = 0
        self()

    def __call__(self, case: TransactionTestCase | None = None) -> None:
        super().__call__(case)  # type: ignore[arg-type]

    def flush(self, _: TransactionTestCase) -> None:
        self.flushes += 1
        call_command("flush", verbosity=0, interactive=False, reset_sequences=False)


@pytest.fixture
def emptying() -> Counted:
    return Counted()


def rows() -> dict[str, str]:
    """Return all rows of the tables that Django flushes, as text, where there are some."""
    texts = {}
    with connection.cursor() as cursor:
        for name in connection.introspection.django_table_names(only_existing=True):
            cursor.execute(f"SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM {name} t")
            if (text := cursor.fetchone()[0]) is not None:
                texts[name] = text
    return texts


def pages() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_relation_size(oid)) FROM pg_class"
            " WHERE relkind = 'r' AND relname LIKE 'outbox_ev%%'"
        )
        return int(cursor.fetchone()[0])


@transactional
def test_it_empties_what_was_written_and_whatever_refers_to_it(emptying):
    before = rows()
    assert "auth_permission" in before
    order = make_order()
    make_mail(order_id=order.id)
    DomainEvent.objects.create(
        aggregate_type="order", aggregate_id=order.id, event_type="t.v1", payload={}, sequence=1, shard=1
    )
    User.objects.create_user("ann").groups.add(Group.objects.get(name="viewer"))
    assert len(rows()) >= len(before) + 5
    emptying()
    assert rows() == before
    assert pages() == 0
    assert emptying.flushes == 1, "the first time only"


@transactional
@pytest.mark.parametrize(
    "change",
    [
        lambda: Group.objects.get(name="operator").delete(),
        lambda: Group.objects.get(name="viewer").permissions.clear(),
        lambda: Group.objects.create(name="a shop's own"),
    ],
    ids=["a group is gone", "a group may do less", "another group"],
)
def test_what_migrate_makes_is_there_again(emptying, change):
    change()
    emptying()
    assert emptying.flushes == 2
    assert set(Group.objects.values_list("name", flat=True)) == {"viewer", "support", "operator", "editor"}
    assert Group.objects.get(name="viewer").permissions.exists()
    make_groups(using="default")
    emptying()
    assert emptying.flushes == 2, "what Django's way made again is what the next test finds"


@transactional
def test_a_partition_that_was_dropped_is_made_again(emptying):
    child = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass"
    with connection.cursor() as cursor:
        cursor.execute(f"{child} ORDER BY 1")
        names = [name for (name,) in cursor.fetchall()]
        cursor.execute(f"DROP TABLE {names[-1]}")
        emptying()
        cursor.execute(f"{child} ORDER BY 1")
        assert [name for (name,) in cursor.fetchall()] == names


CODE = (
    "import django; django.setup(); from django.conf import settings as s;"
    f"print(*(getattr(s, name) for name in {NAMES!r}), s.DATABASES['direct']['OPTIONS']['deadline'])"
)


def read(**variables: str) -> list[float]:
    """Return the constants of a process, and the deadline of a connection."""
    environment = move_constants(os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"} | variables)
    done = warm.run([sys.executable, "-c", CODE], environment=environment)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_a_process_has_the_shipped_constants():
    assert read() == [*(getattr(shipped, name) for name in NAMES), shipped.DATABASE_TIMEOUT]


def test_a_process_of_a_test_has_others():
    assert read(DATABASE_TIMEOUT="0.7", PARTITION_GRACE_DAYS="0") == [
        0.7,
        shipped.AMBIGUOUS_HOLD_SECONDS,
        shipped.BREAKER_OPEN_SECONDS,
        0.0,
        0.7,
    ]


def test_a_process_of_another_checkout_has_its_modules_and_folder(tmp_path):
    (tmp_path / "config.py").write_text("import os\nprint(__file__, os.getcwd())\n")
    command = [sys.executable, "-c", "import config"]
    done = warm.run(command, environment=dict(os.environ), checkout=tmp_path)
    assert done.stdout.split() == [str(tmp_path / "config.py"), str(tmp_path)], done.stderr


def test_each_constant_is_no_variable():
    assert not set(NAMES) & {*shipped.env.dump(), *shipped.raw.dump()}


@pytest.mark.flow
def test_two_shops_have_the_same_tables_and_token_and_not_each_others_rows():
    with Shop() as first, Shop() as other:
        assert first.session.headers["Authorization"] == other.session.headers["Authorization"]
        migrations = "SELECT app, name FROM django_migrations ORDER BY 1, 2"
        assert first.query(migrations) == other.query(migrations) != []
        first.query("DELETE FROM api_tokens")
        assert other.query("SELECT name FROM api_tokens") == [("flow",)]


@pytest.mark.flow
def test_a_shared_shop_is_empty_for_the_next_test_and_its_token_works(shared_shop: Shop):
    shared_shop.pay(shared_shop.place())
    shared_shop.until(lambda: shared_shop.all_sent(1), "the mail is sent")
    shared_shop.empty()
    for table in ("orders", "email_notifications", "outbox_events"):
        assert shared_shop.query(f"SELECT count(*) FROM {table}") == [(0,)]
    assert not shared_shop.sandbox.mails
    shared_shop.pay(shared_shop.place())
    shared_shop.until(lambda: shared_shop.all_sent(1), "the worker goes on")


def test_random_numbers_follow_from_the_seed_and_the_tests_name(request: pytest.FixtureRequest):
    assert random.random() == random.Random(f"{os.environ['TESTS_SEED']} {request.node.nodeid}").random()


def test_each_missing_tool_is_named_once_with_its_tests_and_how_to_install_it():
    line, others = sentence([reason("helm")] * 3 + ["no checkout of git"] + [reason("podman", "wants root")])
    assert line == (
        "4 tests were skipped because a tool is missing:"
        " helm for 3 (go install helm.sh/helm/v4/cmd/helm@latest);"
        " podman for 1 (as root: apt-get install podman runc debootstrap netavark iptables golang)"
    )
    assert others == ["no checkout of git"]


def test_without_a_missing_tool_it_says_nothing():
    assert sentence(["no checkout of git"]) == ("", ["no checkout of git"])


GREEN = """
random numbers: TESTS_SEED=271828
=========== 3576 passed, 44 skipped in 1247.67s (0:20:47) ============
"""
RED = """
random numbers: TESTS_SEED=314159
FAILED tests/orders/test_demo.py::test_it_sums[a b] - AssertionError: 1 == 2
ERROR tests/api/test_fuzz.py::test_it
2 failed, 3574 passed in 999.1s
make: *** [Makefile:33: test] Error 1
"""


def test_a_run_is_told_in_one_line():
    assert line(2, Run(0, 700.4, 650.0, GREEN)) == (
        "2: green, 700 s, 650 s of CPU, seed 271828: 3576 passed, 44 skipped"
    )
    assert line(3, Run(2, 10, 9, RED)).startswith("3: FAILED (2), 10 s")
    assert "no summary" in line(1, Run(2, 1, 1, "make: setup failed"))


def test_the_end_says_how_many_were_green_and_which_test_failed_how_often():
    said = report([Run(0, 100, 90, GREEN), Run(2, 300, 80, RED), Run(2, 200, 85, RED)])
    assert said.startswith("1 of 3 green; median 200 s, 85 s of CPU")
    assert "failed in 2: tests/orders/test_demo.py::test_it_sums[a b]\n" in said
    assert "failed in 2: tests/api/test_fuzz.py::test_it" in said


def test_a_parallel_run_names_a_file_that_does_not_exist():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "-q",
        "-k",
        "x",
        __file__,
        "tests/kit/nothing.py::test_a",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "not found: tests/kit/nothing.py::test_a" in done.stdout + done.stderr


def test_a_failure_is_printed_while_other_tests_still_run(tmp_path):
    output = tmp_path / "output"
    (tmp_path / "test_two.py").write_text(
        "from pathlib import Path\n"
        "from tests.kit.waiting import until\n"
        "def test_fails():\n"
        "    assert 1 == 2, 'these differ'\n"
        "def test_waits_for_the_others_failure():\n"
        f"    until(lambda: 'these differ' in Path({str(output)!r}).read_text())\n"
    )
    plugins = ["-p", "tests.kit.failures", "-p", "no:django", "-p", "no:cacheprovider"]
    command = [sys.executable, "-u", "-m", "pytest", "-q", "-n", "2", *plugins, "-c", os.devnull]
    with output.open("w") as file:
        subprocess.run([*command, str(tmp_path)], cwd=PROJECT, stdout=file, timeout=2 * PATIENCE)
    assert "1 failed, 1 passed" in output.read_text()
    assert "FAILED in its call: " in output.read_text()
