"""An SMTP server on 127.0.0.1 whose replies a test decides.

Its `replies` answer commands, CONNECT for the greeting, DOT for a message, and HELLO for the start of TLS.
A reply may be "hang", "drop" or "reset", and 421 ends the connection. It waits `delay` seconds before each
reply, and `taking` seconds more between the moment when it has a message and its reply.

A connection that has taken `kept_for` messages answers by `last_replies`, too. IDLE there is what the server
says unasked, right after its reply to the message.

With a sandbox, its mailbox keeps the mails, and the sandbox posts their events as those of a relay that has
webhooks (as SendGrid's own SMTP relay has). It meets the sandbox's faults: a status becomes a reply code, and
a gateway's answer after an accepted mail becomes a lost connection, because SMTP has no such reply. With the
sandbox's certificate it offers STARTTLS.
"""

from __future__ import annotations

import contextlib
import email
import socketserver
import threading
import time
from email.message import Message
from email.utils import parseaddr
from http import HTTPStatus

from local.machine import HOST, free_port
from local.sandbox import Fault, Sandbox
from local.sandbox.faults import reset, write_garbage
from local.sandbox.mails import Mail

#: Replies to the final dot: a throttling failure, as SES' SMTP interface says it, and any other error.
_THROTTLED, _FAILED = 454, 451
#: Longer than any sender in a test waits.
HANG_SECONDS = 10.0


class _Dialogue(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.recipients: list[str] = []
        self.taken = 0
        self.server.owner.connections += 1
        sandbox = self.server.owner.sandbox
        if self._is_refusing():
            return
        with contextlib.suppress(_Ended):
            self._reply("CONNECT", "220 ready")
            while (line := self.rfile.readline()) and not self._is_refusing():
                verb, _, rest = line.decode("latin-1").strip().partition(" ")
                match verb := verb.upper():
                    case "EHLO" if sandbox is not None and sandbox.tls:
                        self._reply(verb, f"250-{HOST}\r\n250 STARTTLS")
                    case "STARTTLS":
                        self._reply(verb, "220 go on")
                        self._start_tls()
                    case "RCPT":
                        self.recipients.append(rest.partition(":")[2].strip("<> "))
                        self._reply(verb, "250 OK")
                    case "DATA":
                        if self._reply(verb, "354 go on").strip().startswith("354"):
                            self._take(self._message())
                            self.recipients = []
                            if "IDLE" in self._replies():
                                self._reply("IDLE", "")
                                raise _Ended
                    case "QUIT":
                        self._reply(verb, "221 bye")
                        return
                    case _:
                        self._reply(verb, "250 OK")

    def finish(self) -> None:
        """Close the connection that TLS put in the place of the one that was accepted."""
        super().finish()
        self.request.close()

    def _is_refusing(self) -> bool:
        sandbox = self.server.owner.sandbox
        return sandbox is not None and any(fault.kind == "refuse" for fault in sandbox.faults.all())

    def _start_tls(self) -> None:
        if "HELLO" in self.server.owner.replies:
            self.rfile.read(5)  # the beginning of the client's hello
            self._reply("HELLO", "")
            raise _Ended
        sandbox = self.server.owner.sandbox
        assert sandbox is not None and sandbox.tls is not None
        self.request = sandbox.tls.wrap_socket(self.request, server_side=True)
        self.setup()

    def _message(self) -> bytes:
        """Read until the final dot."""
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            if not line:
                raise _Ended  # the client hung up before it
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        return b"".join(lines)

    def _take(self, text: bytes) -> None:
        owner = self.server.owner
        if owner.sandbox is not None:
            self._judge(email.message_from_bytes(text), owner.sandbox)
            return
        # Before the reply, because that ends the sender's wait.
        if self._replies().get("DOT", "250").strip().startswith("250"):
            owner.messages.append(text.decode())
        self.taken += self._reply("DOT", "250 taken").strip().startswith("250")

    def _replies(self) -> dict[str, str]:
        owner = self.server.owner
        is_last = owner.kept_for is not None and self.taken >= owner.kept_for
        return owner.replies | owner.last_replies if is_last else owner.replies

    def _judge(self, message: Message, sandbox: Sandbox) -> None:
        """Answer a message as the sandbox's faults want it."""
        mail = _mail_of(message, self.recipients)
        sandbox.mailbox.requested(notification_id=mail.notification_id, provider="smtp")
        fault = sandbox.faults.meet(mail.recipients, "smtp", parseaddr(message["From"])[1])
        if fault is not None and fault.kind == "status":
            code = _THROTTLED if fault.status == HTTPStatus.TOO_MANY_REQUESTS else _FAILED
            self._reply("DOT", f"{code} not now")
            return
        if fault is None or fault.kind == "slow" or fault.has_taken_mail:
            if fault is not None and fault.kind == "slow":
                fault.wait()
            sandbox.store_mail(mail)
            self.server.owner.accepted += 1
        if fault is None or fault.kind == "slow":
            time.sleep(self.server.owner.taking)
            self._reply("DOT", "250 taken")
            return
        if fault.has_taken_mail:
            sandbox.mailbox.answer_lost(notification_id=mail.notification_id)
        self._break(fault)

    def _break(self, fault: Fault) -> None:
        if fault.kind.endswith("hang"):
            fault.wait()
        elif fault.kind.endswith("garbage"):
            write_garbage(self.connection)
        elif fault.kind.endswith("reset"):
            reset(self.connection)
        raise _Ended

    def _reply(self, command: str, usual: str) -> str:
        """Write the test's reply to a command, or the usual one, and return it."""
        time.sleep(self.server.owner.delay)
        reply = self._replies().get(command, usual)
        if reply == "hang":
            self.server.owner.hanging += 1
            self.server.owner.closing.wait(HANG_SECONDS)
            self.server.owner.hanging -= 1
        if reply == "reset":
            reset(self.connection)
        if reply in ("hang", "drop", "reset"):
            raise _Ended
        self.wfile.write(f"{reply}\r\n".encode())
        if reply.startswith("421"):
            raise _Ended
        return reply


class _Ended(Exception):
    """The dialogue is over."""


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
    """Listens on `port` within a `with` block, of which there may be several, one after the other.

    `accepted` counts the messages that a sandbox got, and `messages` has the texts of those without one.
    `connections` counts all connections, and `hanging` the replies that hang now.
    """

    def __init__(self, *, sandbox: Sandbox | None = None, delay: float = 0.0, taking: float = 0.0) -> None:
        self.sandbox, self.delay, self.taking, self.port = sandbox, delay, taking, free_port()
        self.replies: dict[str, str] = {}
        self.kept_for: int | None = None
        self.last_replies: dict[str, str] = {}
        self.messages: list[str] = []
        self.accepted = self.connections = self.hanging = 0
        self.closing = threading.Event()
        self._server: _Server | None = None

    def __enter__(self) -> SmtpServer:
        self.closing.clear()
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="smtp", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
