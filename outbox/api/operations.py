"""What an operator's machinery asks: does the process live, is it ready, what does it measure.

Not part of the API: no token of ours, except `METRICS_TOKEN` for the numbers when that is set.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable

import redis
import structlog
from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from prometheus_client import CONTENT_TYPE_LATEST
from redis.backoff import NoBackoff
from redis.retry import Retry

from outbox.api.problems import Problem, problem_response
from outbox.api.views import json_response
from outbox.core.clock import database_now
from outbox.core.metrics import exposition
from outbox.retention import partitions

log = structlog.get_logger(__name__)

BROKER_SECONDS = 0.5

View = Callable[[HttpRequest], HttpResponse]


def _get_only(view: View) -> View:
    """Answer GET and HEAD alone, and whatever goes wrong as a problem."""

    @csrf_exempt
    @functools.wraps(view)
    def answer(request: HttpRequest) -> HttpResponse:
        try:
            if request.method not in ("GET", "HEAD"):
                raise Problem(
                    status=405,
                    slug="method-not-allowed",
                    title="Method not allowed",
                    detail="This address only answers GET.",
                    headers={"Allow": "GET, HEAD"},
                )
            return view(request)
        except Exception as error:  # noqa: BLE001 - problem_response logs what is not expected
            return problem_response(error, {})

    return answer


@_get_only
def healthz(request: HttpRequest) -> HttpResponse:
    """This function will answer 200 as long as the process serves; it asks nobody else."""
    return json_response({"status": "ok"})


@_get_only
def readyz(request: HttpRequest) -> HttpResponse:
    """This function will answer 200 if all that a request needs is there, else 503 naming what is not."""
    checks = {
        "database": _check_database,
        "broker": _check_broker,
        "migrations": _check_migrations,
        "partitions": _check_partitions,
    }
    results: dict[str, str] = {}
    for name, check in checks.items():
        # Each of these would wait in its turn for a database that has just kept the first one waiting.
        silent = name in ("migrations", "partitions") and results["database"] != "ok"
        results[name] = results["database"] if silent else _result(check)
    failing = [name for name, result in results.items() if result != "ok"]
    if failing:
        raise Problem(
            status=503,
            slug="not-ready",
            title="Not ready",
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
    database_now()
    return "ok"


def _check_broker() -> str:
    client = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=BROKER_SECONDS,
        socket_timeout=BROKER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    with client:
        client.ping()
    return "ok"


def _check_migrations() -> str:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    missing = [f"{migration.app_label}.{migration.name}" for migration, _ in plan]
    return f"not applied: {', '.join(missing)}" if missing else "ok"


def _check_partitions() -> str:
    now = database_now()
    short = [
        model._meta.db_table
        for model in partitions.partitioned_models()
        if partitions.ahead_of(model=model, now=now) < 1
    ]
    return f"no next partition: {', '.join(short)}" if short else "ok"


@_get_only
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer the metrics that the apps declare, in Prometheus' text format."""
    if settings.METRICS_TOKEN and not _may_read_metrics(request):
        raise Problem(
            status=401,
            slug="unauthenticated",
            title="A valid token is needed",
            detail="The metrics are open to METRICS_TOKEN alone.",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return HttpResponse(exposition(), CONTENT_TYPE_LATEST)


def _may_read_metrics(request: HttpRequest) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(
        given.strip().encode(), settings.METRICS_TOKEN.encode()
    )
