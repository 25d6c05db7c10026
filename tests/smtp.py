"""An SMTP server on 127.0.0.1 that can be slow: `delay` seconds before each of its replies.

What it takes is kept in the sandbox's mailbox, and its events are posted as those of a relay that has
webhooks (as SendGrid's own SMTP relay has).
"""

from __future__ import annotations

import email
import socketserver
import threading
import time
from email.message import Message

from config.local.machine import HOST, free_port
from config.local.sandbox import Sandbox
from config.local.sandbox.mails import Mail


class _Dialogue(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        recipients: list[str] = []
        self._reply(220, "ready")
        while line := self.rfile.readline():
            verb, _, rest = line.decode("latin-1").strip().partition(" ")
            match verb.upper():
                case "RCPT":
                    recipients.append(rest.partition(":")[2].strip("<> "))
                    self._reply(250, "OK")
                case "DATA":
                    self._reply(354, "go on")
                    message = self._message()
                    if message is None:
                        return
                    self.server.taken(recipients, message)
                    recipients = []
                    self._reply(250, "taken")
                case "QUIT":
                    self._reply(221, "bye")
                    return
                case _:
                    self._reply(250, "OK")

    def _message(self) -> Message | None:
        """Read until the final dot; None if the client hangs up before it."""
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            if not line:
                return None
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        return email.message_from_bytes(b"".join(lines))

    def _reply(self, code: int, text: str) -> None:
        time.sleep(self.server.owner.delay)
        self.wfile.write(f"{code} {text}\r\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, owner: SmtpServer) -> None:
        self.owner = owner
        super().__init__((HOST, owner.port), _Dialogue)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hangs up in the middle is what tests are about."""

    def taken(self, recipients: list[str], message: Message) -> None:
        arguments = {
            name: str(message[f"X-{name.replace('_', '-').title()}"])
            for name in ("notification_id", "order_id", "event_type")
        }
        now = time.time()
        mail = Mail(
            message_id=f"smtp-{now}-{id(message)}",
            received=now,
            recipients=tuple(recipients),
            subject=str(message["Subject"]),
            custom_args=arguments,
            request_headers={},
            raw=b'{"personalizations": []}',
            provider="sendgrid",  # its SMTP relay has its webhooks, too
        )
        mailbox = self.owner.sandbox.mailbox
        mailbox.requested(notification_id=mail.notification_id, provider="smtp")
        self.owner.sandbox.take(mail)
        self.owner.accepted += 1


class SmtpServer:
    """Listens on `port` within a `with` block, of which there may be several, one after the other."""

    def __init__(self, *, sandbox: Sandbox, delay: float = 0.0) -> None:
        self.sandbox, self.delay, self.port = sandbox, delay, free_port()
        self.accepted = 0
        self._server: _Server | None = None

    def __enter__(self) -> SmtpServer:
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="smtp", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
