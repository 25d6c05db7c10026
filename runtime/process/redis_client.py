"""Make every Redis client: each call has a time limit, and the client repeats no call. Explain its errors."""

from __future__ import annotations

import functools
from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from runtime.faults import ServerTrouble, describe_fault
from runtime.lateness import lateness

READ_SECONDS = 0.5


def explain_error(error: redis.RedisError) -> ServerTrouble:
    """Return why Valkey gives no answer, or refuses to write."""
    text = str(error).partition("\n")[0]
    match error:
        case redis.exceptions.OutOfMemoryError():
            return ServerTrouble(
                "Valkey's memory is full, and it refuses to write",
                "raise it by `valkey-cli CONFIG SET maxmemory 1gb`, or delete what else it stores;"
                " the standby sends meanwhile",
            )
        case redis.BusyLoadingError():
            return ServerTrouble("Valkey does not answer, because it loads its data", "wait")
        case redis.AuthenticationError() | redis.exceptions.NoPermissionError():
            return ServerTrouble(f"Valkey refuses us ({text})", "check the user and password of REDIS_URL")
        case redis.ResponseError() if text.startswith("MISCONF"):
            return ServerTrouble("Valkey cannot write to its disk, so it refuses to write", "make room on it")
        case redis.ResponseError():
            return ServerTrouble(f"Valkey refuses to write ({text})", "check its log")
        case redis.TimeoutError() if lateness.is_overloaded():
            return ServerTrouble(
                "this machine is overloaded, so Valkey's answer came too late",
                "see by `top` who uses the processors; restart nothing; `kill -CONT` what is frozen (T)",
            )
        case redis.TimeoutError():
            return ServerTrouble(
                f"Valkey does not answer within {READ_SECONDS:g} s, so it is frozen, or its host is away",
                "`kill -CONT` its process, or `kill -9` it and start it again; the standby sends meanwhile",
            )
    fault = describe_fault(error)
    return ServerTrouble(
        f"Valkey does not answer ({fault or text})",
        "check the host of REDIS_URL"
        if fault and "name" in fault
        else "start it again; the standby sends meanwhile",
    )


def make_client(
    *, connect_seconds: float = 0.25, read_seconds: float = READ_SECONDS, decode: bool = False, url: str = ""
) -> redis.Redis:
    """Make a client of `url` (default: REDIS_URL) that raises `redis.RedisError` after these times.

    Answers are text if `decode`, otherwise bytes. The client connects at its first call. It must not be
    shared over a fork.
    """
    client = redis.Redis.from_url(
        url or settings.REDIS_URL,
        socket_connect_timeout=connect_seconds,
        socket_timeout=read_seconds,
        retry=Retry(NoBackoff(), 0),
        decode_responses=decode,
    )
    pool = client.connection_pool
    pool.connection_class = _leaving_replicas(pool.connection_class)
    return client


@functools.cache
def _leaving_replicas(connection_class: Any) -> Any:
    """Return a class of connections that disconnect from a server that refuses writes.

    After a switch-over, the address leads to another server, but redis-py would keep its open connections.
    """

    class Connection(connection_class):  # type: ignore[misc]  # a class that is known at run time
        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except redis.ReadOnlyError as error:
                self.disconnect()
                raise redis.ConnectionError(f"{error} The connection was closed.") from error

    return Connection
