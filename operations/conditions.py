"""The conditions of pauses, processes, jobs, sums, the replica, and the server, with their facts."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.conf import settings

from runtime.charts.sums import SUMMED
from runtime.conditions import (
    HEARTBEATS,
    JOBS,
    PAUSES,
    PROCESSES,
    QUIET_SECONDS,
    Alert,
    Condition,
    Counted,
    Measurement,
    Query,
    Row,
    register,
    show,
)
from runtime.database import indexes, replica
from runtime.database.server import IDLE_IN_TRANSACTION, SESSIONS
from runtime.models import Pause
from runtime.process import presence
from runtime.telemetry.metrics import gauge


class Connections(NamedTuple):
    """The client connections of the whole server."""

    by_state: dict[str, int]
    left: int
    oldest_transaction_seconds: float  # of the sessions that this role may see


def _connections(sessions: Sequence[Row], _: dt.datetime) -> Connections:
    states = dict.fromkeys(("active", "idle", "idle in transaction", "other"), 0)
    states |= {session["state"]: session["number"] for session in sessions}
    # Never empty: this session is one of them.
    oldest = max(session["oldest"] or 0.0 for session in sessions)
    return Connections(states, max(0, sessions[0]["most"] - sum(states.values())), max(0.0, oldest))


FAILED_JOBS: Query[int] = Query(
    name="failed jobs",
    select=lambda _: "SELECT count(*) AS number FROM bulk_jobs WHERE state = 'failed'",
    read=lambda rows, _: int(rows[0]["number"]),
)
CONNECTIONS: Query[Connections] = Query(
    name="connections", select=lambda _: SESSIONS, read=_connections, is_about_server=True
)


def _paused(pauses: Sequence[Row]) -> Iterator[Measurement]:
    by_part = {pause["part"]: pause for pause in pauses}
    for part in Pause.Part:
        yield Measurement(
            part in by_part,
            part.value,
            {"do": f"run `manage.py resume {part}` when that is over"} | by_part.get(part, {}),
        )


PAUSED = Condition(
    code="Paused",
    place=10,
    source=PAUSES,
    measure=_paused,
    sentence="{subject} is paused by {by} ({reason})",
    do="run `manage.py resume PART` when that is over",
    alert=Alert("P2", "1h", "A pause has lasted an hour."),
)


def _subject(row: Row) -> str:
    return "{kind} (process {process} on {host})".format(**row)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _quiet(processes: Sequence[Row]) -> Iterator[Measurement]:
    for row in processes:
        words = {"quiet": _in_words(row["seconds"])}
        if row["seconds"] > QUIET_SECONDS:
            words["do"] = _revive(row)
        yield Measurement(row["seconds"], _subject(row), words)


def _revive(row: Row) -> str:
    """Return what to do with a process that does not beat, by its state if it is one of this host."""
    number = row["process"]
    match presence.find_state(host=row["host"], process=number, up_seconds=row["up_seconds"]):
        case presence.ProcessState.FROZEN:
            return f"it is frozen: `kill -CONT {number}`, or `kill -9 {number}`, after which it starts again"
        case presence.ProcessState.RUNNING:
            return f"it hangs: `kill -9 {number}`, after which it starts again"
        case presence.ProcessState.GONE:
            return "it was killed: start it, or forget it under Set-up, Heartbeats, if it is gone for good"
        case _:
            return (
                "start it again; if it is frozen, `kill -CONT` or `kill -9` it first;"
                " forget it under Set-up, Heartbeats, if it is gone for good"
            )


#: The alert is written by hand: each process's own numbers tell Prometheus.
PROCESS_GONE = Condition(
    code="ProcessGone",
    place=35,
    source=PROCESSES,
    measure=_quiet,
    limit=QUIET_SECONDS,
    sentence="{subject}: no beat for {quiet}",
    do="start it again, or forget it under Set-up, Heartbeats, if it is gone for good",
    alert=None,
    page="runtime.heartbeat",
)


def _off(processes: Sequence[Row]) -> Iterator[Measurement]:
    for row in processes:
        ahead = row["clock_ahead"] or 0.0
        words = {"off": _in_words(abs(ahead)), "way": "ahead of" if ahead > 0 else "behind"}
        yield Measurement(abs(ahead), _subject(row), words)


#: A wrong clock makes ids of another time, and a worker drop tasks as expired.
CLOCK_WRONG = Condition(
    code="ClockWrong",
    place=37,
    source=PROCESSES,
    measure=_off,
    limit=10,
    sentence="the clock of {subject} is {off} {way} PostgreSQL's",
    do="set the clocks of both hosts (`timedatectl`), and restart the process if its own clock stays wrong",
    alert=Alert("P2", "1m", "The clocks of a process and of PostgreSQL are more than ten seconds apart."),
    page="runtime.heartbeat",
)


def _holding(sessions: Sequence[Row]) -> Iterator[Measurement]:
    for row in sessions:
        pid, since, waiting = row["pid"], row["since"], Counted(row["waiting"])
        name = f" ({row['application']})" if row["application"] else ""
        idle = f"does nothing in a transaction since {since} UTC, and " if since else ""
        words = {
            "who": f"session {pid} of {row['username']}{name}",
            "idle": idle,
            "waiting": f"{waiting:other session waits|other sessions wait} for"
            if waiting
            else "others may need",
            "do": f"end it by `SELECT pg_terminate_backend({pid});`, or on PostgreSQL's host by `kill {pid}`",
        }
        yield Measurement(row["seconds"] or math.inf, str(pid), words)


#: Sessions that do nothing within a transaction in which they have locked rows.
IDLE_TRANSACTIONS: Query[Sequence[Row]] = Query(
    name="idle transactions",
    select=lambda _: IDLE_IN_TRANSACTION,
    read=lambda rows, _: rows,
    is_about_server=True,
)
TRANSACTION_IDLE = Condition(
    code="TransactionIdle",
    place=36,
    source=IDLE_TRANSACTIONS,
    measure=_holding,
    limit=10,
    sentence="{who} {idle}holds rows that {waiting}",
    do="end it by `SELECT pg_terminate_backend(PID);`",
    alert=Alert("P2", "1m", "A session does nothing in a transaction, and holds rows that others change."),
    page="runtime.heartbeat",
)
#: The names of our indexes that do not exist, or that PostgreSQL does not use.
MISSING_INDEXES: Query[Sequence[Row]] = Query(
    name="missing indexes",
    select=lambda _: indexes.select_missing(),
    read=lambda rows, _: rows,
    is_about_server=True,
)
INDEX_MISSING = Condition(
    code="IndexMissing",
    place=56,
    source=MISSING_INDEXES,
    measure=lambda rows: [
        Measurement(1, row["name"], {"is": "is invalid" if row["is_there"] else "is missing"}) for row in rows
    ],
    sentence="the index {subject} {is}, so statements read whole tables",
    do="run `manage.py partitions ensure`, which builds it while others write",
    alert=Alert("P2", "10m", "An index of ours is missing or invalid, so statements read whole tables."),
    page="runtime.heartbeat",
)
#: Users who logged in within a day. Only one of them may use a password if PASSWORD_LOGIN is set.
LOGINS: Query[Sequence[Row]] = Query(
    name="logins",
    select=lambda _: (
        "SELECT username, to_char(last_login AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') AS at FROM auth_user"
        " WHERE last_login > statement_timestamp() - interval '24 hours'"
        if settings.PASSWORD_LOGIN
        else "SELECT 1 WHERE false"
    ),
    read=lambda rows, _: [row for row in rows if row["username"] == settings.PASSWORD_LOGIN],
)
PASSWORD_USED = Condition(
    code="PasswordUsed",
    place=58,
    source=LOGINS,
    measure=lambda logins: [Measurement(1, words={"at": row["at"]}) for row in logins],
    sentence="the user of PASSWORD_LOGIN logged in at {at} UTC",
    do="ask whether it was meant, and why the provider was not used",
    alert=Alert("P2", "1m", "The user of `PASSWORD_LOGIN` logged in by password within 24 hours."),
    page="auth.user",
)
JOBS_FAILED = Condition(
    code="JobsFailed",
    place=120,
    source=FAILED_JOBS,
    measure=lambda jobs: [Measurement(jobs)],
    sentence="{number:background job|background jobs} failed",
    do="restart or stop them in the admin, under Jobs",
    alert=Alert("P3", "10m", "A batch of a background job failed, or no process knows the job's action."),
)
#: A job that never ran is not late.
SUMS_LATE = Condition(
    code="SumsLate",
    place=200,
    source=JOBS,
    measure=lambda jobs: [Measurement(jobs.late_seconds(SUMMED, kinds=["worker"]))],
    limit=300,
    sentence="the charts are not summed",
    do="check beat and worker",
    alert=Alert("P3", "10m", "No worker has summed the charts' numbers for five minutes."),
)
#: A replica that no web process has read yet is missing.
REPLICA_BEHIND = Condition(
    code="ReplicaBehind",
    place=205,
    source=JOBS,
    measure=lambda jobs: (
        [Measurement(jobs.late_seconds(replica.FOLLOWS, kinds=["web"], never=math.inf))]
        if replica.is_set()
        else []
    ),
    limit=60,
    sentence="no replica follows the primary within five seconds",
    do="check `pg_stat_replication` on the primary, which answers meanwhile",
    alert=Alert("P3", "5m", "No web process has found a replica within five seconds of the primary."),
    page="runtime.heartbeat",
)
#: The number is the share of connections that are left.
CONNECTIONS_LOW = Condition(
    code="DatabaseConnectionsLow",
    place=220,
    source=CONNECTIONS,
    measure=lambda clients: [
        Measurement(
            clients.left / (clients.left + sum(clients.by_state.values())),
            words={"left": Counted(clients.left)},
        )
    ],
    limit=0.1,
    holds="below",
    sentence="PostgreSQL has only {left:connection|connections} left",
    do="end idle sessions, or use fewer threads",
    alert=Alert("P2", "5m", "Less than a tenth of PostgreSQL's connections are left."),
    page="runtime.heartbeat",
)
show(
    gauge("orderpost_paused", "1 during a pause of `delivery`, `relay` or `consumers`", ["part"]),
    PAUSES,
    lambda pauses: {pause.subject: pause.number for pause in _paused(pauses)},
)
show(
    gauge(
        "orderpost_heartbeat_age_seconds",
        "since the last of `poll`, `web`, `relay`, `partitions`, `cdc`, `rollover`, `rollover:requested`,"
        " `sums`, `replica`, `shops compared`, `webhook:<provider>` (last accepted post),"
        " `refused:<problem>:<provider>` (last refused one)",
        ["name"],
    ),
    HEARTBEATS,
    lambda beats: beats,
)
show(
    gauge(
        "orderpost_database_connections",
        "clients: `active`, `idle`, `idle in transaction`, `other`",
        ["state"],
    ),
    CONNECTIONS,
    lambda clients: clients.by_state,
)
show(
    gauge("orderpost_database_connections_left", "connections left for ordinary roles"),
    CONNECTIONS,
    lambda clients: clients.left,
)
register(
    PAUSED,
    PROCESS_GONE,
    TRANSACTION_IDLE,
    CLOCK_WRONG,
    INDEX_MISSING,
    PASSWORD_USED,
    JOBS_FAILED,
    SUMS_LATE,
    REPLICA_BEHIND,
    CONNECTIONS_LOW,
)
