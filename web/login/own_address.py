"""The own address of a user, to which test e-mails go. It counts after a link in an e-mail to it was opened.

`User.email` is the address, and a row of allauth's `EmailAddress` says that it is confirmed. Whoever changes
`User.email` in another way has to confirm it, because the row names the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allauth.account.models import EmailAddress
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction

from runtime.addresses import NotAnAddress, read_address
from runtime.audit import Actor, act_on_user, record
from runtime.personal_data import address_hash

LINK_HOURS = 24
_SALT = "own address"


class NotConfirmed(Exception):
    """A user has no address to which test e-mails may go. The text says what to do."""


class BadLink(Exception):
    """A link confirms nothing. The text says why."""


def own_address(user: Any) -> str:
    """Return the confirmed address of a user. Raise `NotConfirmed`."""
    try:
        address = read_address(user.email)
    except NotAnAddress as error:
        said = (
            f"Correct your e-mail address. {error}" if user.email else "Your account has no e-mail address."
        )
        raise NotConfirmed(f"{said} Open “My account”.") from None
    # allauth keeps addresses in lower case.
    if not EmailAddress.objects.filter(user_id=user.pk, email=user.email.lower(), verified=True).exists():
        raise NotConfirmed(f"Nobody has confirmed yet that {address} is yours. Open “My account”.")
    return address


def sign_link(user: Any, address: str) -> str:
    """Return the text for a link that makes an address the user's own, until the address changes."""
    return signing.dumps([user.pk, address, user.email], salt=_SALT)


def open_link(user: Any, text: str, *, by: Actor) -> str:
    """Make the address of a link the user's own, and return it. Raise `BadLink`."""
    try:
        pk, address, before = signing.loads(text, salt=_SALT, max_age=LINK_HOURS * 3600)
    except signing.SignatureExpired:
        raise BadLink(f"This link is older than {LINK_HOURS} hours. Send another one.") from None
    except signing.BadSignature:
        raise BadLink("This link is not complete. Copy all of it, or send another one.") from None
    if pk != user.pk:
        raise BadLink("This link is of another user. Log in as that user, and open it again.")
    if user.email not in (before, address):
        raise BadLink("Your address has changed since this link was sent. Send another one.")
    confirm(user, address, act="Confirmed their own address.", by=by)
    return str(address)


def take_claim(user: User, claims: Mapping[str, Any], *, by: Actor) -> None:
    """Make the address of an ID token the user's own if the provider says that it is theirs."""
    if claims.get("email_verified") is not True:
        return
    try:
        address = read_address(str(claims.get("email") or ""))
    except NotAnAddress:
        return
    confirm(user, address, act="Address confirmed by OpenID Connect.", by=by)


def confirm(user: Any, address: str, *, act: str, by: Actor) -> None:
    """Make a confirmed address the user's own, the only one, and record it."""
    with transaction.atomic():
        rows = EmailAddress.objects.filter(user_id=user.pk)
        stored = list(rows.values_list("email", "verified"))
        if user.email == address and stored == [(address.lower(), True)]:
            return
        rows.delete()
        EmailAddress.objects.create(user_id=user.pk, email=address.lower(), verified=True, primary=True)
        user.email = address
        User.objects.filter(pk=user.pk).update(email=address)
        record(act_on_user(user, f"{act} address=hash:{address_hash(address)}"), by=by)
