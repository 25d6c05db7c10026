"""The sandbox itself: its port, its threads, and what a test may ask of it.

Used in a test's process as a context manager, and by `python -m local.sandbox`.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from local.machine import HOST
from local.sandbox.faults import Fault
from local.sandbox.mails import Mail
from local.sandbox.server import Server
from local.sandbox.state import State
from notifications.providers.registry import DEFAULT, declarations


class Sandbox(State):
    """A stand-in for the providers that have a dialect; it listens from `start` to `stop`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._server: Server | None = None
        self._listening = threading.RLock()  # held by whoever opens or closes the listening socket
        self._refusing: Fault | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.port}"

    @property
    def api_url(self) -> str:
        """The default provider's `…_API_URL` that leads here."""
        return next(
            value.format(sandbox=self.url)
            for name, value in declarations()[DEFAULT].sandbox.items()
            if name.endswith("_API_URL")
        )

    @property
    def mails(self) -> list[Mail]:
        """The mails that were accepted and are still kept, oldest first."""
        return self.mailbox.all()

    def start(self) -> None:
        """Listen and serve, in threads of its own; raise OSError if the port is taken."""
        self._listen()
        self.webhooks.start()

    def stop(self) -> None:
        """End every connection and thread; it may be called twice."""
        self._stopped = True
        self.faults.heal()
        self.webhooks.stop()
        self._stop_listening()

    def fail(self, **fault: Any) -> Fault:
        """Set a fault with these fields and give it back; raise InvalidFault."""
        made = Fault(**fault)
        self.set_fault(made)
        return made

    def set_fault(self, fault: Fault) -> None:
        """Let requests meet a fault from now on; with `refuse`, listen again after its seconds."""
        super().set_fault(fault)
        if fault.kind == "refuse":
            with self._listening:
                self._refusing = fault
                self._stop_listening()
            timer = threading.Timer(fault.seconds or 0, self._end_refusal, [fault])
            timer.daemon = True
            timer.start()

    def heal(self) -> None:
        """End every fault; when it returns, the sandbox listens and answers."""
        super().heal()
        if self._refusing is not None:
            self._end_refusal(self._refusing)

    def reset(self) -> None:
        """Heal everything and forget the mails and counts."""
        self.heal()
        self.mailbox.clear()

    def wait_for(self, *, accepted: int, timeout: float = 5.0) -> bool:
        """Wait until so many mails were accepted in all; False after `timeout` seconds."""
        return self.mailbox.wait_for(accepted=accepted, timeout=timeout)

    def _end_refusal(self, fault: Fault) -> None:
        with self._listening:
            self.faults.remove(fault)
            if self._refusing is fault and not self._stopped:
                self._refusing = None
                self._listen()

    def _listen(self) -> None:
        with self._listening:
            if self._server is not None:
                return
            self._server = Server(state=self)
            self.port = self._server.server_port
            threading.Thread(
                target=self._server.serve_forever, args=(0.05,), name="sandbox", daemon=True
            ).start()

    def _stop_listening(self) -> None:
        with self._listening:
            if self._server is not None:
                self._server.shutdown()
                self._server.close_all()
                self._server = None
