"""End a session after 12 hours, an hour without a click, or an hour since the provider was asked.

A refresh of a page is no click. The time of a click is written at most once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth import SESSION_KEY, logout
from django.contrib.auth.signals import user_logged_in
from django.contrib.auth.views import redirect_to_login
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.middleware.csrf import CsrfViewMiddleware
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

LONGEST_SECONDS = 12 * 3600
IDLE_SECONDS = 3600
#: How long the rights count that the provider of an OpenID Connect login gave.
RENEW_SECONDS = 3600
WRITE_SECONDS = 60
PAGES = "/admin/"

#: The keys of a session: when the login was, the last click, and the provider's last answer (seconds since
#: 1970), and whether the user must set up a second factor first.
LOGIN_AT, CLICK_AT, RENEWED_AT, MUST_SET_UP = "login_at", "click_at", "oidc_at", "must_set_up"


#: Recovery codes only replace one of them.
FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)


def has_factor(user: Any) -> bool:
    """Return whether a user has an app or a passkey."""
    rows = Authenticator.objects.filter(user_id=user.pk, type__in=FACTORS)
    return bool(rows.exists())


def is_refresh(request: HttpRequest) -> bool:
    """Return whether a script reads a part of a page again. A preview that a user types for is a post."""
    return request.method == "GET" and (
        "part" in request.GET or request.headers.get("Sec-Fetch-Dest") == "empty"
    )


def is_over(session: Any, *, now: float) -> bool:
    """Return whether a login has ended. One without times is of a release that did not write them."""
    login_at, click_at = float(session.get(LOGIN_AT, 0)), float(session.get(CLICK_AT, 0))
    return now - login_at > LONGEST_SECONDS or now - click_at > IDLE_SECONDS


def guard_session(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Make the middleware of pages. As a `process_view`, Django would call it for the API, too."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        return _answer_first(request) or get_response(request)

    return answer


def _answer_first(request: HttpRequest) -> HttpResponseBase | None:
    """Answer instead of the page if the user may not use it now."""
    session, now, path = request.session, time.time(), request.path
    # The page of the login needs no database.
    if not path.startswith(PAGES) or path.startswith((reverse("admin:login"), reverse("admin:logout"))):
        return None
    if SESSION_KEY not in session:
        return None
    if is_over(session, now=now):
        logout(request)
        return redirect_to_login(_page(request), reverse("admin:login"))
    if not is_refresh(request) and now - session[CLICK_AT] > WRITE_SECONDS:
        session[CLICK_AT] = int(now)
    if session.get(MUST_SET_UP) and not path.startswith(reverse("mfa_index")):
        if not has_factor(request.user):
            return HttpResponseRedirect(reverse("mfa_index"))
        del session[MUST_SET_UP]
    if RENEWED_AT in session and now - session[RENEWED_AT] > RENEW_SECONDS:
        return _renew(request)
    return None


def renewal_url(page: str) -> str:
    return f"{reverse('openid_connect_login')}?{urlencode({'next': page})}"


def _renew(request: HttpRequest) -> HttpResponseBase:
    """Ask the provider again. A posted form is shown again, so that the user can send it afterwards."""
    if request.method in ("GET", "HEAD"):
        if is_refresh(request):
            return HttpResponse("Open the page again to renew the session.", status=401)
        return HttpResponseRedirect(renewal_url(_page(request)))
    # Only after this middleware, Django would refuse a forged post, whose fields nobody may send on.
    csrf = CsrfViewMiddleware(lambda _: HttpResponse())
    if refusal := csrf.process_view(request, _renew, (), {}):
        return refusal
    fields = [
        (name, value)
        for name, values in request.POST.lists()
        if name != "csrfmiddlewaretoken"
        for value in values
    ]
    context = {
        "title": "Renew your session",
        "fields": fields,
        "page": request.get_full_path(),
        "renewal_url": renewal_url(reverse("oidc_renewed")),
    }
    return render(request, "login/renew.html", context, status=403)


def _page(request: HttpRequest) -> str:
    """Return the page to open after a login. A post is not sent again."""
    return request.get_full_path() if request.method == "GET" else reverse("admin:index")


def end_sessions(user_id: int, *, but: str | None = None) -> int:
    """End the sessions of a user, except the one with the key `but`. Return how many there were."""
    decode = SessionStore().decode
    live = Session.objects.filter(expire_date__gt=timezone.now())
    keys = [
        key
        for key, data in live.values_list("session_key", "session_data").iterator()
        if key != but and decode(data).get(SESSION_KEY) == str(user_id)
    ]
    Session.objects.filter(session_key__in=keys).delete()
    return len(keys)


def needs_factor(user: Any) -> bool:
    """Return whether a password alone is not enough for a user."""
    return bool(settings.REQUIRE_MFA) or user.get_username() == settings.PASSWORD_LOGIN


def begin_session(sender: Any, request: HttpRequest, user: Any, **_: Any) -> None:
    """Write the times of a login into its session, and whether the user sets a factor up first."""
    session = request.session
    session.cycle_key()  # Django keeps the key if the same user logs in again
    session.set_expiry(None)
    session[LOGIN_AT] = session[CLICK_AT] = int(time.time())
    session.pop(MUST_SET_UP, None)
    session.pop(RENEWED_AT, None)
    if getattr(request, "came_by_oidc", False):
        session[RENEWED_AT] = session[LOGIN_AT]
    elif needs_factor(user) and not has_factor(user):
        session[MUST_SET_UP] = True


user_logged_in.connect(begin_session, dispatch_uid="begin session")
