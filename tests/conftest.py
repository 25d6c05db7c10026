"""Fixtures for all tests. The plugin tests.kit.servers starts the servers."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from django.conf import settings
from django.db import connections

from tests.kit import kafka
from tests.kit.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.kit.fake_replica import FakeReplica
    from tests.kit.fast import Fast
    from tests.kit.shop import Shop


@pytest.fixture(scope="session", autouse=True)
def cheap_passwords() -> None:
    """Hash passwords quickly, because the real hash costs a quarter of a second and many tests create users.

    The processes of a flow hash as in production.
    """
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def new_process() -> None:
    """Begin as a new process. This is one fixture, because pytest spends time on each of a test.

    Django captures no queries once its log has 9,000. The login says that PostgreSQL gave no answer. A drain
    keeps the providers of the test that first used it. `cached_rows.refresh` reads what a test wrote.
    """
    from outbox import drain  # needs Django's settings
    from runtime.database.away import silence
    from runtime.process import cached_rows
    from web.admin.page_limits import TURNS

    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
    silence.end()
    for rows in cached_rows.CACHED:
        rows.value = {}
        rows.loaded_version = None
    drain.reset()
    TURNS._working.clear()  # the turns of answers that an earlier test did not close


@pytest.fixture(scope="session", autouse=True)
def no_list_of_static_files() -> None:
    """Find a static file when it is requested. Otherwise each test client would list all of them first."""
    settings.WHITENOISE_AUTOREFRESH = True


@pytest.fixture(scope="session", autouse=True)
def patient_connections() -> Iterator[None]:
    """Wait long for each answer of PostgreSQL and Valkey, so that no test depends on the machine's load.

    A gate or a throttle that gives up on Valkey goes on alone, and a drain that runs out of time leaves
    e-mails. `Fast.valkey` takes the product's times again.
    """
    from runtime.process.redis_client import make_client  # needs Django's settings

    for alias in ("default", "direct"):
        connections.settings[alias]["OPTIONS"]["deadline"] = PATIENCE
    with pytest.MonkeyPatch.context() as patch:
        for seconds in ("connect_seconds", "read_seconds"):
            patch.setitem(make_client.__kwdefaults__ or {}, seconds, PATIENCE)
        patch.setattr("runtime.process.counts.SECONDS", PATIENCE)
        patch.setattr("operations.probes.BROKER_SECONDS", PATIENCE)
        patch.setattr("outbox.drain.DRAIN_SECONDS", PATIENCE)
        patch.setattr("local.sandbox.webhooks.TIMEOUT_SECONDS", 30.0)  # it waits for each frozen web process
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Never look for garbage in what the collection of the tests made."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, django_db_blocker: Any
) -> Iterator[None]:
    """Migrate one database for all processes, with few partitions ahead, because each slows each plan down.

    PostgreSQL plans a statement for all of them, and planning is most of its work for tests.
    """
    from retention.conditions import AHEAD_ALARM
    from retention.partitions.partitions import AHEAD
    from tests.kit import template

    AHEAD["day"], AHEAD_ALARM["day"] = 6, 2
    AHEAD["month"], AHEAD_ALARM["month"] = 2, 1
    with template.shared(django_db_blocker):
        yield


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Empty only the tables that a test wrote to. End every session before pytest-django drops the database.

    These are the tests' sessions, and those of killed processes that PostgreSQL has not noticed yet.
    """
    from django.test import TransactionTestCase

    from tests.kit.emptying import Emptying

    with pytest.MonkeyPatch.context() as patch:
        emptying = Emptying(TransactionTestCase._fixture_teardown)  # type: ignore[attr-defined]
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda case: emptying(case))
        # A timer that one test set would send the e-mails of another. Flows have the real one.
        patch.setattr("outbox.tasks.timer.wake", lambda *, in_seconds: None)
        # A command's thread would read what another test wrote. Flows have the real one.
        patch.setattr("runtime.process.cached_rows._started", True)
        # A command's thread would write rows that another test counts. Flows have the real one.
        patch.setattr("runtime.process.presence._run", lambda *_: None)
        yield
    from tests.kit.months import dsn  # needs Django's apps

    with psycopg.connect(dsn(), autocommit=True) as last:
        last.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    for connection in connections.all(initialized_only=True):
        connection.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of each shared shop, so that one process of a parallel run gets them all.

    Other tests of real processes come next, because a run is shorter if its longest tests do not come last.
    """

    def place(item: pytest.Item) -> int:
        for number, fixture in enumerate(("shared_shop", "polling_shop")):
            if fixture in getattr(item, "fixturenames", ()):
                return number
        return 2 if item.get_closest_marker("flow") else 3

    items.sort(key=place)


@pytest.fixture(scope="session")
def one_shop() -> Iterator[Shop]:
    from tests.kit.shop import Shop  # needs Django's settings

    with Shop(POLL_INTERVAL="600") as shop:
        yield shop


@pytest.fixture
def shared_shop(one_shop: Shop) -> Iterator[Shop]:
    """Return a shop with web, worker and relay that this test shares with others. No poll sends e-mails.

    A test may write, send, and kill these processes. Each test finds them running and the tables empty.
    """
    one_shop.start_missing("web", "worker", "relay")
    yield one_shop
    one_shop.empty()


@pytest.fixture(scope="session")
def filled_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    from tests.kit import plans  # needs Django's apps

    with contextlib.ExitStack() as stack:
        with django_db_blocker.unblock():
            name = stack.enter_context(plans.shared())
        yield name
        with django_db_blocker.unblock():
            stack.close()


@pytest.fixture
def filled(filled_database: str, django_db_blocker: Any) -> Iterator[None]:
    """Use the database that tests.kit.plans filled, in a transaction that is rolled back."""
    from tests.kit import plans

    with django_db_blocker.unblock(), plans.rolled_back(filled_database):
        yield


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Fast:
    from tests.kit.fast import Fast  # needs Django's settings

    return Fast(monkeypatch)


@pytest.fixture
def fake_replica(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeReplica]:
    """Return a replica that is this test's database under a second name."""
    from tests.kit.fake_replica import faked  # needs Django's settings

    with faked(settings, monkeypatch) as replica:
        yield replica


