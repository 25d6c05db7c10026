"""Commands that outbox.events.transports.redis encodes without redis-py."""

from __future__ import annotations

from outbox.events.transports.base import Message


def xadd(message: Message, length: bytes) -> bytes:
    """Encode an XADD in Redis' protocol (RESP). `length` is the stream's length.

    redis-py would need as long for one command as all other work on an event needs.
    """
    topic, key = message.topic.encode(), message.key.encode()
    headers = [(name.encode(), value.encode()) for name, value in message.headers]
    return b"".join(
        (
            b"*%d\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n" % (10 + 2 * len(headers), len(topic), topic),
            b"$6\r\nMAXLEN\r\n$1\r\n~\r\n$%d\r\n%b\r\n$1\r\n*\r\n" % (len(length), length),
            b"$3\r\nkey\r\n$%d\r\n%b\r\n" % (len(key), key),
            b"$5\r\nvalue\r\n$%d\r\n%b\r\n" % (len(message.value), message.value),
            *(b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(text), text) for name, text in headers),
        )
    )


def wait(*, replicas: int, seconds: float) -> bytes:
    """Encode a WAIT for at most `seconds`. Redis answers how many replicas have this connection's writes."""
    texts = b"WAIT", b"%d" % replicas, b"%d" % int(seconds * 1000)
    return b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(text), text) for text in texts)
