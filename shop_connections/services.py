"""Create a connection, take it live, back to trial or off, and give it another secret."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import secrets
import uuid
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from runtime.database.transactions import after_commit
from runtime.names import Reserved, refuse_reserved
from shop_connections import process
from shop_connections.encryption import encrypt
from shop_connections.models import ConnectionPost, PostState, ShopConnection

log = structlog.get_logger(__name__)

State = ShopConnection.State
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
#: The form of a page gives minutes, and a person needs some of them.
JUST_NOW = dt.timedelta(minutes=2)


#: How many further addresses a shop has, and how many copies.
MOST_ADDRESSES = 50


class ShopRefusal(Exception):
    """The connection does not allow it now. The text says why."""


def is_name(source: str) -> bool:
    """Return whether a text has the form of a connection's name."""
    return _NAME.fullmatch(source) is not None


def check_source(source: str) -> None:
    """Raise `ShopRefusal` for a name that a new connection cannot have."""
    if not is_name(source):
        raise ShopRefusal(
            "Use small letters, digits, dots and hyphens, such as my-shop: it is part of an address."
        )
    try:
        refuse_reserved([source])
    except Reserved as refusal:
        raise ShopRefusal(str(refusal)) from refusal
    if source in settings.ORDER_SOURCES:
        raise ShopRefusal(
            "This is one of ORDER_SOURCES, whose own program sends its events. Choose another name, or take"
            " it out of ORDER_SOURCES first."
        )
    if source == settings.EVENT_SOURCE:
        raise ShopRefusal("This is EVENT_SOURCE, the name of this system. Choose another.")


def clean_address(address: str) -> str:
    """Return the address of a shop without the slash at its end. Raise `ShopRefusal`."""
    address = address.strip()
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        host, parts = None, urlsplit("")
    schemes = ("https", "http") if settings.CONNECTIONS_PRIVATE else ("https",)
    is_plain = address.isprintable() and " " not in address
    is_place = bool(host) and "@" not in parts.netloc and not parts.query and not parts.fragment
    if parts.scheme not in schemes or not is_plain or not is_place:
        raise ShopRefusal("Enter the shop's address with https, such as https://shop.example.com.")
    return address.rstrip("/")


def make_secret(shop: ShopConnection) -> str:
    """Give a connection a new secret, which the caller saves, and return it. Raise `KeyMissing`."""
    secret = secrets.token_urlsafe(32)
    shop.secret = encrypt(secret)
    return secret


def mark_of_secret(shop: ShopConnection) -> str:
    """Return what differs after a new secret, and does not tell the secret."""
    return hashlib.sha256(shop.secret.encode()).hexdigest()[:16]


def replace_secret(*, id: uuid.UUID, seen: str = "") -> str:
    """Give a connection another secret and return it. Raise `ShopRefusal` and `KeyMissing`.

    `seen` is the mark of the secret that the person's page began with, so that of two clicks only one makes a
    secret: a browser shows the second answer, which may be that of the first change. Empty checks nothing.
    """
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        if seen and seen != mark_of_secret(shop):
            raise ShopRefusal(
                "Another secret was made since you opened this page, maybe by a double click. If nobody has"
                " copied it, make another one."
            )
        secret = make_secret(shop)
        shop.save(update_fields=["secret"])
    return secret


def change_state(*, id: uuid.UUID, to: str, live_at: dt.datetime | None = None) -> ShopConnection:
    """Make a connection live from a time on, or return it to its trial, or turn it off. Raise `ShopRefusal`.

    The time must not have passed: e-mails of changes since then were written for the trial, and do not leave.
    """
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        if to == State.LIVE:
            if shop.state not in (State.TRIAL, State.LIVE):
                raise ShopRefusal("The first post of the shop has to come before it can go live.")
            now = timezone.now()
            live_at = live_at or now
            if live_at < now - JUST_NOW:
                raise ShopRefusal("This time has passed. Choose one that has not, or leave it empty for now.")
            # E-mails up to now were written for the trial.
            live_at = max(live_at, now)
        elif to == State.TRIAL and shop.last_post_at is None:
            to = State.WAITING
        shop.state, shop.live_at = to, live_at if to == State.LIVE else None
        shop.going_live, shop.updated_at = None, Now()
        shop.save(update_fields=["state", "live_at", "going_live", "updated_at"])
    after_commit(process.wake)
    after_commit(lambda: log.info("connection changed", source=shop.source, state=to))
    return shop


def take_address(*, id: uuid.UUID, address: str, is_copy: bool) -> int:
    """Make another address one of the shop's, or one of a copy whose posts are left out. Raise `ShopRefusal`.

    Posts from there that could not be used are processed, or are done. Return their number.
    """
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        rows = ConnectionPost.objects.unusable().filter(source=shop.source, address=address)
        if not address or shop.has_address(address) or not rows.exists():
            raise ShopRefusal("No post from this address waits for an answer.")
        addresses = shop.copies if is_copy else shop.addresses
        if len(addresses) >= MOST_ADDRESSES:
            raise ShopRefusal(f"A connection has at most {MOST_ADDRESSES} of them.")
        addresses.append(address)
        shop.updated_at = Now()
        shop.save(update_fields=["addresses", "copies", "updated_at"])
        # Those of a copy are processed, too: each then says why it was left out.
        count = rows.update(state=PostState.WAITING, reason="")
    after_commit(lambda: log.info("connection changed", source=shop.source, address=address, is_copy=is_copy))
    return count


def answer_parents(*, id: uuid.UUID, are: str) -> None:
    """Say what orders below another one are: orders of their "own", or parts of it of "vendors"."""
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        shop.parents, shop.updated_at = {**shop.parents, "are": are}, Now()
        shop.save(update_fields=["parents", "updated_at"])
    after_commit(lambda: log.info("connection changed", source=shop.source, parents=are))
