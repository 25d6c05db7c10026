"""The login by OpenID Connect: code flow with PKCE, `state` and `nonce`, by django-allauth.

allauth neither sends a nonce nor checks the signature of an ID token that it fetched itself. Both are here.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any

import jwt
import requests
import structlog
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows.login import get_authentication_records
from allauth.core import context
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialApp, SocialLogin
from allauth.socialaccount.providers.base.constants import AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from web.login.passwords import usable_page
from web.login.refused import refuse
from web.login.rights import NoEntry, admit
from web.login.sessions import LOGIN_AT, RENEWED_AT
from web.proxies import client_address

log = structlog.get_logger(__name__)

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_REQUIRED = ["iss", "sub", "aud", "exp", "iat", "nonce"]
#: How far two clocks may be apart, and how long a stranger's session waits for the provider's answer.
_LEEWAY_SECONDS, _STATE_SECONDS = 60, 600
_LONGEST_SUB = 191
#: How long after the password a second factor can be changed.
_PASSWORD_SECONDS = 300
_NO_ANSWER = "Your provider could not be asked, or its answer is not valid."


#: The errors of reading an answer that no OpenID provider gives.
_BAD_ANSWER = (OAuth2Error, requests.RequestException, KeyError, AttributeError, TypeError, ValueError)
#: An error may have a whole answer with its tokens.
_LONGEST_REASON = 200


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_REASON]


class IdToken(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # allauth has no types
    """Reads who a person is from the ID token alone."""

    @property
    def openid_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().openid_config
        if config.get("issuer") != settings.OIDC_ISSUER:
            raise OAuth2Error("the issuer is not OIDC_ISSUER")
        return config

    def get_callback_url(self, request: HttpRequest, app: Any) -> str:
        return request.build_absolute_uri(reverse("openid_connect_callback"))

    def complete_login(self, request: HttpRequest, app: Any, token: Any, **kwargs: Any) -> SocialLogin:
        claims = self.decode(str(kwargs["response"].get("id_token") or ""))
        login = self.get_provider().sociallogin_from_response(request, {"sub": claims["sub"]})
        login.claims = claims
        return login

    def decode(self, token: str) -> dict[str, Any]:
        """Return the claims of a token of this issuer for this client. Raise `OAuth2Error`."""
        with self.get_provider().session() as session:
            answer = session.get(self.openid_config["jwks_uri"])
            answer.raise_for_status()
        try:
            keys = [key for key in jwt.PyJWKSet.from_dict(answer.json()).keys if key.public_key_use != "enc"]
            key_id = jwt.get_unverified_header(token).get("kid")
            [key] = [key for key in keys if key.key_id == key_id] if key_id else keys
            claims: dict[str, Any] = jwt.decode(
                token,
                key=key,
                algorithms=_ALGORITHMS,
                audience=settings.OIDC_CLIENT_ID,
                issuer=settings.OIDC_ISSUER,
                leeway=_LEEWAY_SECONDS,
                options={"require": _REQUIRED},
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise OAuth2Error(f"{type(error).__name__}: {error}") from error
        if claims.get("azp", settings.OIDC_CLIENT_ID) != settings.OIDC_CLIENT_ID:
            raise OAuth2Error("the token is of another client")
        return claims


class OneProvider(OpenIDConnectProvider):  # type: ignore[misc]
    """The provider of the settings. Its accounts have the issuer, so a new issuer has no accounts."""

    oauth2_adapter_class = IdToken

    @property
    def server_url(self) -> str:
        return f"{settings.OIDC_ISSUER.rstrip('/')}/.well-known/openid-configuration"

    def extract_uid(self, data: dict[str, Any]) -> str:
        """Return the `sub`, or the hash of one that is too long for the column."""
        sub = str(data["sub"])
        return sub if len(sub) <= _LONGEST_SUB else f"sha256:{hashlib.sha256(sub.encode()).hexdigest()}"

    def session(self) -> requests.Session:
        session: requests.Session = SocialAdapter().get_requests_session()
        return session

    def ask(self, request: HttpRequest, *, page: str, silently: bool) -> HttpResponse:
        """Send the person to the provider, who comes back to `page`."""
        nonce = secrets.token_urlsafe(32)
        process = AuthProcess.REDIRECT if silently else AuthProcess.LOGIN
        parameters = {"nonce": nonce} | ({"prompt": "none"} if silently else {})
        if not request.user.is_authenticated:
            request.session.set_expiry(_STATE_SECONDS)
        try:
            response: HttpResponse = self.redirect(
                request, process, next_url=page, auth_params=parameters, nonce=nonce
            )
        except _BAD_ANSWER as error:
            log.warning("login by OpenID Connect failed", reason=_words(error))
            return refuse(request, _NO_ANSWER)
        return response


class SocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    def get_provider(self, request: Any, provider: str, client_id: str | None = None) -> OneProvider:
        app = SocialApp(
            provider="openid_connect",
            provider_id=settings.OIDC_ISSUER,
            name="OpenID Connect",
            client_id=settings.OIDC_CLIENT_ID,
            secret=settings.OIDC_CLIENT_SECRET,
            settings={"oauth_pkce_enabled": True, "scope": ["openid", "profile", "email"]},
        )
        return OneProvider(request, app=app)

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Check the nonce, and give the person the rights of the claims, or no entry."""
        claims, state = sociallogin.claims, sociallogin.state
        if not secrets.compare_digest(str(claims["nonce"]), str(state["nonce"])):
            raise OAuth2Error("the nonce is of another login")
        try:
            user = admit(sociallogin.account, claims, request=request)
            if state["process"] == AuthProcess.REDIRECT and request.user != user:
                raise NoEntry("Another person is logged in at your provider now.")
        except NoEntry as error:
            log.warning("login by OpenID Connect refused", reason=str(error))
            logout(request)
            raise ImmediateHttpResponse(refuse(request, str(error))) from None
        sociallogin.user = sociallogin.account.user = user
        if state["process"] == AuthProcess.REDIRECT:
            request.session[RENEWED_AT] = int(time.time())

    def on_authentication_error(self, request: HttpRequest, provider: Any, **kwargs: Any) -> None:
        """End a session that the provider does not renew, or say that a login failed."""
        state = (kwargs.get("extra_context") or {}).get("state") or {}
        error, told = kwargs.get("exception"), request.GET.get("error", "")[:_LONGEST_REASON]
        reason = _words(error) if error else told or "the state is of no login"
        log.warning("login by OpenID Connect failed", reason=reason)
        if state.get("process") == AuthProcess.REDIRECT:
            logout(request)
            raise ImmediateHttpResponse(redirect_to_login(state.get("next", ""), reverse("admin:login")))
        raise ImmediateHttpResponse(refuse(request, _NO_ANSWER))


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """allauth's flows without its e-mails and messages."""

    def get_login_stages(self) -> list[str]:
        return ["allauth.mfa.stages.AuthenticateStage"]

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, str]]:
        if not user.is_authenticated or not user.has_usable_password():
            return []
        url = reverse("account_reauthenticate")
        return [{"id": "reauthenticate", "description": "Use your password", "url": url}]

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """Return whether the last password is too old for a change of a factor."""
        request = context.request
        if not request.user.has_usable_password():
            raise PermissionDenied("Your provider asks for your second factor.")
        records = get_authentication_records(request, request.user)
        times = [record["at"] for record in records if record["method"] == "password"]
        return time.time() - max(times, default=0) > _PASSWORD_SECONDS

    def get_client_ip(self, request: HttpRequest) -> str:
        return client_address(request)

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """Say nothing: the pages that follow show what has changed."""

    def send_notification_mail(self, *args: Any, **kwargs: Any) -> None:
        """Send nothing: users need no address."""


@require_GET
def begin_login(request: HttpRequest) -> HttpResponse:
    """Send a person to the provider, without a page of it if a session is to be renewed."""
    page = usable_page(request.GET.get("next", ""), request=request)
    silently = request.user.is_authenticated and RENEWED_AT in request.session
    return SocialAdapter().get_provider(request, "").ask(request, page=page, silently=silently)


@require_GET
def end_login(request: HttpRequest) -> HttpResponse:
    """Take the provider's answer. One that makes no sense is refused."""
    try:
        view = OAuth2CallbackView.adapter_view(IdToken(request, settings.OIDC_ISSUER))
        answer: HttpResponse = view(request)
    except _BAD_ANSWER as error:
        log.warning("login by OpenID Connect failed", reason=_words(error))
        return refuse(request, _NO_ANSWER)
    return answer


@require_GET
def show_renewed(request: HttpRequest) -> HttpResponse:
    """Say in a new tab that the form in the other tab can be sent."""
    if LOGIN_AT not in request.session:
        return HttpResponseRedirect(reverse("admin:login"))
    return render(request, "login/renewed.html", {"title": "Your session is renewed"})
