"""Change a connection: its state, its secret and key, and what a person says of the shop."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from notifications.content.profiles import EXAMPLE_SHOP
from notifications.models import MailProfile
from orders.models import Order
from runtime.database.transactions import after_commit
from runtime.names import Reserved, refuse_reserved
from shop_connections import process, shop_emails
from shop_connections.calls import forget_calls
from shop_connections.encryption import Unreadable, decrypt, encrypt, new_secret
from shop_connections.models import ConnectionPost, PostState, ShopConnection
from shop_connections.platforms import platform_of

log = structlog.get_logger(__name__)

State = ShopConnection.State
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_CHANNEL = re.compile(r"[\w-]{0,255}")
#: The form of a page gives minutes, and a person needs some of them.
JUST_NOW = dt.timedelta(minutes=2)


#: How many further addresses a shop has, and how many copies; and how many statuses of plug-ins.
MOST_ADDRESSES, MOST_STATUSES = 50, 100
LONGEST_KEY = 200
#: The columns that hold for one host alone, and the keys of `installation` that a person chose.
_OF_HOST = ("api_key", "api_secret", "refresh_at", "installation", "comparison", "unfinished")
_CHOSEN = {"channel"}


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


def change_address(*, id: uuid.UUID, address: str) -> bool:
    """Give a connection a `clean_address`. Return whether the key of the shop's API was forgotten.

    It goes to no other host, and neither do the app and the keys of signatures that the former one had.
    """
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        is_other_host, had_key = _origin(shop.address) != _origin(address), bool(shop.api_key)
        shop.address, shop.updated_at = address, Now()
        if is_other_host:
            shop.api_key, shop.api_secret, shop.refresh_at = "", "", None
            # A person's choice stays.
            shop.installation = {name: shop.installation[name] for name in _CHOSEN & shop.installation.keys()}
            shop.comparison, shop.unfinished = None, None
        shop.save(update_fields=["address", "updated_at", *(_OF_HOST if is_other_host else ())])
    return is_other_host and had_key


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc.lower()


def make_secret(shop: ShopConnection) -> str:
    """Give a connection a new secret, which the caller saves, and return it. Raise `KeyMissing`."""
    secret = new_secret()
    shop.secret = encrypt(secret)
    return secret


def replace_secret(*, id: uuid.UUID, offered: str, seen: str) -> str:
    """Give a connection the secret that a page offered, encrypted, and return it. Raise `ShopRefusal`.

    `seen` is the `secret_mark` that the page began with. A browser shows the answer to the second of two
    clicks. It has the same secret, so it is not refused, and the secret that is shown is the one that counts.
    """
    try:
        secret = decrypt(offered)
    except (Unreadable, ValueError) as error:
        raise ShopRefusal("The page is too old. Open it again.") from error
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        if shop.secret == offered:
            return secret
        if seen != shop.secret_mark:
            raise ShopRefusal("Somebody made another secret since you opened this page. Open it again.")
        shop.secret = offered
        shop.save(update_fields=["secret"])
    after_commit(lambda: forget_calls(id))  # they had another signature than the former secret's
    return secret


def save_key(*, id: uuid.UUID, key: str, secret: str) -> ShopConnection:
    """Store a key of the shop's API, encrypted. Raise `ShopRefusal` and `KeyMissing`."""
    if not key or not secret or max(len(key), len(secret)) > LONGEST_KEY:
        raise ShopRefusal("Enter both the key and the secret of the shop's API.")
    shop = ShopConnection.objects.get(id=id)
    shop.api_key, shop.api_secret, shop.updated_at = encrypt(key), encrypt(secret), Now()
    shop.save(update_fields=["api_key", "api_secret", "updated_at"])
    return shop


def choose_channel(*, id: uuid.UUID, channel: str) -> None:
    """Take only orders of one sales channel of the shop, or of all for "". Raise `ShopRefusal`."""
    if not _CHANNEL.fullmatch(channel):
        raise ShopRefusal("Enter the channel's slug, such as default-channel, or nothing for all channels.")
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        shop.installation, shop.updated_at = {**shop.installation, "channel": channel}, Now()
        shop.save(update_fields=["installation", "updated_at"])
    after_commit(lambda: log.info("connection changed", source=shop.source, channel=channel))


def has_sender(source: str) -> bool:
    """Return whether a shop's e-mails have its name, and not that of the settings' example."""
    is_named = settings.SHOP_NAME != EXAMPLE_SHOP
    return is_named or MailProfile.objects.filter(source=source).exists()


