"""How a connection breaks in the middle of an answer, with or without TLS.

Used by the sandbox's HTTP server and by the tests' SMTP server.
"""

from __future__ import annotations

import os
import socket
import struct

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with no time to linger: close() sends RST
#: Neither a TLS record, nor the status line of HTTP, nor a reply of SMTP.
_GARBAGE = b"\x00\xff garbage \xfe\x01" * 8


def reset(connection: socket.socket) -> None:
    """Close the connection with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    # Past the socket object, whose files would keep it open, and past shutdown(), which would say FIN.
    os.close(connection.detach())


def write_garbage(connection: socket.socket) -> None:
    """Write garbage below TLS, so that a client meets a bad record in place of the answer."""
    os.write(connection.fileno(), _GARBAGE)
