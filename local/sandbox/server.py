"""The sandbox's HTTP server, with one thread for each connection. It answers sends and plays the faults.

Requests read and change the server's `state`.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from local.machine import HOST
from local.sandbox import control, pages, protocol
from local.sandbox.faults import Fault, reset, write_garbage
from local.sandbox.state import SandboxState
from notifications.providers.dialect import Dialect, ProviderAnswer, RefusalReason

_STATUSES = frozenset(HTTPStatus)


class SandboxServer(ThreadingHTTPServer):
    """A listening socket and its open connections."""

    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, *, state: SandboxState) -> None:
        self.state = state
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__((HOST, state.port), SandboxHandler)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name, which can hang."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Its thread does the TLS handshake with the first read."""
        connection, address = super().get_request()
        if tls := self.state.tls:
            connection = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the connection's thread, and record the connection for `close_all`."""
        self.state.mailbox.connection_opened()
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection whose thread has finished."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closed its connection. Other errors are defects: show them."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError | ssl.SSLError):
            super().handle_error(request, client_address)

    def close_all(self) -> None:
        """Stop listening and shut down every open connection."""
        self.server_close()
        with self._lock:
            still_open = list(self._open)
        for connection in still_open:
            try:
                # SSLSocket.shutdown would remove the TLS state that the connection's thread still uses.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                continue  # its client, or its own thread, closed it first


class SandboxHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: SandboxServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 300  # seconds until an idle connection is closed

    def do_GET(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    def do_DELETE(self) -> None:
        self._route("DELETE")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing. The pages and the statistics show the requests."""

    def _route(self, method: str) -> None:
        body = self._body()
        if body is None:
            return
        url = urllib.parse.urlsplit(self.path)
        dialects = self.server.state.dialects.values()
        if dialect := next((dialect for dialect in dialects if dialect.path.fullmatch(url.path)), None):
            if method == "POST":
                self._send_mail(dialect, body)
            else:
                self._answer(dialect.refusal(405, [RefusalReason("method not allowed")]))
            return
        query = dict(urllib.parse.parse_qsl(url.query))
        state = self.server.state
        if url.path.startswith("/control/"):
            is_json = self.headers.get_content_type() == "application/json"
            response = control.answer(
                state=state,
                method=method,
                path=url.path,
                body=body if is_json else None,
            )
            self._answer(response, then=response.then)
        elif method == "GET":
            self._answer(pages.answer(state=state, path=url.path, query=query))
        else:
            self._answer(_refusal(405, "method not allowed"))

    def _body(self) -> bytes | None:
        """Return the request's body, or None if the request was refused or broke off."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self.close_connection = True
            self._answer(_refusal(411, "a Content-Length is required"))
            return None
        wanted = int(length)
        if wanted > protocol.MAX_BODY:
            self.close_connection = True
            self._skip(min(wanted, 2 * protocol.MAX_BODY))
            self._answer(_refusal(413, protocol.MESSAGES_OF_STATUS[413]))
            return None
        body = self.rfile.read(wanted)
        if len(body) < wanted:  # the client broke off
            self.close_connection = True
            return None
        return body

    def _skip(self, length: int) -> None:
        """Read the rest. The client would otherwise see a reset instead of the answer."""
        while length > 0 and (chunk := self.rfile.read(min(length, 1 << 16))):
            length -= len(chunk)

    def _send_mail(self, dialect: Dialect, body: bytes) -> None:
        state = self.server.state
        payload = dialect.payload(body)
        notification_id = protocol.custom_args_of(payload or {}).get("notification_id", "")
        state.mailbox.requested(notification_id=notification_id, provider=dialect.name)
        if state.latency_seconds:
            time.sleep(state.latency_seconds)
        fault = state.faults.meet(
            protocol.recipients_of(payload or {}), dialect.name, protocol.sender_of(payload or {})
        )
        if fault is None:
            self._finish(self._judge(dialect, payload, body))
        elif fault.kind == "status":
            self._finish(_broken(dialect, fault))
        elif fault.kind == "slow":
            fault.wait()
            self._finish(self._judge(dialect, payload, body))
        else:
            self._break(fault, dialect, payload, body)

    def _break(self, fault: Fault, dialect: Dialect, payload: dict[str, Any] | None, body: bytes) -> None:
        """Fail a request instead of answering. First take the mail if the fault is `accept_then_…`."""
        mailbox = self.server.state.mailbox
        if fault.has_taken_mail:
            is_repeat = dialect.seen_before(body, self.headers.get) is not None
            response = self._judge(dialect, payload, body)
            if response.status >= HTTPStatus.MULTIPLE_CHOICES:
                self._finish(response)
                return
            if not is_repeat:
                arguments = protocol.custom_args_of(payload or {})
                mailbox.answer_lost(notification_id=arguments.get("notification_id", ""))
        if fault.kind == "accept_then_status":
            self._finish(_broken(dialect, fault))
            return
        mailbox.answered(answer=fault.kind)
        self.close_connection = True
        if fault.kind.endswith("hang"):
            fault.wait()
        elif fault.kind.endswith("garbage"):
            write_garbage(self.connection)
        else:
            reset(self.connection)

    def _judge(self, dialect: Dialect, payload: dict[str, Any] | None, body: bytes) -> ProviderAnswer:
        """Return the provider's answer to a request. Keep the mail if it is accepted."""
        state = self.server.state
        key = dialect.key(self.headers.get)
        if key is None:
            return dialect.refusal(401, [RefusalReason("authorization required", "authorization")])
        if state.api_key is not None and key != state.api_key:
            return dialect.refusal(401, [RefusalReason(protocol.MESSAGES_OF_STATUS[401])])
        if self.headers.get_content_type() != dialect.content_type:
            reason = RefusalReason(f"Content-Type must be {dialect.content_type}")
            return dialect.refusal(415, [reason])
        if payload is None:
            return dialect.refusal(400, [RefusalReason("Bad Request")])
        if before := dialect.seen_before(body, self.headers.get):
            return before
        if reasons := protocol.check(payload):
            return dialect.refusal(400, reasons)
        raw = json.dumps(payload).encode()
        mail = protocol.accept(payload=payload, body=raw, header=self.headers.get, provider=dialect.name)
        dialect.took(mail.message_id, body, self.headers.get)
        state.store_mail(mail)
        return dialect.accepted(mail.message_id)

    def _finish(self, response: ProviderAnswer) -> None:
        self.server.state.mailbox.answered(answer=str(response.status))
        self._answer(response)

    def _answer(self, response: ProviderAnswer, *, then: Callable[[], None] | None = None) -> None:
        """Send head and body in one write. With two, the client would wait for the second packet."""
        if then:
            self.close_connection = True
        lines = [
            f"HTTP/1.1 {response.status} {_phrase(response.status)}",
            f"Date: {self.date_time_string()}",
            f"Content-Length: {len(response.body)}",
            *(f"{name}: {value}" for name, value in response.headers.items()),
        ]
        if response.content_type:
            lines.append(f"Content-Type: {response.content_type}")
        if self.close_connection:
            lines.append("Connection: close")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + response.body)
        if then:
            then()


def _refusal(status: int, reason: str) -> ProviderAnswer:
    return control.as_json({"errors": [RefusalReason(reason)._asdict()]}, status=status)


def _broken(dialect: Dialect, fault: Fault) -> ProviderAnswer:
    if fault.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):  # these have no body
        return ProviderAnswer(fault.status, content_type="", headers=fault.headers)
    message = fault.message or protocol.MESSAGES_OF_STATUS.get(fault.status) or _phrase(fault.status)
    response = dialect.refusal(fault.status, [RefusalReason(message)])
    return dataclasses.replace(response, headers={**response.headers, **fault.headers})


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in _STATUSES else "Unknown"
