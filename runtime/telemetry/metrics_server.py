"""Serve a process's metrics on METRICS_PORT from a separate thread. `watch` starts it."""

from __future__ import annotations

import http.server
import secrets
import socketserver
import threading
import time

import structlog
from django.conf import settings
from django.db import close_old_connections

from runtime.telemetry import health
from runtime.telemetry.health import WEB
from runtime.telemetry.metrics import exposition

log = structlog.get_logger(__name__)

CLIENT_SECONDS = 5.0
RETRY_SECONDS = 2.0
_starting = threading.Lock()  # the roles of one process begin at the same time


def watch(role: str) -> None:
    """Begin the health file of this thread's role, and serve the process's metrics. Call this after a fork.

    A process of several roles serves its metrics once.
    """
    health.begin(role)
    with _starting:
        if not settings.METRICS_PORT or _Server.started:
            return
        _Server.started = True
    threading.Thread(target=_serve, args=[role], name="metrics", daemon=True).start()


def is_allowed_to_read(authorization: str) -> bool:
    """Return whether the header has METRICS_TOKEN. If that setting is empty, every request may read."""
    if not settings.METRICS_TOKEN:
        return True
    scheme, _, token = authorization.partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(
        token.strip().encode(), settings.METRICS_TOKEN.encode()
    )


class _Server(socketserver.TCPServer):
    """Serve one request at a time: scrapes use only one connection to the database."""

    allow_reuse_address = True
    started = False
    with_readers = False

    def handle_error(self, request: object, client_address: object) -> None:
        log.info("a reader of metrics hung up", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    server: _Server

    def do_GET(self) -> None:
        if not is_allowed_to_read(self.headers.get("Authorization", "")):
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        close_old_connections()
        accept = self.headers.get("Accept", "")
        body, content_type = exposition(accept=accept, with_readers=self.server.with_readers)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _serve(role: str) -> None:
    """Serve until the process exits. The web's processes share one port, and all but one wait for it."""
    told = False
    while True:
        try:
            with _Server((settings.METRICS_HOST, settings.METRICS_PORT), _Handler) as server:
                server.with_readers = role == WEB
                server.serve_forever()
        except OSError as error:
            if not told and role != WEB:
                log.error("metrics are not served", port=settings.METRICS_PORT, error=str(error))
                told = True
            time.sleep(RETRY_SECONDS)
