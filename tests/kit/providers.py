"""The sandbox, which speaks every provider's protocol, and a small SMTP server."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from local.sandbox import Sandbox
from notifications.delivery import process as processes
from tests.kit.words import PROVIDERS, declarations


@pytest.fixture
def provider(settings, monkeypatch) -> Iterator[Sandbox]:
    """Start a sandbox, and let every provider with an API lead to it.

    Timeouts are long, because a busy machine may need a second for an answer. A test of them calls
    `set_timeouts`.
    """
    with Sandbox(api_key="sandbox") as sandbox:
        anymail: dict[str, Any] = {}
        for declared in declarations().values():
            places = {setting.name: setting.anymail for setting in declared.settings}
            for name, value in declared.sandbox.items():
                value = value.format(sandbox=sandbox.url)
                if place := places.get(name):
                    anymail[place] = value
                elif name in places:
                    setattr(settings, name, value)
                else:  # the provider's library reads it
                    monkeypatch.setenv(name, value)
        settings.ANYMAIL = settings.ANYMAIL | anymail
        set_timeouts(settings, seconds=30)
        yield sandbox
        close()


def set_timeouts(settings: Any, *, seconds: int) -> None:
    """Let a connect and a read take so long, also for the senders that exist."""
    settings.ANYMAIL = settings.ANYMAIL | {"REQUESTS_TIMEOUT": (seconds, seconds)}
    settings.EMAIL_CONNECT_TIMEOUT = settings.EMAIL_READ_TIMEOUT = seconds
    close()


def close() -> None:
    """Close the connections of earlier tests."""
    for one in PROVIDERS.values():
        one.close()


def end_senders() -> None:
    """Close the connections of the threads that sent for this test, and stop the threads."""
    process = processes.current()
    if pool := vars(process).get("pool"):
        threads = len(pool._threads)
        all_at_it = threading.Barrier(threads)

        def end(_: int) -> None:
            all_at_it.wait(20)
            close()

        list(pool.map(end, range(threads)))
        pool.shutdown()
    processes.start_anew()


class SmtpServer(socketserver.ThreadingTCPServer):
    """Answer a command with its entry of `replies`, otherwise with 250. A reply may be "hang" or "drop"."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Dialogue)
        self.replies: dict[str, str] = {}
        self.messages: list[str] = []


class _Dialogue(socketserver.StreamRequestHandler):
    server: SmtpServer

    def handle(self) -> None:
        if not self.say("CONNECT", "220 test"):
            return
        while line := self.rfile.readline().decode().strip():
            command = line.split()[0].upper()
            if command == "QUIT":
                return
            if not self.say(command, "354 go on" if command == "DATA" else "250 ok"):
                return
            if command == "DATA" and "DATA" not in self.server.replies:
                text = b""
                while not text.endswith(b"\r\n.\r\n"):
                    text += self.rfile.readline()
                if "DOT" not in self.server.replies:  # before the reply, because that ends the sender's wait
                    self.server.messages.append(text.decode())
                if not self.say("DOT", "250 taken"):
                    return

    def say(self, command: str, usual: str) -> bool:
        reply = self.server.replies.get(command, usual)
        if reply == "hang":
            time.sleep(3)
        if reply in ("hang", "drop"):
            return False
        self.wfile.write(f"{reply}\r\n".encode())
        return True


@pytest.fixture
def smtp(settings) -> Iterator[SmtpServer]:
    """Start an SMTP server, and let Django's backend lead to it."""
    with SmtpServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        settings.EMAIL_HOST, settings.EMAIL_PORT = server.server_address[:2]
        settings.EMAIL_CONNECT_TIMEOUT = settings.EMAIL_READ_TIMEOUT = settings.EMAIL_TIMEOUT = 1
        close()
        end_senders()  # those of other settings, too
        yield server
        close()
        end_senders()
        server.shutdown()