@pytest.fixture(scope="session")
def one_polling_shop() -> Iterator[Shop]:
    from tests.kit.shop import Shop  # needs Django's settings

    with Shop() as shop:
        yield shop


@pytest.fixture
def polling_shop(one_polling_shop: Shop) -> Iterator[Shop]:
    """Return a shop with web, worker and beat that this test shares with others. It polls every second.

    A test may kill these processes and the servers, and start workers with other settings.
    """
    shop = one_polling_shop
    webhooks = shop.sandbox.webhooks.settings
    shop.start_missing("web", "worker", "beat")
    yield shop
    shop.sandbox.webhooks.settings = webhooks
    for name in set(shop.processes) - {"web", "beat"}:
        shop.kill(name)
    if shop.valkey.has_ended():
        shop.valkey.start(log=shop.folder / "valkey.log")
    shop.empty()


@pytest.fixture
def valkey_url() -> Iterator[str]:
    """Return the URL of this test process's own Valkey database, emptied before and after."""
    url = os.environ["REDIS_URL"]
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@pytest.fixture(scope="session")
def shared_kafka() -> Iterator[kafka.Shared]:
    """Return the broker of all test processes, which the first test that needs it starts."""
    with kafka.shared() as broker:
        yield broker


@pytest.fixture
def archive_folder(tmp_path: Path, settings: Any) -> Iterator[Path]:
    """Write archives to a folder of the test, and drop the partitions that it made.

    A detached month is past its warm days at once.
    """
    from tests.kit.months import tidy  # needs Django's apps

    options = {"location": str(tmp_path / "archive")}
    backend = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}
    settings.STORAGES = settings.STORAGES | {"archive": backend}
    settings.WARM_DAYS = {"email_notifications": 1}
    with tidy():
        yield tmp_path / "archive"
