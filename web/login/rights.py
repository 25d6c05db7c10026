"""The rights of a person who comes by OpenID Connect: the claim of groups decides at each login."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.http import HttpRequest

from runtime.audit import act_on_user, record
from runtime.models import UserBinding
from web.actors import unknown_actor
from web.login.own_address import take_claim
from web.login.sessions import end_sessions

_MOST_TRIES = 1000
_NOT_IN_A_NAME = re.compile(r"[^\w.+-]+", re.ASCII)


class NoEntry(Exception):
    """A person may not log in. The text says why, to the person."""


class MappedRights(NamedTuple):
    """The groups of a person, and the words of the binding (`*`, `own`, sources)."""

    groups: list[str]
    shops: list[str]


def read_rights(claims: Mapping[str, Any]) -> MappedRights:
    """Return what `OIDC_GROUP_MAP` gives for the claims. Raise `NoEntry` if it gives nothing."""
    name = settings.OIDC_GROUPS_CLAIM
    claim = claims.get(name)
    if isinstance(claim, str):
        claim = [claim]
    if not isinstance(claim, list):
        more = ""
        if name in (claims.get("_claim_names") or {}):
            more = " It leaves the claim out for people with very many groups, and must send fewer of them."
        raise NoEntry(f"Your provider's ID token has no claim “{name}”, which lists your groups.{more}")
    entries = [
        settings.OIDC_GROUP_MAP[group]
        for group in claim
        if isinstance(group, str) and group in settings.OIDC_GROUP_MAP
    ]
    if not entries:
        raise NoEntry("None of your groups at your provider may use orderpost.")
    if len({shops for _, shops in entries}) > 1:
        raise NoEntry("Your groups at your provider are bound to different shops. Keep one of them.")
    return MappedRights(sorted({group for group, _ in entries}), list(entries[0][1]))


def admit(account: Any, claims: Mapping[str, Any], *, request: HttpRequest) -> User:
    """Give the person of an account the rights of the claims, and make the user at the first login.

    Raise `NoEntry` if there are none. Then a user who exists has no rights and no session from now on.
    """
    user = account.user if account.pk else None
    try:
        rights = read_rights(claims)
        groups = list(Group.objects.filter(name__in=rights.groups))
        if missing := sorted(set(rights.groups) - {group.name for group in groups}):
            raise NoEntry(f"OIDC_GROUP_MAP names the group “{missing[0]}”, which does not exist.")
        if user is not None and not user.is_active:
            raise NoEntry("Your user of orderpost is deactivated.")
    except NoEntry:
        if user is not None:
            with transaction.atomic():
                _set_rights(user, groups=[], shops=[], request=request)
                end_sessions(user.pk)
        raise
    with transaction.atomic():
        user = user or _make_user(account, claims)
        _set_rights(user, groups=groups, shops=rights.shops, request=request)
        take_claim(user, claims, by=unknown_actor(user.username, request))
    return user


def _set_rights(user: User, *, groups: Sequence[Group], shops: Sequence[str], request: HttpRequest) -> None:
    """Replace all rights of a user, and the shops. Nothing in a claim gives more than groups."""
    binding, _ = UserBinding.objects.get_or_create(user_id=user.pk)
    before = {
        "groups": _join(user.groups.values_list("name", flat=True)),
        "shops": ", ".join(binding.sources),
        "single permissions": _join(user.user_permissions.values_list("codename", flat=True)),
        "superuser": "yes" if user.is_superuser else "no",
        "staff": "yes" if user.is_staff else "no",
    }
    now = {
        "groups": _join(group.name for group in groups),
        "shops": ", ".join(shops),
        "single permissions": "",
        "superuser": "no",
        "staff": "yes",
    }
    if now == before:
        return
    changes = {name: [before[name], value] for name, value in now.items() if before[name] != value}
    act = act_on_user(user, "Rights by OpenID Connect.", changes=changes)
    record(act, by=unknown_actor(user.username, request))
    user.groups.set(groups)
    user.user_permissions.clear()
    UserBinding.objects.filter(pk=binding.pk).update(sources=list(shops))
    user.is_superuser, user.is_staff = False, True
    user.save(update_fields=["is_superuser", "is_staff"])


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _make_user(account: Any, claims: Mapping[str, Any]) -> User:
    """Make a user with a name that no other has, also in another case."""
    wanted = _NOT_IN_A_NAME.sub("-", str(claims.get("preferred_username") or "")).strip("-")[:100]
    wanted = wanted or f"person-{hashlib.sha256(account.uid.encode()).hexdigest()[:8]}"
    for number in range(1, _MOST_TRIES):
        name = wanted if number == 1 else f"{wanted}-{number}"
        if name.lower() == settings.PASSWORD_LOGIN.lower() or _is_taken(name):
            continue
        try:
            with transaction.atomic():
                user = User.objects.create_user(name, is_staff=True)  # without a password
                account.user = user
                account.save()
                return user
        except IntegrityError:  # another process made this name, or this account
            if row := SocialAccount.objects.filter(provider=account.provider, uid=account.uid).first():
                return User.objects.get(pk=row.user_id)
    raise NoEntry("Too many people have your name.")


def _is_taken(name: str) -> bool:
    return User.objects.filter(username__iexact=name).exists()
