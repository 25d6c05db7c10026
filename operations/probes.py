"""/healthz, /readyz and /metrics, for an orchestrator and Prometheus.

They are not part of the API and need no API token. /metrics needs `METRICS_TOKEN` if that is set.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import redis
import structlog
from django.db import Error as DatabaseFault
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse

from retention.partitioned import partitioned_models
from retention.partitions.partitions import ahead_among, takes_row
from retention.upkeep import check_ahead
from runtime.database.clock import read_database_time
from runtime.database.ids import id_time, new_id
from runtime.database.partitions import attached
from runtime.database.server import count_connections_left
from runtime.process.redis_client import make_client
from runtime.telemetry.metrics import exposition
from runtime.telemetry.metrics_server import is_allowed_to_read
from web.api.get_only import Endpoint, get_only
from web.api.problem_types import NOT_READY, UNAUTHENTICATED
from web.api.problems import Problem
from web.api.views import json_response

log = structlog.get_logger(__name__)

BROKER_SECONDS = 0.5
AHEAD_SECONDS = 3600


@get_only
def healthz(request: HttpRequest) -> HttpResponse:
    """Answer 200 if the process serves requests. Call no other server."""
    return json_response({"status": "ok"})


@get_only
def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 200 if everything that a request needs works, else 503 with the failing checks.

    A broker that is away does not fail the probe: requests do not need it. Neither does a lack of free
    connections, since the process has its own.
    """
    checks = {
        "database": _check_database,
        "broker": _check_broker,
        "migrations": _check_migrations,
        "partitions": _check_partitions,
        "connections": _check_connections,
    }
    results: dict[str, str] = {}
    for name, check in checks.items():
        # Skip the checks that would wait again for a database that does not answer.
        silent = name not in ("database", "broker") and results["database"] != "ok"
        results[name] = results["database"] if silent else _result(check)
    reported = ("broker", "connections")
    failing = [name for name, result in results.items() if result != "ok" and name not in reported]
    if failing:
        raise Problem(
            NOT_READY,
            detail=f"Failing: {', '.join(failing)}.",
            headers={"Retry-After": "1"},
            checks=results,
            failing=failing,
        )
    return json_response({"status": "ready", "checks": results})


def _result(check: Callable[[], str]) -> str:
    try:
        return check()
    except (DatabaseFault, redis.RedisError) as error:
        log.warning("readiness check failed", check=check.__name__, exc_info=error)
        return "does not answer"


def _check_database() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool")
        is_standby, is_read_only = cursor.fetchone()
    if not is_read_only:
        return "ok"
    # A failover may have made another server the primary, and no request comes that would find out.
    connection.close()
    return "refuses writes: it is a standby" if is_standby else "refuses writes: it is read-only"


def _check_broker() -> str:
    with make_client(connect_seconds=BROKER_SECONDS, read_seconds=BROKER_SECONDS) as client:
        client.ping()
    return "ok"


def _check_migrations() -> str:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    missing = [f"{migration.app_label}.{migration.name}" for migration, _ in plan]
    return f"not applied: {', '.join(missing)}" if missing else "ok"


def _check_partitions() -> str:
    now, here = read_database_time(), id_time(new_id())
    _log_few_partitions(int(time.monotonic() // AHEAD_SECONDS))
    short, strange = [], []
    for model in partitioned_models():
        among = attached(model=model)
        if ahead_among(model=model, now=now, among=among).partitions_ahead < 1:
            short.append(model._meta.db_table)
        elif not takes_row(among=among, id_at=here, created_at=now):
            strange.append(model._meta.db_table)
    if short:
        return f"no next partition: {', '.join(short)}"
    if strange:
        seconds = (here - now).total_seconds()
        return (
            f"no partition for this host's clock, {seconds:+.0f} s from the database's: {', '.join(strange)}"
        )
    return "ok"


def _check_connections() -> str:
    return f"{count_connections_left()} left"


@functools.lru_cache(maxsize=1)
def _log_few_partitions(_period: int) -> None:
    """Log an error for each table whose partitions run out, once per `AHEAD_SECONDS` and process."""
    for model in partitioned_models():
        check_ahead(model=model)


@get_only
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with the metrics, in OpenMetrics if the request accepts it."""
    if not is_allowed_to_read(request.headers.get("Authorization", "")):
        raise Problem(
            UNAUTHENTICATED,
            detail="Send METRICS_TOKEN as Authorization: Bearer <token>.",
            headers={"WWW-Authenticate": "Bearer"},
        )
    body, content_type = exposition(accept=request.headers.get("Accept", ""))
    return HttpResponse(body, content_type)


PROBES: dict[str, Endpoint] = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}


def probes_first(get_response: Endpoint) -> Endpoint:
    """Answer probes before Django checks the Host header.

    Orchestrators and Prometheus send an IP address in that header.
    """

    def answer(request: HttpRequest) -> HttpResponse:
        return PROBES.get(request.path_info, get_response)(request)

    return answer
