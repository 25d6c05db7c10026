"""The process that `tests.kit.warm` starts: it imports libraries, and forks for each program it is asked for.

It imports nothing of the project, because each program reads its own environment while it does that.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from typing import Any

PR_SET_PDEATHSIG = 1  # of prctl(2)
#: Those that take long and need no settings. prometheus_client must not be one: its import reads the
#: environment.
LIBRARIES = (
    "anymail.backends.base",
    "babel.dates",
    "babel.numbers",
    "celery.app.base",
    "celery.beat",
    "celery.bin.celery",
    "celery.concurrency.thread",
    "celery.worker.worker",
    "cron_descriptor",
    "crontab",
    "cryptography.hazmat.primitives.asymmetric.ec",
    "cryptography.hazmat.primitives.serialization",
    "dj_database_url",
    "django.contrib.admin",
    "django.contrib.admin.templatetags.admin_list",
    "django.contrib.admin.views.main",
    "django.contrib.auth.hashers",
    "django.contrib.staticfiles.storage",
    "django.core.handlers.wsgi",
    "django.core.mail.backends.smtp",
    "django.core.management",
    "django.core.management.commands.makemigrations",
    "django.db.backends.postgresql.base",
    "django.template.loader_tags",
    "django.test.signals",
    "django_stubs_ext",
    "drf_spectacular.utils",
    "environs",
    "fido2.server",
    "granian.server",
    "jinja2.ext",
    "jsonschema",
    "jwt",
    "kombu.matcher",
    "kombu.pidbox",
    "kombu.transport.redis",
    "psycopg.types.hstore",
    "requests",
    "rest_framework.serializers",
    "sentry_sdk.integrations.celery.utils",
    "sentry_sdk.integrations.django",
    "structlog",
    "unittest.mock",
    "uuid_utils",
    "whitenoise.middleware",
    "wsgiref.simple_server",
    "zoneinfo",
    "zstandard",
)
LARGEST_REQUEST = 200_000  # bytes: the arguments and the environment of a program


def main() -> None:
    """Fork for each request on the socket whose number is given."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()  # the programs share these pages, and no collection of theirs looks at them
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = _serve(requests)
    if request is not None:
        _run(request)


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Return a request in the fork that it asks for, None in the warm process at the end."""
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    _report(selector, key)
                    continue
                message, files, _flags, _address = socket.recv_fds(requests, LARGEST_REQUEST, 3)
                if not message:
                    return None
                warm = os.getpid()
                pid = os.fork()
                if pid == 0:
                    _redirect(*files[:2])
                    request: dict[str, Any] = json.loads(message)
                    return request | {"parent": warm}
                os.setpgid(pid, pid)  # before anybody could send a signal to its group
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, data=(pid, files[2]))
                requests.send(str(pid).encode())
                for file in files[:2]:
                    os.close(file)


def _report(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Write the exit status of a program that has ended."""
    pid, status = key.data
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, str(code).encode())
    selector.unregister(key.fileobj)
    os.close(key.fd)
    os.close(status)


def _redirect(stdout: int, stderr: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(file, number)


def _run(request: dict[str, Any]) -> None:
    """Do what Python does with these arguments: `-m MODULE …`, `-c CODE …` or `FILE …`."""
    os.closerange(3, 1024)  # the pipes of this and other programs
    os.environ.clear()
    os.environ.update(request["environment"])
    # As `setpriv --pdeathsig KILL` does for other programs. A fork does not pass through it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != request["parent"]:  # it died before the call
        sys.exit("The warm process is gone already.")
    faulthandler.register(signal.SIGUSR2)  # `Shop` asks a program where it hangs
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.chdir(request["checkout"])
    sys.path[0] = request["checkout"]  # this process's own is that of the tests
    first, *rest = request["arguments"]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
