"""Shops that do harm to who asks them."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest


@dataclass
class Talk:
    """Serves raw bytes, one piece after the other, and keeps what it got."""

    servers: list[socket.socket] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)

    def __call__(self, *pieces: bytes, seconds: float = 0.0, repeat: bool = False) -> str:
        """Return the address of a new server. It waits `seconds` between pieces, and may repeat the last."""
        server = socket.create_server(("127.0.0.1", 0))
        self.servers.append(server)

        def run() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    self.received.append(connection.recv(65536))
                    for piece in itertools.chain(pieces, itertools.cycle(pieces[-1:]) if repeat else ()):
                        connection.sendall(piece)
                        time.sleep(seconds)

        threading.Thread(target=run, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk()
    yield talk
    for server in talk.servers:
        server.close()
