"""The pages of the login. Of allauth's, only these are mounted."""

from __future__ import annotations

from allauth.account.views import reauthenticate
from allauth.mfa.base.views import authenticate, index
from allauth.mfa.recovery_codes.views import generate_recovery_codes, view_recovery_codes
from allauth.mfa.totp.views import activate_totp, deactivate_totp
from allauth.mfa.webauthn.views import add_webauthn, remove_webauthn
from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, path

from web.login import oidc
from web.login.factors import commit_with_act

urlpatterns: list[URLPattern] = [
    path("login/", admin.site.login, name="account_login"),  # allauth's name of the admin's own page
    path("login/code/", authenticate, name="mfa_authenticate"),
    path("factors/", commit_with_act(index), name="mfa_index"),
    path("factors/", commit_with_act(index), name="mfa_list_webauthn"),  # where allauth goes after a removal
    path("factors/app/", commit_with_act(activate_totp), name="mfa_activate_totp"),
    path("factors/app/remove/", commit_with_act(deactivate_totp), name="mfa_deactivate_totp"),
    path("factors/passkey/", commit_with_act(add_webauthn), name="mfa_add_webauthn"),
    path("factors/passkey/<int:pk>/remove/", commit_with_act(remove_webauthn), name="mfa_remove_webauthn"),
    path("factors/codes/", commit_with_act(view_recovery_codes), name="mfa_view_recovery_codes"),
    path("factors/codes/new/", commit_with_act(generate_recovery_codes), name="mfa_generate_recovery_codes"),
    path("factors/password/", reauthenticate, name="account_reauthenticate"),
]
if settings.OIDC_ISSUER:
    urlpatterns += [
        path("login/oidc/", oidc.begin_login, name="openid_connect_login"),
        path("login/oidc/answer/", oidc.end_login, name="openid_connect_callback"),
        path("login/oidc/renewed/", oidc.show_renewed, name="oidc_renewed"),
    ]
