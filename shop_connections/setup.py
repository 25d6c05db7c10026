"""A platform's part of a connection's page: steps in the shop, its own e-mails, and what ours lack."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from shop_connections.models import ShopConnection


class Calls(NamedTuple):
    """The calls of a connection's address within a day that nobody signed, or somebody else."""

    refused: int = 0  # posts with another signature
    refused_at: dt.datetime | None = None  # the last of them
    reached_at: dt.datetime | None = None  # the last call of any kind


class SetupStep(NamedTuple):
    """Something to do in the shop, with a template that says how. It gets the context of the page."""

    id: str  # in the page
    title: str
    template: str
    is_done: Callable[[ShopConnection, Calls], bool]
    acts: tuple[str, ...] = ()  # the values of its buttons (admin/buttons.py)


class PlatformEmail(NamedTuple):
    """An e-mail that the platform itself sends to customers."""

    name: str  # as the shop calls it
    #: The events of ours that take its place. Without one it stays on in the shop.
    events: tuple[str, ...] = ()
    #: Further events, which only some shops have.
    events_if_seen: tuple[str, ...] = ()

    @property
    def all_events(self) -> tuple[str, ...]:
        return self.events + self.events_if_seen


class Lack(NamedTuple):
    """A part of the shop's e-mail that ours cannot have."""

    what: str
    email: str  # its name
    advice: str


class Setup(NamedTuple):
    """The words of a platform's folder for the page. The steps come before and after the first order."""

    connect: tuple[SetupStep, ...]
    later: tuple[SetupStep, ...]
    emails: tuple[PlatformEmail, ...]
    emails_at: str  # where a person turns them off in the shop
    #: The next step in the shop or on the page, as in "Now paste it …": with another secret, and
    #: after the key of the shop's API was forgotten.
    reconnect: str
    authorize: str
    #: show_secret(address, secret): what to tell a person who may not open the page, and what to copy.
    #: `address` is the connection's.
    show_secret: Callable[[str, str], tuple[str, str]]
    #: What ours cannot have of the e-mails about the order in a body. It never raises.
    find_lacks: Callable[[bytes], Iterable[Lack]]
    #: values(connection, address): what the templates of the steps get as `own`, for a person who may change
    #: the connection. `address` is the connection's.
    values: Callable[[ShopConnection, str], Mapping[str, Any]] = lambda *_: {}

    @property
    def acts(self) -> frozenset[str]:
        return frozenset(act for step in (*self.connect, *self.later) for act in step.acts)
