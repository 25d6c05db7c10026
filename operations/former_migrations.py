"""Refuse a database of an earlier commit, which names migrations that no longer exist.

To Django it is migrated, but it may lack columns. So every process reads `django_migrations` with its first
connection, and raises `FormerDatabase` before it changes anything. A name that only a newer release has is no
reason: in a rolling deploy and on the way back, this release works with that one's database.

Since the baseline of rolling deploys (tests/kit/baseline.py), no migration changes in place: a change of the
schema is a new file.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from psycopg.errors import UndefinedTable

#: The migrations that no longer exist, by app. A later release never uses these names again.
FORMER = {
    "connections": ["0001_initial", "0001_initial_2", "0001_initial_3", "0001_initial_4"],
    "events": ["0001_initial", "0002_is_exact", "0003_refused_events", "0001_initial_2"],
    "notifications": [
        "0001_initial",
        "0002_mail_profiles",
        "0003_shop_copies",
        "0004_email_templates",
        "0005_view_email_templates",
        "0006_name_e_mail",
        "0007_email_texts",
        "0008_order_of_emails",
        "0009_age_of_emails",
        "0010_addresses_by_beginning",
        "0011_drop_any_case",
        "0001_initial_2",
        "0001_initial_3",
        "0001_initial_4",
    ],
    "orders": [
        "0001_initial",
        "0002_facts_of_other_systems",
        "0003_validate_facts",
        "0004_refunds",
        "0005_unexpected_payments",
        "0006_index_unexpected_payments",
        "0007_any_case",
        "0008_shipments",
        "0009_reported_at",
        "0010_unshipped",
        "0001_initial_2",
        "0001_initial_3",
    ],
    "outbox": ["0002_retired_partitions_and_erasures"],  # the app had tables before 0.3.0
    "retention": ["0001_initial", "0002_only_the_owner_writes_records", "0003_erasure_repeated_at"],
    "runtime": [
        "0001_initial",
        "0002_bulkjob_steps",
        "0003_processes",
        "0004_bulkjob_refused_ids",
        "0001_initial_2",
    ],
    "web": ["0001_initial", "0002_webhook_signatures", "0003_name_api_token", "0001_initial_2"],
}

#: The databases that this process may use, by host, port and name.
_passed: set[tuple[str, str, str]] = set()


class FormerDatabase(ImproperlyConfigured):
    """The database names a migration that no longer exists."""


def refuse_former_database(*, connection: Any, **_: Any) -> None:
    """Raise `FormerDatabase` and close a new connection if its database has a name of `FORMER`."""
    settings = connection.settings_dict
    database = settings["HOST"], str(settings["PORT"]), settings["NAME"]
    if database in _passed:
        return
    names = [f"{app}.{name}" for app, former in FORMER.items() for name in former]
    try:
        row = connection.connection.execute(
            "SELECT app || '.' || name FROM django_migrations WHERE app || '.' || name = ANY(%s) LIMIT 1",
            [names],
            prepare=False,
        ).fetchone()
    except UndefinedTable:
        return  # it is new
    if row is None:
        _passed.add(database)
        return
    connection.close()
    raise FormerDatabase(
        f"The database {settings['NAME']!r} belongs to an earlier orderpost: it names the migration {row[0]},"
        " which no longer exists. No upgrade leads from it, and nothing was changed in it. Use an empty"
        " database, and for a local run `make clean`."
    )
