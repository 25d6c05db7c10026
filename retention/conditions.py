"""The conditions of partitions: too few ahead, held ones, months without a file, and late upkeep."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence

from retention.partitioned import Interval, PartitionedModel, partitioned_models
from retention.partitions.partitions import MADE, PartitionsAhead, ahead_among, model_of, start_of
from runtime import conditions
from runtime.conditions import DAY, JOBS, Alert, Condition, Measurement, Query, Row
from runtime.database.ids import id_floor
from runtime.database.partitions import attached_statement, parse_bounds
from runtime.telemetry.metrics import gauge

#: The smallest sufficient number of partitions after the current one.
AHEAD_ALARM: dict[Interval, int] = {"month": 2, "day": 14}
#: Seconds without a heartbeat of keep_partitions: its interval of a day plus some hours.
UPKEEP_LATE_SECONDS = 100_000.0


def _select_partitions(_: dt.datetime) -> str:
    """Return the SELECT of the attached partitions, and of the ends of the detached ones without a file."""
    tables = [model._meta.db_table for model in partitioned_models()]
    return f"""
        SELECT parent, name, bounds, NULL::timestamptz AS until
        FROM ({attached_statement(tables=tables)}) AS attached
        UNION ALL
        SELECT "table", name, NULL, until FROM detached_partitions WHERE archived_at IS NULL
    """  # noqa: S608 - only names of tables are inserted


def _partitions(rows: Sequence[Row], now: dt.datetime) -> list[PartitionsAhead]:
    by_table = defaultdict(list)
    for row in rows:
        by_table[row["parent"]].append(row)
    return [_with_cold_files(model, by_table[model._meta.db_table], now) for model in partitioned_models()]


def _with_cold_files(model: PartitionedModel, rows: Iterable[Row], now: dt.datetime) -> PartitionsAhead:
    ends = [dt.datetime.fromisoformat(row["until"]) for row in rows if row["until"]]
    among = parse_bounds((row["name"], row["bounds"]) for row in rows if row["bounds"])
    overdue = []
    if (warm := model.warm()) is not None:
        ages = [
            (now - until - warm).total_seconds()
            for until in (*ends, *(partition.until for partition in among))
        ]
        overdue = [age for age in ages if age >= 0]
    return ahead_among(model=model, now=now, among=among)._replace(
        archive_overdue=len(overdue), archive_overdue_seconds=max(overdue, default=0.0)
    )


def _select_holding(now: dt.datetime) -> str:
    """Return the SELECT that counts the unfinished rows of partitions past their hot days."""
    selects = []
    for model in partitioned_models():
        rules = model.retention
        floor = id_floor(start_of(interval=rules.interval, when=now - model.hot()))
        for condition in rules.unfinished.values():
            selects.append(f"(SELECT 1 FROM {model._meta.db_table} WHERE id < '{floor}' AND {condition})")  # noqa: S608
    limited = f"{' UNION ALL '.join(selects)} LIMIT {conditions.MOST}"
    return f"SELECT count(*) AS number FROM ({limited}) AS row"  # noqa: S608


#: Of each partitioned table.
PARTITIONS: Query[Sequence[PartitionsAhead]] = Query(
    name="partitions", select=_select_partitions, read=_partitions
)
#: The number of unfinished rows in partitions past their hot days.
HOLDING: Query[int] = Query(
    name="rows that hold a partition", select=_select_holding, read=lambda rows, _: int(rows[0]["number"])
)

PARTITIONS_RUN_OUT = Condition(
    code="PartitionsRunOut",
    place=170,
    source=PARTITIONS,
    measure=lambda tables: [
        Measurement(ahead.partitions_ahead, ahead.table, {"days": ahead.partitions_ahead_seconds // DAY})
        for ahead in tables
    ],
    limit=lambda table: AHEAD_ALARM[model_of(table=table).retention.interval],
    holds="below",
    sentence="{subject} has partitions for {days:.0f} days",
    do="run `manage.py partitions ensure`",
    alert=Alert(
        "P2", "5m", "A table has fewer than 14 future days, or fewer than two future months, of partitions."
    ),
    page="retention.detachedpartition",
)
ARCHIVE_OVERDUE = Condition(
    code="ArchiveOverdue",
    place=180,
    source=PARTITIONS,
    measure=lambda tables: [Measurement(ahead.archive_overdue_seconds, ahead.table) for ahead in tables],
    limit=2 * DAY,
    sentence="a month of {subject} should be a cold file",
    do="run `manage.py partitions rollover`",
    alert=Alert("P3", "5m", "A month is two days late to be archived after its warm days."),
    page="retention.detachedpartition",
)
PARTITION_HELD = Condition(
    code="PartitionHeld",
    place=190,
    source=HOLDING,
    measure=lambda number: [Measurement(number)],
    sentence="{number:unfinished row holds|unfinished rows hold} a partition",
    do="finish these rows, so that it is detached",
    alert=Alert("P3", "1h", "Rows are unfinished after their partition's hot days, so it stays attached."),
)
#: An upkeep that never ran is not late.
UPKEEP_LATE = Condition(
    code="UpkeepLate",
    place=210,
    source=JOBS,
    measure=lambda jobs: [Measurement(jobs.late_seconds(MADE, kinds=["partitions"]))],
    limit=UPKEEP_LATE_SECONDS,
    sentence="keep_partitions has not run for a day",
    do="start the role `partitions`",
    alert=Alert("P3", "1h", "No process has made or detached partitions for 28 hours."),
)
conditions.register(PARTITIONS_RUN_OUT, ARCHIVE_OVERDUE, PARTITION_HELD, UPKEEP_LATE)

conditions.show(
    gauge("orderpost_partitions_ahead_seconds", "time until rows fit no partition", ["table"]),
    PARTITIONS,
    lambda tables: {ahead.table: ahead.partitions_ahead_seconds for ahead in tables},
)
conditions.show(
    gauge(
        "orderpost_archive_overdue_seconds",
        "since the oldest unarchived month's warm days ended, or 0",
        ["table"],
    ),
    PARTITIONS,
    lambda tables: {ahead.table: ahead.archive_overdue_seconds for ahead in tables},
)
