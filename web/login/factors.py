"""The second factor of a password: codes of an app, passkeys, and recovery codes (allauth.mfa).

A wrong code counts like a wrong password.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import structlog
from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.base.forms import AuthenticateForm
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from allauth.mfa.webauthn.forms import AddWebAuthnForm, AuthenticateWebAuthnForm
from axes.handlers.proxy import AxesProxyHandler
from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.contrib.auth.signals import user_login_failed
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse

from runtime.audit import Actor, act_on_user, record
from web.actors import user_actor
from web.login.refused import refuse
from web.login.sessions import FACTORS, MUST_SET_UP, end_sessions, has_factor, needs_factor

log = structlog.get_logger(__name__)
View = Callable[..., HttpResponseBase]

#: What fido2 raises for JSON that is no answer of a passkey.
_NO_PASSKEY = (KeyError, TypeError, ValueError, AttributeError)
_WRONG = "This passkey does not fit."
_UNREADABLE = (
    "Your second factor cannot be read, as PRIVACY_KEY has changed. Let an administrator reset your factors"
    " (manage.py factors reset)."
)
_PAUSED = "Too many wrong passwords or codes. Try again in five minutes."


class FactorUnreadable(ValidationError):
    """A factor was encrypted with another PRIVACY_KEY."""


class EncryptedFactors(DefaultMFAAdapter):  # type: ignore[misc]  # allauth has no types
    """Stores the secrets of codes encrypted, with a key that PRIVACY_KEY gives, which never changes."""

    def encrypt(self, text: str) -> str:
        return _cipher().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        try:
            return _cipher().decrypt(encrypted_text.encode()).decode()
        except InvalidToken as error:
            log.warning("second factor unreadable")
            raise FactorUnreadable(_UNREADABLE) from error

    def get_totp_issuer(self) -> str:
        return f"orderpost {context.request.get_host()}"

    def get_totp_label(self, user: Any) -> str:
        return str(user.get_username())


def _cipher() -> Fernet:
    digest = hashlib.sha256(f"second factor:{settings.PRIVACY_KEY}".encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))


class CountedForm:
    """Refuses codes and passwords during a pause, and counts a wrong one."""

    user: Any

    def count(self, check: Any) -> Any:
        request, credentials = context.request, {"username": self.user.get_username()}
        if not AxesProxyHandler.is_allowed(request, credentials):
            raise ValidationError(_PAUSED)
        try:
            return check()
        except FactorUnreadable:
            raise
        except (ValidationError, *_NO_PASSKEY) as error:
            user_login_failed.send(sender=__name__, credentials=credentials, request=request)
            if isinstance(error, ValidationError):
                raise
            raise ValidationError(_WRONG) from error


class CodeForm(CountedForm, AuthenticateForm):  # type: ignore[misc]
    """Takes a code of an app once, in all processes, or a recovery code."""

    def clean_code(self) -> str:
        return str(self.count(self._check_once))

    def _check_once(self) -> str:
        code = str(super().clean_code())
        if self.authenticator.type == Authenticator.Type.TOTP:
            _use_once(self.authenticator, code)
        return code


def _use_once(authenticator: Any, code: str) -> None:
    """Note the time of a code that was right. Raise `ValidationError` for one that is not newer."""
    with transaction.atomic():
        row = Authenticator.objects.select_for_update().get(pk=authenticator.pk)
        if not _use_up(row, code):
            raise ValidationError("This code was used before. Wait for the next one.")


def _use_up(authenticator: Any, code: str) -> bool:
    """Note the time of a code. Return False if it is not newer than the last one."""
    secret = EncryptedFactors().decrypt(authenticator.data["secret"])
    digits = "".join(filter(str.isdigit, code))
    counters = [
        n for n in yield_hotp_counters_from_time() if format_hotp_value(hotp_value(secret, n)) == digits
    ]
    if not counters or counters[-1] <= authenticator.data.get("last_counter", 0):
        return False
    authenticator.data["last_counter"] = counters[-1]
    authenticator.save(update_fields=["data"])
    return True


class FirstCodeForm(CountedForm, ActivateTOTPForm):  # type: ignore[misc]
    """Takes the code that sets an app up."""

    def clean_code(self) -> str:
        return str(self.count(super().clean_code))


class NewPasskeyForm(CountedForm, AddWebAuthnForm):  # type: ignore[misc]
    def clean(self) -> Any:
        return self.count(super().clean)


class PasskeyForm(CountedForm, AuthenticateWebAuthnForm):  # type: ignore[misc]
    def clean_credential(self) -> Any:
        return self.count(super().clean_credential)


def reset_factors(user: Any, *, by: Actor) -> int:
    """Take the second factors of a user away, and end the user's sessions. Return the number of factors."""
    with transaction.atomic():
        record(act_on_user(user, "Second factors reset."), by=by)
        factors = int(Authenticator.objects.filter(user_id=user.pk, type__in=FACTORS).count())
        Authenticator.objects.filter(user_id=user.pk).delete()
        end_sessions(user.pk)
    return factors


def commit_with_act(view: View) -> View:
    """Make a page of allauth whose change of factors, its act and the end of other sessions commit together.

    allauth's own signals come after the commit, and there is none for a code that was used.
    """

    @functools.wraps(view)
    def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            with transaction.atomic():
                before = _types_of(request.user)
                response = view(request, *args, **kwargs)
                if request.method == "POST":
                    _note_changes(request, before)
                if isinstance(response, TemplateResponse):
                    response.render()  # which may decrypt
        except FactorUnreadable as error:
            return refuse(request, str(error.message))
        return response

    return page


def _types_of(user: Any) -> dict[int, str]:
    return dict(Authenticator.objects.filter(user_id=user.pk).values_list("pk", "type"))


def _note_changes(request: HttpRequest, before: dict[int, str]) -> None:
    user: Any = request.user
    after = _types_of(user)
    added = {pk: type for pk, type in after.items() if pk not in before}
    removed = {pk: type for pk, type in before.items() if pk not in after}
    acts = [f"Second factor added: {type}." for type in added.values() if type in FACTORS]
    acts += [f"Second factor removed: {type}." for type in removed.values() if type in FACTORS]
    if Authenticator.Type.RECOVERY_CODES in added.values() and not acts:
        acts.append("Recovery codes replaced.")
    if not acts:
        return
    for authenticator in Authenticator.objects.filter(pk__in=added, type=Authenticator.Type.TOTP):
        _use_up(authenticator, request.POST.get("code", ""))
    record(*(act_on_user(user, act) for act in acts), by=user_actor(request))
    end_sessions(user.pk, but=request.session.session_key)
    if needs_factor(user) and not has_factor(user):
        request.session[MUST_SET_UP] = True
