"""A connection to PostgreSQL that ends after so many messages of one side, as if that side had died."""

from __future__ import annotations

import contextlib
import socket
import threading

from local.machine import HOST

#: A message begins with its type and its length, which counts itself.
_HEADER = 5


class Cut:
    """Forwards to `port` of this machine until `arm(n)`. The nth message after that is the last.

    From then on new connections end at once: their first messages have another shape, and are not counted.

    `is_server` says whose messages count. `with Cut(…) as cut:` listens on `cut.port`.
    """

    def __init__(self, *, port: int, is_server: bool) -> None:
        self._target, self._counts_server = port, is_server
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._left: int | None = None
        #: The types of the messages that passed since `arm`.
        self.passed = b""

    def __enter__(self) -> Cut:
        threading.Thread(target=self._accept, name="cut", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def arm(self, messages: int) -> None:
        """Begin to count, while neither side has sent a part of a message."""
        self._left, self.passed = messages, b""

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed by __exit__
            while True:
                client, _ = self._listener.accept()
                if self._left == 0:
                    client.close()
                    continue
                server = socket.create_connection((HOST, self._target))
                for source, sink, is_server in ((client, server, False), (server, client, True)):
                    threading.Thread(
                        target=self._carry, args=(source, sink, is_server), name="cut", daemon=True
                    ).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_server: bool) -> None:
        waiting = b""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._left is None or is_server is not self._counts_server:
                    sink.sendall(data)
                    continue
                waiting += data
                while len(waiting) >= _HEADER:
                    size = 1 + int.from_bytes(waiting[1:_HEADER])
                    if len(waiting) < size:
                        break
                    if not self._left:
                        raise OSError
                    self._left -= 1
                    self.passed += waiting[:1]
                    sink.sendall(waiting[:size])
                    waiting = waiting[size:]
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
