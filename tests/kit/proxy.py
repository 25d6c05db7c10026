"""A TCP proxy on 127.0.0.1 that can stop forwarding, like a network that drops packets.

Both sides then stay connected, the kernel acknowledges their data, and no answer comes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading

from local.machine import HOST


class Proxy:
    """Forwards to `port` of this machine. `with Proxy(port=5432) as proxy:` listens on `proxy.port`.

    `listen` is the port to listen on, by default a free one.
    """

    def __init__(self, *, port: int, listen: int = 0) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, listen), backlog=200)
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0  # connections of clients
        self.requests = 0  # pieces of data from clients
        self._forwards = threading.Event()
        self._forwards.set()
        self._ended = threading.Event()

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._forwards.set()
        self._listener.close()

    def drop(self) -> None:
        """Stop forwarding. New connections are accepted and get no answer."""
        self._forwards.clear()

    def forward(self) -> None:
        """Forward again, beginning with the waiting data."""
        self._forwards.set()

    def lead_to(self, port: int) -> None:
        """Connect new clients to another port. Connected clients keep their connections."""
        self._target = port

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                if not select.select([self._listener], [], [], 0.1)[0]:
                    continue
                client, _ = self._listener.accept()
            except (OSError, ValueError):  # closed by __exit__
                return
            self.accepted += 1
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        self._forwards.wait()
        with client, contextlib.suppress(OSError), socket.create_connection((HOST, self._target)) as server:
            other = {client: server, server: client}
            while not self._ended.is_set():
                self._forwards.wait()
                for readable in select.select([client, server], [], [], 0.1)[0]:
                    self._forwards.wait()
                    data = readable.recv(65536)
                    if not data:
                        return
                    self.requests += readable is client
                    other[readable].sendall(data)
