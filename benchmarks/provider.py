"""`python -m benchmarks.provider PORT DELAY`: accept SendGrid's sends with a 202 after DELAY seconds.

It uses as little CPU as asyncio allows: a benchmark must measure the sender and not the provider. (The
sandbox of `make run` parses and stores every mail.) `GET /count` returns the number of mails.
"""

from __future__ import annotations

import asyncio
import sys


class _Peer(asyncio.Protocol):
    taken = 0
    delay = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) < length:
            return
        self.buffer = b""
        if head.startswith(b"GET"):
            text = b"%d" % _Peer.taken
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        elif self.delay:
            asyncio.get_running_loop().call_later(self.delay, self.accept)
        else:
            self.accept()

    def accept(self) -> None:
        """Count the mail and answer."""
        _Peer.taken += 1
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 202 Accepted\r\nX-Message-Id: m%d\r\nContent-Length: 0\r\n\r\n" % _Peer.taken
            )


async def _main(port: int, delay: float) -> None:
    _Peer.delay = delay
    server = await asyncio.get_running_loop().create_server(_Peer, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2])))
