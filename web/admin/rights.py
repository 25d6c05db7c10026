"""The rights of a user of the admin, and the people who have the rest.

A user who is bound to some shops has only the permissions that the apps declare in `AppConfig.shop_rights`.
All others reach over all shops, and so does each permission that nobody has declared.
"""

from __future__ import annotations

import functools
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Group, Permission
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.text import get_text_list

from runtime.binding import Binding
from runtime.models.bindings import binding_of


@functools.cache
def shop_rights() -> frozenset[str]:
    """Return the permissions that concern some shops, of all apps."""
    configs = apps.get_app_configs()
    return frozenset(name for config in configs for name in getattr(config, "shop_rights", ()))


class BindingBackend:
    """Refuses to a bound user what reaches over all shops. It stands before the backend that grants.

    It also notes the permission that was asked last, which a refused page then names.
    """

    def authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Know nobody: Django asks each backend."""

    def has_perm(self, user_obj: Any, perm: str, obj: Any = None) -> bool:
        """Raise `PermissionDenied`, which asks no other backend, or return False, which asks the next one."""
        if user_obj.is_authenticated:
            user_obj._last_asked = perm
            if perm not in shop_rights() and not binding_of(user_obj).is_unbound:
                raise PermissionDenied
        return False


def shops_of(request: HttpRequest) -> Binding:
    """Return the shops that the user of a request may see."""
    return binding_of(request.user)


def require_unbound(request: HttpRequest) -> None:
    """Raise `PermissionDenied`, which says who may, if the user is bound."""
    if not (shops := shops_of(request)).is_unbound:
        raise PermissionDenied(f"This reaches over all shops, and you are bound to {shops}. {_ask()}")


def describe_refusal(request: HttpRequest) -> str:
    """Say which permission the user was asked for last and lacks, and who has it."""
    asked = getattr(request.user, "_last_asked", "")
    return describe_missing(request, asked) if asked else ""


def describe_missing(request: HttpRequest, permission: str) -> str:
    """Say which permission the user lacks, and who has it."""
    app, _, code = permission.partition(".")
    rows = Permission.objects.filter(content_type__app_label=app, codename=code)
    words = f"“{rows.values_list('name', flat=True).first() or permission}”"
    groups = list(Group.objects.filter(permissions__in=rows).order_by("name").values_list("name", flat=True))
    if permission not in shop_rights() and not (shops := shops_of(request)).is_unbound:
        return f"{words} reaches over all shops, and you are bound to {shops}. {_ask(groups)}"
    if not groups:
        return f"You need the right {words}. A superuser has it."
    plural = len(groups) > 1
    holders = f"The group{'s' * plural} {get_text_list(groups, 'and')} {'have' if plural else 'has'} it."
    return f"You need the right {words}. {holders}"


def _ask(groups: list[str] | None = None) -> str:
    of_group = f" of the group {get_text_list(groups, 'or')}" if groups else ""
    return f"Ask somebody{of_group} who is bound to all shops, or a superuser."
