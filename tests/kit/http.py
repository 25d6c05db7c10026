"""A server of HTTP on 127.0.0.1 whose answers a test decides."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: (path, headers, body) -> status, JSON body, headers. A `ConnectionError` hangs up.
Answer = Callable[[str, Any, Any], tuple[int, Any, dict[str, str]]]


def read_json(raw: bytes) -> Any:
    """Return the value of a JSON body, or None without a body."""
    return json.loads(raw) if raw else None


@contextlib.contextmanager
def serve(answer: Answer, *, read: Callable[[bytes], Any] = read_json) -> Iterator[str]:
    """Serve `answer` on a free port, and yield the address. `read` makes its third argument of a body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                raw = gzip.decompress(raw)
            try:
                status, body, headers = answer(self.path, self.headers, read(raw))
            except ConnectionError:
                self.close_connection = True
                return
            text = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *args: Any) -> None:
            pass

    with run(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


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