def change_state(*, id: uuid.UUID, to: str, live_at: dt.datetime | None = None) -> ShopConnection:
    """Make a connection live from a time on, or return it to its trial, or turn it off. Raise `ShopRefusal`.

    The time must not have passed: e-mails of changes since then were written for the trial, and do not leave.
    """
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        if to == State.LIVE:
            if shop.state not in (State.TRIAL, State.LIVE):
                raise ShopRefusal("The first post of the shop has to come before it can go live.")
            if not has_sender(shop.source):
                raise ShopRefusal(f"Customers would read {EXAMPLE_SHOP}. Give the shop a profile first.")
            now = timezone.now()
            live_at = live_at or now
            if live_at < now - JUST_NOW:
                raise ShopRefusal("This time has passed. Choose one that has not, or leave it empty for now.")
            # E-mails up to now were written for the trial.
            live_at = max(live_at, now)
        elif to == State.TRIAL and shop.last_post_at is None:
            to = State.WAITING
        shop.state, shop.live_at = to, live_at if to == State.LIVE else None
        shop.going_live, shop.unmailed, shop.updated_at = None, None, Now()
        shop.save(update_fields=["state", "live_at", "going_live", "unmailed", "updated_at"])
    after_commit(process.wake)
    after_commit(lambda: log.info("connection changed", source=shop.source, state=to))
    return shop


def choose_emails(*, id: uuid.UUID, stay_on: Collection[str], seen: Collection[str]) -> ShopConnection:
    """Store which of the shop's e-mails stay on, by their names, and the others are off. Raise `ShopRefusal`.

    `seen` are the events that the shop's posts had: an e-mail may go only if one of ours comes for each.
    """
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        for choice in shop_emails.list_choices(shop, seen=seen):
            if choice.email.name not in stay_on and not choice.may_be_turned_off:
                lacking = " and ".join(choice.lacking or choice.email.all_events)
                raise ShopRefusal(
                    f"{choice.email.name} has to stay on in the shop: NOTIFY_ON leaves {lacking} out, so we"
                    " would send nothing in its place."
                )
        left_on = shop_emails.stay_on(shop, stay_on)
        shop.left_on, shop.unmailed, shop.updated_at = left_on, None, Now()
        shop.save(update_fields=["left_on", "unmailed", "updated_at"])
    after_commit(lambda: log.info("connection changed", source=shop.source, left_on=sorted(left_on)))
    return shop


def set_statuses(*, id: uuid.UUID, meanings: Mapping[str, str]) -> int:
    """Store what statuses of plug-ins mean, and have the posts processed that could not be used for them.

    A meaning is one of `Order.Status`, or "" to ignore the status. Return the number of posts. Raise
    `ShopRefusal`.
    """
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        read = platform_of(shop).read_status
        for word, meaning in meanings.items():
            if meaning not in ("", *Order.Status.values):
                raise ShopRefusal(f"A status means nothing, or one of {', '.join(Order.Status.values)}.")
            if not read(word):
                raise ShopRefusal(f"{word!r} is no status of the shop.")
        statuses = {read(word): meaning for word, meaning in meanings.items()}
        if len(statuses) > MOST_STATUSES:
            raise ShopRefusal(f"A connection has at most {MOST_STATUSES} of them.")
        new = {word for word in statuses if statuses[word] != shop.statuses.get(word)}
        shop.statuses, shop.updated_at = statuses, Now()
        shop.save(update_fields=["statuses", "updated_at"])
        rows = ConnectionPost.objects.unusable().filter(source=shop.source, unknown_status__in=new)
        count = rows.update(state=PostState.WAITING, reason="")
    after_commit(lambda: log.info("connection changed", source=shop.source, statuses=len(statuses)))
    return count


def ask_comparison(*, id: uuid.UUID) -> None:
    """Have a worker compare the shop's orders with those here at once. Raise `ShopRefusal`."""
    with transaction.atomic():
        shop = ShopConnection.objects.select_for_update().get(id=id)
        if shop.state == State.OFF or shop.last_post_at is None or not shop.api_key:
            raise ShopRefusal("A comparison needs a first post of the shop, and a key of its API.")
        shop.comparison = {"asked_at": timezone.now().isoformat()}
        shop.save(update_fields=["comparison"])
    after_commit(process.wake)


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
