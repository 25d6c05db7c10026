"""A server of HTTP on 127.0.0.1 whose answers a test decides."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: (path, headers, body) -> status, JSON body or bytes, headers. A `ConnectionError` hangs up.
Answer = Callable[[str, Any, Any], tuple[int, Any, dict[str, str]]]


def read_json(raw: bytes) -> Any:
    """Return the value of a JSON body, or None without a body."""
    return json.loads(raw) if raw else None


@contextlib.contextmanager
def serve(
    answer: Answer,
    *,
    read: Callable[[bytes], Any] = read_json,
    tls: ssl.SSLContext | None = None,
    on_connection: Callable[[], object] = lambda: None,
) -> Iterator[str]:
    """Serve `answer` on a free port, and yield the address. Connections are kept.

    A header X-Hang-Up closes the connection without a word. `read` makes the third argument of `answer` of a
    body. The server calls `on_connection` for each connection.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            on_connection()
            super().setup()

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                raw = gzip.decompress(raw)
            try:
                status, body, headers = answer(self.path, self.headers, read(raw))
            except ConnectionError:
                self.close_connection = True
                return
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)
            self.close_connection |= "X-Hang-Up" in headers

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Say nothing of a client that hangs up."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with run(server) as url:
        yield url if tls is None else url.replace("http:", "https:")


@contextlib.contextmanager
def run(server: http.server.ThreadingHTTPServer) -> Iterator[str]:
    """Run a server in a thread, and yield its address."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
