"""Faults: the ways in which the sandbox can fail, the choice of a request's fault, and broken connections."""

from __future__ import annotations

import os
import random
import re
import socket
import struct
import threading
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from notifications.providers.registry import declarations

Kind = Literal[
    "status",
    "hang",
    "reset",
    "garbage",
    "accept_then_status",
    "accept_then_hang",
    "accept_then_reset",
    "accept_then_garbage",
    "slow",
    "refuse",
]

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with no time to linger: close() sends RST
#: Bytes that are neither a TLS record, nor a status line of HTTP, nor a reply of SMTP.
_GARBAGE = b"\x00\xff garbage \xfe\x01" * 8
#: The default of `Fault.seconds` by kind; 0 for other kinds.
DEFAULT_SECONDS = {"hang": 60.0, "accept_then_hang": 60.0, "slow": 1.0, "refuse": 10.0}


class InvalidFault(ValueError):
    """A fault has a wrong value. The text says which."""


@dataclass
class Fault:
    """One way to fail.

    kind      status               answer `status` with `message` and `headers`; do not take the mail
              hang                 read the request, wait for `seconds`, close without an answer
              reset                read the request, reset the connection
              garbage              read the request, write bytes that are neither TLS nor HTTP, close
              accept_then_status   take the mail, then answer `status`, as a gateway does that loses an answer
              accept_then_hang     take the mail, then hang
              accept_then_reset    take the mail, then reset
              accept_then_garbage  take the mail, then write garbage
              slow                 answer as usual after `seconds`
              refuse               stop listening for `seconds`, so that clients cannot connect
    to        a regular expression that is searched for in each recipient; empty fits all
    sender    a regular expression that is searched for in the sender's address; empty fits all
    provider  the name of a provider; empty fits all
    times     the number of requests after which the fault is removed; None keeps it
    """

    kind: Kind = "status"
    to: str = ""
    probability: float = 1.0
    times: int | None = None
    status: int = 503
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None
    provider: str = ""
    sender: str = ""
    met: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidFault(f"kind must be one of {', '.join(get_args(Kind))}")
        if not _is_number(self.probability) or not 0 <= self.probability <= 1:
            raise InvalidFault("probability must be a number from 0 to 1")
        if self.times is not None and (type(self.times) is not int or self.times < 1):
            raise InvalidFault("times must be a whole number from 1")
        if type(self.status) is not int or not 200 <= self.status <= 599:
            raise InvalidFault("status must be a whole number from 200 to 599")
        if self.seconds is None:
            self.seconds = DEFAULT_SECONDS.get(self.kind, 0.0)
        if not _is_number(self.seconds) or not 0 <= self.seconds <= 3600:
            raise InvalidFault("seconds must be a number from 0 to 3600")
        if not all(isinstance(text, str) for text in (self.message, self.to, self.sender)):
            raise InvalidFault("message, to and sender must be text")
        if not isinstance(self.headers, dict) or any(
            not isinstance(part, str) or "\r" in part or "\n" in part
            for item in self.headers.items()
            for part in item
        ):
            raise InvalidFault("headers must be an object of one-line strings")
        played = [name for name, declared in declarations().items() if declared.dialect]
        if self.provider and self.provider not in played:
            raise InvalidFault(f"provider must be one of {', '.join(played)}")
        narrowed = self.to or self.sender or self.provider or self.times is not None or self.probability != 1
        if self.kind == "refuse" and narrowed:
            raise InvalidFault(
                "refuse is for every connection, so it takes no to, sender, provider, times or probability"
            )
        try:
            self._pattern = re.compile(self.to, re.IGNORECASE)
            self._sender = re.compile(self.sender, re.IGNORECASE)
        except re.error as error:
            raise InvalidFault(f"to or sender is not a regular expression: {error}") from error
        self.healed = threading.Event()  # Faults.add replaces it by one event for all faults

    @classmethod
    def from_json(cls, value: object) -> Fault:
        """Read a fault from the control API. Raise `InvalidFault`."""
        names = {each.name for each in fields(cls)} - {"met"}
        if not isinstance(value, dict) or not set(value) <= names:
            raise InvalidFault(f"a fault is an object of {', '.join(sorted(names))}")
        return cls(**value)

    def as_json(self) -> dict[str, Any]:
        """Return the fault as JSON values. `met` is the number of requests that it has failed."""
        return asdict(self)

    @property
    def has_taken_mail(self) -> bool:
        """Return whether the sandbox takes the mail before it fails."""
        return self.kind.startswith("accept_then_")

    def wait(self) -> None:
        """Wait for `seconds`, or until the fault is healed."""
        self.healed.wait(self.seconds)

    def is_for(self, recipients: tuple[str, ...], provider: str, sender: str) -> bool:
        """Return whether the fault is for a request from this sender to these recipients."""
        if self.provider not in ("", provider) or not self._sender.search(sender):
            return False
        return not self.to or any(self._pattern.search(recipient) for recipient in recipients)


class Faults:
    """The faults that are set, oldest first. A request meets the first that fits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._healed = threading.Event()

    def add(self, fault: Fault) -> None:
        with self._lock:
            fault.healed = self._healed
            self._faults.append(fault)

    def remove(self, fault: Fault) -> None:
        """Remove a fault. Do nothing if it was removed before."""
        with self._lock:
            self._faults = [each for each in self._faults if each is not fault]

    def meet(self, recipients: tuple[str, ...], provider: str, sender: str = "") -> Fault | None:
        """Return the fault that a request meets, or None. Use up one of the fault's `times`."""
        if not self._faults:  # the usual case; reading a list is atomic
            return None
        with self._lock:
            for fault in self._faults:
                if fault.kind == "refuse" or not fault.is_for(recipients, provider, sender):
                    continue
                if fault.probability < 1 and random.random() >= fault.probability:  # noqa: S311 - dice
                    continue
                fault.met += 1
                if fault.times is not None and fault.met >= fault.times:
                    self._faults = [each for each in self._faults if each is not fault]
                return fault
        return None

    def all(self) -> list[Fault]:
        with self._lock:
            return list(self._faults)

    def heal(self) -> None:
        """Remove every fault. Requests that hang or are slow continue at once."""
        with self._lock:
            self._faults = []
            healed, self._healed = self._healed, threading.Event()
        healed.set()


def reset(connection: socket.socket) -> None:
    """Close a connection, with or without TLS, by RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    # Close the descriptor: the socket object's files would keep it open, and shutdown() would send FIN.
    os.close(connection.detach())


def write_garbage(connection: socket.socket) -> None:
    """Write garbage below TLS. A client reads a bad record instead of the answer."""
    os.write(connection.fileno(), _GARBAGE)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
