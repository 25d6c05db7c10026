"""The shop's own e-mails: which of ours takes the place of each, which stay on, and what nobody sends."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from django.conf import settings

from shop_connections.changes import Change
from shop_connections.models import ShopConnection
from shop_connections.platforms import platform_of
from shop_connections.setup import PlatformEmail


class EmailChoice(NamedTuple):
    """One of the shop's e-mails that ours could replace."""

    email: PlatformEmail
    ours: tuple[str, ...]  # the events of ours that NOTIFY_ON names
    lacking: tuple[str, ...]  # those that would have to be there, and are not
    is_left_on: bool

    @property
    def may_be_turned_off(self) -> bool:
        return bool(self.ours) and not self.lacking


def list_choices(shop: ShopConnection, *, seen: Collection[str] = ()) -> list[EmailChoice]:
    """Return the shop's e-mails that ours could replace. `seen` are the events that its posts had."""
    choices = []
    for email in platform_of(shop).setup.emails:
        if not email.all_events:
            continue
        needed = [*email.events, *(event for event in email.events_if_seen if event in seen)]
        ours = tuple(event for event in email.all_events if event in settings.NOTIFY_ON)
        lacking = tuple(event for event in needed if event not in settings.NOTIFY_ON)
        choices.append(EmailChoice(email, ours, lacking, is_left_on(shop, email)))
    return choices


def is_left_on(shop: ShopConnection, email: PlatformEmail) -> bool:
    """Return whether the shop goes on sending an e-mail.

    Before a person chose, the page asked for those to be turned off that have one of ours.
    """
    if shop.left_on is None:
        return not any(event in settings.NOTIFY_ON for event in email.all_events)
    return any(event in shop.left_on for event in email.all_events)


def stay_on(shop: ShopConnection, names: Collection[str]) -> dict[str, str]:
    """Return what to store of the choice that the e-mails with these names stay on."""
    emails = platform_of(shop).setup.emails
    return {event: email.name for email in emails if email.name in names for event in email.all_events}


def find_unmailed(shop: ShopConnection, changes: Iterable[Change]) -> str:
    """Return the event of a change about which nobody sends an e-mail, or ""."""
    if shop.state != shop.State.LIVE or shop.live_at is None:
        return ""
    emails = {event: email for email in platform_of(shop).setup.emails for event in email.all_events}
    for change in changes:
        email = emails.get(change.event)
        is_of_shop = not change.notify or change.at < shop.live_at or change.event in settings.NOTIFY_ON
        if email is not None and not is_of_shop and not is_left_on(shop, email):
            return change.event
    return ""
