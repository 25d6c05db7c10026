"""Faults: how the sandbox is told to misbehave, which fault a request meets, and how a connection breaks.

Called by the sandbox's server and control API, and by the tests' SMTP server.
"""

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
#: Neither a TLS record, nor the status line of HTTP, nor a reply of SMTP.
_GARBAGE = b"\x00\xff garbage \xfe\x01" * 8
#: What each kind does when no seconds are given.
DEFAULT_SECONDS = {"hang": 60.0, "accept_then_hang": 60.0, "slow": 1.0, "refuse": 10.0}


class InvalidFault(ValueError):
    """A fault that cannot be set, with the reason."""


@dataclass
class Fault:
    """One way to fail.

    kind      status               answer `status` with `message` and `headers`; the mail is not taken
              hang                 read the request, say nothing for `seconds`, close
              reset                read the request, reset the connection
              garbage              read the request, write bytes that are neither TLS nor HTTP, close
              accept_then_status   take the mail, then answer `status`, as a gateway that lost the answer
              accept_then_hang     take the mail, then hang
              accept_then_reset    take the mail, then reset
              accept_then_garbage  take the mail, then write garbage
              slow                 answer as usual after `seconds`
              refuse               stop listening for `seconds`, so that connecting itself is refused
    to        a regular expression searched for in every recipient; empty meets all
    provider  the name of the provider that it is for; empty meets all
    times     how many requests it meets before it is gone; None is no end
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
        if not isinstance(self.message, str) or not isinstance(self.to, str):
            raise InvalidFault("message and to must be text")
        if not isinstance(self.headers, dict) or any(
            not isinstance(part, str) or "\r" in part or "\n" in part
            for item in self.headers.items()
            for part in item
        ):
            raise InvalidFault("headers must be an object of one-line strings")
        played = [name for name, declared in declarations().items() if declared.dialect]
        if self.provider and self.provider not in played:
            raise InvalidFault(f"provider must be one of {', '.join(played)}")
        narrowed = self.to or self.provider or self.times is not None or self.probability != 1
        if self.kind == "refuse" and narrowed:
            raise InvalidFault(
                "refuse meets every connection: it takes no to, provider, times or probability"
            )
        try:
            self._pattern = re.compile(self.to, re.IGNORECASE)
        except re.error as error:
            raise InvalidFault(f"to is no regular expression: {error}") from error
        self.healed = threading.Event()  # Faults.add shares one among all that are healed together

    @classmethod
    def from_json(cls, value: object) -> Fault:
        """Read a fault from the control API; raise InvalidFault."""
        known = {each.name for each in fields(cls)} - {"met"}
        if not isinstance(value, dict) or not set(value) <= known:
            raise InvalidFault(f"a fault is an object of {', '.join(sorted(known))}")
        return cls(**value)

    def as_json(self) -> dict[str, Any]:
        """Return the fault, and how many requests it has met, as JSON values."""
        return asdict(self)

    @property
    def takes_the_mail(self) -> bool:
        """Return whether the mail is taken and its answer is lost."""
        return self.kind.startswith("accept_then_")

    def wait(self) -> None:
        """Wait for the fault's seconds, or until it is healed."""
        self.healed.wait(self.seconds)

    def fits(self, recipients: tuple[str, ...], provider: str) -> bool:
        """Return whether a request to these recipients is one that the fault is for."""
        if self.provider not in ("", provider):
            return False
        return not self.to or any(self._pattern.search(recipient) for recipient in recipients)


class Faults:
    """The faults that are set, in the order in which they were set; the first that fits is met."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._healed = threading.Event()

    def add(self, fault: Fault) -> None:
        """Let requests meet the fault from now on."""
        with self._lock:
            fault.healed = self._healed
            self._faults.append(fault)

    def remove(self, fault: Fault) -> None:
        """End one fault; one that has ended already is no error."""
        with self._lock:
            self._faults = [each for each in self._faults if each is not fault]

    def meet(self, recipients: tuple[str, ...], provider: str) -> Fault | None:
        """Choose the fault that a request meets, and use up one of its times."""
        if not self._faults:  # the usual case, and a list read is atomic
            return None
        with self._lock:
            for fault in self._faults:
                if fault.kind == "refuse" or not fault.fits(recipients, provider):
                    continue
                if fault.probability < 1 and random.random() >= fault.probability:  # noqa: S311 - dice
                    continue
                fault.met += 1
                if fault.times is not None and fault.met >= fault.times:
                    self._faults = [each for each in self._faults if each is not fault]
                return fault
        return None

    def all(self) -> list[Fault]:
        """Return the faults that are set."""
        with self._lock:
            return list(self._faults)

    def heal(self) -> None:
        """End every fault; requests that hang or are slow go on at once."""
        with self._lock:
            self._faults = []
            healed, self._healed = self._healed, threading.Event()
        healed.set()


def reset(connection: socket.socket) -> None:
    """Close the connection, with or without TLS, with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    # Past the socket object, whose files would keep it open, and past shutdown(), which would say FIN.
    os.close(connection.detach())


def write_garbage(connection: socket.socket) -> None:
    """Write garbage below TLS, so that a client meets a bad record in place of the answer."""
    os.write(connection.fileno(), _GARBAGE)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
