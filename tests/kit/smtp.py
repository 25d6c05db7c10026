"""An SMTP server on 127.0.0.1 that can be slow: `delay` seconds before each of its replies.

With `taking` it also waits so long between the moment when it has a message and its reply.

The sandbox's mailbox keeps the mails that it takes, and the sandbox posts their events as those of a relay
that has webhooks (as SendGrid's own SMTP relay has). It meets the sandbox's faults: a status becomes a reply
code, and a gateway's answer after an accepted mail becomes a lost connection, because SMTP has no such reply.
With the sandbox's certificate it offers STARTTLS.
"""

from __future__ import annotations

import email
import socketserver
import threading
import time
from email.message import Message
from http import HTTPStatus

from local.machine import HOST, free_port
from local.sandbox import Fault, Sandbox
from local.sandbox.faults import reset, write_garbage
from local.sandbox.mails import Mail

#: Replies to the final dot: a throttling failure, as SES' SMTP interface says it, and any other error.
_THROTTLED, _FAILED = 454, 451


class _Dialogue(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.recipients: list[str] = []
        if self._is_refusing():
            return
        self._reply(220, "ready")
        while (line := self.rfile.readline()) and not self._is_refusing():
            verb, _, rest = line.decode("latin-1").strip().partition(" ")
            match verb.upper():
                case "EHLO" if self.server.owner.sandbox.tls:
                    self._reply(250, f"{HOST}\r\n250 STARTTLS", more=True)
                case "STARTTLS":
                    self._reply(220, "go on")
                    self._start_tls()
                case "RCPT":
                    self.recipients.append(rest.partition(":")[2].strip("<> "))
                    self._reply(250, "OK")
                case "DATA":
                    self._reply(354, "go on")
                    message = self._message()
                    if message is None or not self._judge(message):
                        return
                    self.recipients = []
                case "QUIT":
                    self._reply(221, "bye")
                    return
                case _:
                    self._reply(250, "OK")

    def finish(self) -> None:
        """Close the connection that TLS put in the place of the one that was accepted."""
        super().finish()
        self.request.close()

    def _is_refusing(self) -> bool:
        return any(fault.kind == "refuse" for fault in self.server.owner.sandbox.faults.all())

    def _start_tls(self) -> None:
        context = self.server.owner.sandbox.tls
        assert context is not None
        self.request = context.wrap_socket(self.request, server_side=True)
        self.setup()

    def _message(self) -> Message | None:
        """Read until the final dot; None if the client hangs up before it."""
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            if not line:
                return None
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        return email.message_from_bytes(b"".join(lines))

    def _judge(self, message: Message) -> bool:
        """Answer a message; return whether the dialogue goes on."""
        sandbox = self.server.owner.sandbox
        mail = _mail_of(message, self.recipients)
        sandbox.mailbox.requested(notification_id=mail.notification_id, provider="smtp")
        fault = sandbox.faults.meet(mail.recipients, "smtp")
        if fault is not None and fault.kind == "status":
            self._reply(_THROTTLED if fault.status == HTTPStatus.TOO_MANY_REQUESTS else _FAILED, "not now")
            return True
        if fault is None or fault.kind == "slow" or fault.has_taken_mail:
            if fault is not None and fault.kind == "slow":
                fault.wait()
            sandbox.store_mail(mail)
            self.server.owner.accepted += 1
        if fault is None or fault.kind == "slow":
            time.sleep(self.server.owner.taking)
            self._reply(250, "taken")
            return True
        self._break(fault, mail)
        return False

    def _break(self, fault: Fault, mail: Mail) -> None:
        if fault.has_taken_mail:
            self.server.owner.sandbox.mailbox.answer_lost(notification_id=mail.notification_id)
        if fault.kind.endswith("hang"):
            fault.wait()
        elif fault.kind.endswith("garbage"):
            write_garbage(self.connection)
        elif fault.kind.endswith("reset"):
            reset(self.connection)

    def _reply(self, code: int, text: str, *, more: bool = False) -> None:
        time.sleep(self.server.owner.delay)
        self.wfile.write(f"{code}{'-' if more else ' '}{text}\r\n".encode())


def _mail_of(message: Message, recipients: list[str]) -> Mail:
    arguments = {
        name: str(message[f"X-{name.replace('_', '-').title()}"])
        for name in ("notification_id", "order_id", "event_type")
    }
    now = time.time()
    return Mail(
        message_id=f"smtp-{now}-{id(message)}",
        received_epoch=now,
        recipients=tuple(recipients),
        subject=str(message["Subject"]),
        custom_args=arguments,
        request_headers={},
        raw=b'{"personalizations": []}',
        provider="sendgrid",  # its SMTP relay has its webhooks, too
    )


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, owner: SmtpServer) -> None:
        self.owner = owner
        super().__init__((HOST, owner.port), _Dialogue)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hangs up in the middle is what tests are about."""


class SmtpServer:
    """Listens on `port` within a `with` block, of which there may be several, one after the other."""

    def __init__(self, *, sandbox: Sandbox, delay: float = 0.0, taking: float = 0.0) -> None:
        self.sandbox, self.delay, self.taking, self.port = sandbox, delay, taking, free_port()
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
