"""The login by password, and what a password must be."""

from __future__ import annotations

import re
from typing import Any

from allauth.account.internal.flows.login import perform_password_login
from allauth.account.models import Login
from allauth.core import context
from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm, AdminPasswordChangeForm
from django.contrib.auth.password_validation import CommonPasswordValidator
from django.contrib.auth.views import LoginView
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve, reverse
from django.utils.http import url_has_allowed_host_and_scheme

from runtime.audit import act_on_user, record
from web.actors import user_actor
from web.login.factors import CountedForm
from web.login.sessions import PAGES

_AT_ENDS = re.compile(r"^[\W\d_]+|[\W\d_]+$")
#: The names of the URLs that only lead somewhere else.
_NO_PAGES = {
    "login",
    "account_login",
    "logout",
    "mfa_authenticate",
    "openid_connect_login",
    "openid_connect_callback",
}
#: A shorter name, such as "Jo", may be part of any word.
_SHORTEST_NAME = 4


class NoCommonWord:
    """Refuses a common password that has digits and signs at its ends, such as 123football!!!."""

    def __init__(self) -> None:
        self._common = CommonPasswordValidator().passwords

    def validate(self, password: str, user: Any = None) -> None:
        if _AT_ENDS.sub("", password).lower() in self._common or password.lower().strip() in self._common:
            raise ValidationError("This is a common word with digits and signs. Use several words.")

    def get_help_text(self) -> str:
        return "It must not be a common word with digits and signs at its ends."


class NoNameOfOurs:
    """Refuses a password that contains orderpost, the shop's name or the user's name."""

    def validate(self, password: str, user: Any = None) -> None:
        text = _letters(password)
        for name in _names(user):
            if name in text:
                raise ValidationError(f"A password must not contain “{name}”, which is easily guessed.")

    def get_help_text(self) -> str:
        return "It must not contain orderpost, the shop's name or your name."


def _names(user: Any) -> list[str]:
    names = ["orderpost", settings.SHOP_NAME]
    if user is not None:
        names += [user.get_username(), user.first_name, user.last_name]  # None if the form refuses it
    return [text for name in filter(None, names) if len(text := _letters(name)) >= _SHORTEST_NAME]


def _letters(text: str) -> str:
    """Return a text without spaces and signs, in lower case."""
    return re.sub(r"[\W_]+", "", text).lower()


def usable_page(url: str, *, request: HttpRequest) -> str:
    """Return the page of the admin that a login asked for, or the first page."""
    first = reverse("admin:index")
    if not url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure()):
        return first
    path = re.sub(r"^https?://[^/]+", "", url).partition("?")[0].partition("#")[0]
    if not path.startswith(PAGES):
        return first
    try:
        match = resolve(path)
    except Resolver404:
        return first
    # The admin's last pattern, which answers 404, has no name. A part of a page is not a page.
    is_page = match.url_name and match.url_name not in _NO_PAGES and "part=" not in url
    return url if is_page else first


class PasswordForm(AdminAuthenticationForm):
    """The admin's form, with those refused who may not use a password."""

    def clean(self) -> dict[str, Any]:
        name = self.cleaned_data.get("username")
        if (settings.OIDC_ISSUER or settings.PASSWORD_LOGIN) and name != settings.PASSWORD_LOGIN:
            raise ValidationError("Passwords are not used here. Log in with your organisation's account.")
        return super().clean()

    def confirm_login_allowed(self, user: Any) -> None:
        super().confirm_login_allowed(user)
        if SocialAccount.objects.filter(user=user).exists():
            raise ValidationError("You log in with your organisation's account, not by password.")


class OwnPasswordForm(CountedForm, AdminPasswordChangeForm):
    """Changes the password of the user who is logged in, with its row of the audit."""

    def clean_old_password(self) -> str:
        return str(self.count(super().clean_old_password))

    def save(self, commit: bool = True) -> Any:
        with transaction.atomic():
            user = super().save(commit)
            record(act_on_user(user, "Changed their own password."), by=user_actor(context.request))
        return user


class PasswordLogin(LoginView):
    """Checks the password, and then goes on to the second factor."""

    authentication_form = PasswordForm

    def form_valid(self, form: Any) -> HttpResponse:
        user = form.get_user()
        login = Login(user=user, redirect_url=self.get_success_url())
        credentials = {"username": user.get_username()}
        response: HttpResponse = perform_password_login(self.request, credentials, login)
        return response

    def get_redirect_url(self, request: HttpRequest | None = None) -> str:
        return usable_page(super().get_redirect_url(), request=self.request)
