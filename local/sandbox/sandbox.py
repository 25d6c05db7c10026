"""The sandbox: its port, its threads, and its methods for tests."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from local.machine import HOST
from local.sandbox.faults import Fault
from local.sandbox.mails import Mail
from local.sandbox.server import SandboxServer
from local.sandbox.state import SandboxState
from notifications.providers.registry import DEFAULT, declarations


class Sandbox(SandboxState):
    """A stand-in for the providers that have a dialect. It listens from `start` to `stop`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._server: SandboxServer | None = None
        self._listening = threading.RLock()  # held while the listening socket is opened or closed
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
        """The value of the default provider's `…_API_URL` that leads to this sandbox."""
        return next(
            value.format(sandbox=self.url)
            for name, value in declarations()[DEFAULT].sandbox.items()
            if name.endswith("_API_URL")
        )

    @property
    def mails(self) -> list[Mail]:
        """The accepted mails that are still kept, oldest first."""
        return self.mailbox.all()

    def start(self) -> None:
        """Listen and serve in new threads. Raise `OSError` if the port is taken."""
        self._listen()
        self.webhooks.start()

    def stop(self) -> None:
        """Stop every connection and thread. A second call does nothing."""
        self._stopped = True
        self.faults.heal()
        self.webhooks.stop()
        self._stop_listening()

    def fail(self, **fault: Any) -> Fault:
        """Set a fault with these fields and return it. Raise `InvalidFault`."""
        made = Fault(**fault)
        self.set_fault(made)
        return made

    def set_fault(self, fault: Fault) -> None:
        """Let requests meet a fault from now on. After `refuse`, listen again when its seconds are over."""
        super().set_fault(fault)
        if fault.kind == "refuse":
            with self._listening:
                self._refusing = fault
                self._stop_listening()
            timer = threading.Timer(fault.seconds or 0, self._end_refusal, [fault])
            timer.daemon = True
            timer.start()

    def heal(self) -> None:
        """Remove every fault. When this returns, the sandbox listens and answers."""
        super().heal()
        if self._refusing is not None:
            self._end_refusal(self._refusing)

    def reset(self) -> None:
        """Remove every fault, mail and count."""
        self.heal()
        self.mailbox.clear()

    def wait_for(self, *, accepted: int, timeout_seconds: float = 5.0) -> bool:
        """Wait until `accepted` mails were accepted in all. Return False after `timeout_seconds`."""
        return self.mailbox.wait_for(accepted=accepted, timeout_seconds=timeout_seconds)

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
            self._server = SandboxServer(state=self)
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
