"""The groups of an earlier release get what a later one needs, unless a shop has changed them."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission
from django.db import connection

from operations.apps import permissions_of

pytestmark = pytest.mark.django_db
support = import_module("shop_connections.migrations.0003_group_support")
operator = import_module("notifications.migrations.0003_rights")
EDITOR = SimpleNamespace(connection=connection)


def granted(group: str) -> set[str]:
    rows = Permission.objects.filter(group__name=group).values_list("content_type__app_label", "codename")
    return {f"{app}.{code}" for app, code in rows}


def test_support_loses_what_it_cannot_use_unless_a_shop_changed_it():
    group = Group.objects.get(name="support")
    former = [
        Permission.objects.get(content_type__app_label=app, codename=code)
        for app, codes in support.FORMER.items()
        for code in codes
    ]
    group.permissions.set(former)
    support.take_unused(apps, EDITOR)
    assert granted("support") == permissions_of("support")
    group.permissions.set([*former, Permission.objects.get(codename="erase_person")])
    support.take_unused(apps, EDITOR)
    assert len(granted("support")) == len(former) + 1


def test_an_operator_gets_the_rights_of_a_new_release():
    group, codes = Group.objects.get(name="operator"), [code for code, _ in operator.NEW.values()]
    group.permissions.remove(*Permission.objects.filter(codename__in=codes))
    operator.grant(apps, EDITOR)
    assert granted("operator") == permissions_of("operator")
    Group.objects.get(name="operator").permissions.clear()
    operator.grant(apps, EDITOR)
    assert granted("operator") == set()
