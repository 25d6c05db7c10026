"""The web process: `python -m config.web`. Granian serves config.wsgi from a few processes of a few threads.

Granian's WSGI would read a slow body in a thread that nothing can interrupt. So a worker uses its RSGI, which
reads bodies without a thread, and calls `web.front` in Granian's threads instead of coroutines in an event
loop (docs/adr/0049).

Granian's own command line would leave its workers at the port of a killed server. It would also start workers
again and again that a mistake in a setting stops, and a bad release would look like a slow start.

The requests of a process share one interpreter lock. Some overlap with waiting for PostgreSQL; any more only
make each other wait (docs/adr/0021). Only `--threads` of them work at a time, and `web.front.admission` lets
the others wait or refuses them.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server import Server
from granian.server.common import WORKERS_METHODS

from runtime.process.slots import MOST_OTHERS_WAITING, MOST_WAITING
from runtime.telemetry import health

WORKERS, THREADS = 2, 4
#: Threads that refuse requests and answer the liveness probe while all others work or wait.
SPARE_THREADS = 4
PR_SET_PDEATHSIG = 1  # of prctl(2)
#: Seconds for running requests to finish after a stop signal, before the process is killed.
GRACEFUL_SECONDS = 10
#: Seconds after which an idle connection is closed. A proxy in front must close its connections earlier.
IDLE_SECONDS = 60
LARGEST_HEAD = 65_536  # bytes of a request's line and headers
#: Parts of Granian that are not for others. Its version is pinned.
_GRANIAN: Any = import_module("granian._granian")
_GRANIAN_SERVER: Any = import_module("granian.server.mp")
#: The loggers of Granian and of its Rust part get no handlers. config.logs formats their lines.
_LOGGING: dict[str, Any] = {"formatters": {}, "handlers": {}, "loggers": {"_granian": {"propagate": True}}}


def main() -> None:
    """Serve until SIGTERM or SIGINT. Replace a worker process that dies.

    Exits with 1 if a worker cannot load the application.
    """
    parser = argparse.ArgumentParser(prog="python -m config.web", description="Serve the API and the admin.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes")
    parser.add_argument("--threads", type=int, default=THREADS, help="requests at a time in each process")
    options = parser.parse_args()
    # The default before Python 3.14. Workers share the parent's memory, and `load` below cannot be pickled.
    multiprocessing.set_start_method("fork", force=True)
    server = Server(
        "config.wsgi:application",
        address=options.host,
        port=options.port,
        interface=Interfaces.WSGI,  # the only one with threads of our number; see `_serve_front`
        http=HTTPModes.http1,
        websockets=False,
        workers=options.workers,
        blocking_threads=options.threads + MOST_WAITING + MOST_OTHERS_WAITING + SPARE_THREADS,
        http1_settings=HTTP1Settings(header_read_timeout=IDLE_SECONDS * 1000, max_buffer_size=LARGEST_HEAD),
        log_level=LogLevels.warning,
        log_dictconfig=_LOGGING,
        respawn_failed_workers=True,
        workers_kill_timeout=GRACEFUL_SECONDS,
    )
    _log_as_the_workers_do()
    health.expect_workers(options.workers)
    mistakes, mistake = os.pipe()
    failed = threading.Event()
    threading.Thread(target=_stop_after_mistake, args=(mistakes, failed), daemon=True).start()
    server.serve(
        spawn_target=_GRANIAN_SERVER.WorkerProcess.wrap_target(_serve_front),
        target_loader=_application_of(os.getpid(), mistake, slots=options.threads),
        wrap_loader=False,
    )
    sys.exit(int(failed.is_set()))


def _stop_after_mistake(mistakes: int, failed: threading.Event) -> None:
    """Wait for a worker that cannot load the application, then stop the server.

    Granian's main loop can miss a signal that comes while a worker ends, and would wait for ever.
    """
    os.read(mistakes, 1)
    failed.set()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(GRACEFUL_SECONDS + 5)
    os._exit(1)


def _log_as_the_workers_do() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.conf import settings

    from config.logs import configure

    configure(settings.LOGGING)
    # Granian warns of many threads. Most of ours wait for a slot.
    logging.getLogger("_granian").addFilter(lambda record: "seems quite high" not in record.getMessage())


class _NoLoop:
    """Takes the place of an event loop, to which Granian hands a body that is complete. Calls at once."""

    def call_soon(self, call: Callable[..., object], *arguments: Any, context: Any = None) -> None:
        call(*arguments)

    call_soon_threadsafe = call_soon


def _serve_front(
    worker_id: int,
    front: Any,
    socket: Any,
    ipc: Any,
    loop: Any,
    runtime_mode: Any,
    runtime_threads: int,
    runtime_blocking_threads: int,
    blocking_threads: int,
    blocking_threads_idle_timeout: int,
    backpressure: int,
    task_impl: Any,
    http_mode: Any,
    http1_settings: Any,
    http2_settings: Any,
    websockets: bool,
    static_path: Any,
    log_access_format: Any,
    tls: Any,
    scope_options: Any,
    metrics: Any,
) -> None:
    """Serve a worker process until it is told to stop, as Granian's own functions of this kind do."""
    stop, stopped = _GRANIAN.WorkerSignal(), threading.Event()

    def begin_stop(*_: object) -> None:
        front.close()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, begin_stop)
    stop.add_cb(stopped.set)
    worker = _GRANIAN.RSGIWorker(
        *(worker_id, socket, ipc, runtime_threads, runtime_blocking_threads),
        *(blocking_threads, blocking_threads_idle_timeout, backpressure),
        *(http_mode, http1_settings, http2_settings, False, static_path, *tls, metrics),
    )
    scheduler = _GRANIAN.CallbackScheduler(_NoLoop(), None, None, None, None)
    scheduler._schedule_fn = front.take
    serve = getattr(worker, WORKERS_METHODS[runtime_mode][(socket[0] or socket[1]).is_uds()])
    serve(scheduler, _NoLoop(), stop)
    front.keep_time(stopped)


def _application_of(server: int, mistake: int, *, slots: int) -> Callable[[], Any]:
    def load() -> Any:
        # Workers would otherwise outlive a killed server and keep answering at its port.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # the server was killed before the call
            sys.exit(1)
        try:
            from config.wsgi import application
            from web.front.admission import Admission
            from web.front.front import Front

            import_module("config.urls")  # the first request finds all of `web.front.posts`
        except Exception:  # noqa: BLE001 - the process ends with it
            # Granian replaces a worker again and again if it lived for more than five seconds, as it does
            # on a busy machine. So a mistake in a setting would not stop the start.
            traceback.print_exc()  # before the server ends, and this process with it
            os.write(mistake, b"1")
            sys.exit(1)
        return Front(Admission(application, slots=slots))

    return load


if __name__ == "__main__":
    main()
