"""Limit what wrong passwords may cost: the CPU of their hashes, and tries from one address.

A hash takes a third of a second of CPU, and anybody may ask for one. A dozen at a time would stop the shop's
orders.
"""

from __future__ import annotations

import threading
from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.helpers import get_failure_limit
from axes.models import AccessAttempt
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import transaction
from django.db.models import Sum
from django.http import HttpRequest

from runtime.audit import command_actor, record
from runtime.models import AuditRow
from web.actors import unknown_actor, user_actor
from web.admin.page_limits import Refused
from web.proxies import client_address, counts_as

#: Wrong passwords from an address, for any names, before it must pause.
LIMIT_OF_ADDRESS = 20


def counted_address(request: HttpRequest) -> str | None:
    """Return whom the client's address counts as, which the rows of wrong passwords have, or None."""
    return counts_as(client_address(request)) or None


class OneAtATime(PBKDF2PasswordHasher):
    """Django's hash of passwords, of which a process computes one at a time. The others are refused at once.

    Each login, change of a password and new user passes the hasher, and only the hasher.
    """

    _turn = threading.Lock()

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        if not self._turn.acquire(blocking=False):
            raise Refused("Somebody else's password is being checked at this moment. Try again in a second.")
        try:
            return super().encode(password, salt, iterations)
        finally:
            self._turn.release()


class LoginFailures(AxesDatabaseHandler):  # type: ignore[misc]  # django-axes has no types
    """Counts the failures of a name with an address, as django-axes does, and those of the address alone."""

    def reset_attempts(
        self, *, ip_address: str | None = None, username: str | None = None, ip_or_username: bool = False
    ) -> int:
        """Forget failures for a command of django-axes, which passes the address as a person writes it."""
        if ip_address:
            ip_address = counts_as(ip_address) or ip_address
        options = {"username": username, "ip_or_username": ip_or_username}
        with transaction.atomic():
            forgotten = int(super().reset_attempts(ip_address=ip_address, **options))
            said = f"Forgot the wrong passwords of {forgotten} names and addresses."
            record(AuditRow(kind=AuditRow.Kind.LOGIN_PAUSE, act=said, subject="login"), by=command_actor())
        return forgotten

    def user_logged_in(self, sender: Any, request: HttpRequest, user: Any, **kwargs: Any) -> None:
        """Forget the user's failures, and record the login."""
        with transaction.atomic():
            super().user_logged_in(sender, request, user, **kwargs)
            act = AuditRow(kind=AuditRow.Kind.LOGIN, act="Logged in.", subject=user.get_username())
            record(act, by=unknown_actor(user.get_username(), request))

    def user_logged_out(self, sender: Any, request: HttpRequest, user: Any, **kwargs: Any) -> None:
        """Record the logout of a user. A session that had ended has none."""
        with transaction.atomic():
            super().user_logged_out(sender, request, user, **kwargs)
            if user is not None:
                act = AuditRow(kind=AuditRow.Kind.LOGIN, act="Logged out.", subject=user.get_username())
                record(act, by=user_actor(request))

    def user_login_failed(
        self, sender: Any, credentials: dict[str, Any], request: Any = None, **kwargs: Any
    ) -> None:
        """Count a wrong password, and record the beginning of a pause."""
        was_paused = request is None or bool(request.axes_locked_out)
        super().user_login_failed(sender, credentials, request, **kwargs)
        if was_paused or not request.axes_locked_out:
            return
        # Anybody can type a name, such as a password or a customer's address, so only a user's is kept.
        users, name = get_user_model(), str(credentials.get(get_user_model().USERNAME_FIELD, ""))
        is_user = users._default_manager.filter(**{users.USERNAME_FIELD: name}).exists()
        said = "Too many wrong passwords began a pause."
        with transaction.atomic():
            act = AuditRow(kind=AuditRow.Kind.LOGIN_PAUSE, act=said, subject="login")
            record(act, by=unknown_actor(name if is_user else "an unknown name", request))

    def get_failures(self, request: HttpRequest, credentials: Any = None) -> int:
        """Return the number for `AXES_FAILURE_LIMIT`, which an address reaches at `LIMIT_OF_ADDRESS`."""
        of_name = int(super().get_failures(request, credentials))
        attempts = AccessAttempt.objects.filter(
            ip_address=request.axes_ip_address,  # type: ignore[attr-defined]
            attempt_time__gte=get_cool_off_threshold(request),
        )
        of_address = attempts.aggregate(total=Sum("failures_since_start"))["total"] or 0
        if of_address >= LIMIT_OF_ADDRESS:
            return max(of_name, int(get_failure_limit(request, credentials)))
        return of_name
