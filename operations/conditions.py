"""The conditions of pauses, processes, jobs, sums, the replica, and the server, with their facts."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runtime.charts.sums import SUMMED
from runtime.conditions import (
    HEARTBEATS,
    PAUSES,
    PROCESSES,
    Alert,
    Condition,
    Counted,
    Measurement,
    Query,
    Row,
    register,
    show,
)
from runtime.database import replica
from runtime.database.server import SESSIONS
from runtime.models import Pause
from runtime.process.presence import QUIET_SECONDS
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


def _quiet(processes: Sequence[Row]) -> Iterator[Measurement]:
    for row in processes:
        seconds = row["seconds"]
        words = f"{seconds:.0f} s" if seconds < 120 else f"{seconds // 60:.0f} min"
        yield Measurement(seconds, "{kind} {process} on {host}".format(**row), {"quiet": words})


#: The alert is written by hand: each process's own numbers tell Prometheus.
PROCESS_GONE = Condition(
    code="ProcessGone",
    place=35,
    source=PROCESSES,
    measure=_quiet,
    limit=QUIET_SECONDS,
    sentence="{subject}: no beat for {quiet}",
    do="restart it, or forget it under Set-up, Heartbeats, if it is gone for good",
    alert=None,
    page="runtime.heartbeat",
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
    source=HEARTBEATS,
    measure=lambda beats: [Measurement(beats.get(SUMMED, 0.0))],
    limit=300,
    sentence="the charts are not summed",
    do="check beat and worker",
    alert=Alert("P3", "10m", "No worker has summed the charts' numbers for five minutes."),
)
#: A replica that no web process has read yet is missing.
REPLICA_BEHIND = Condition(
    code="ReplicaBehind",
    place=205,
    source=HEARTBEATS,
    measure=lambda beats: [Measurement(beats.get(replica.FOLLOWS, math.inf))] if replica.is_set() else [],
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
        " `sums`, `replica`, `webhook:<provider>` (last accepted post),"
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
register(PAUSED, PROCESS_GONE, JOBS_FAILED, SUMS_LATE, REPLICA_BEHIND, CONNECTIONS_LOW)
