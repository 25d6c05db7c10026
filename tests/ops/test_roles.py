"""The groups viewer, support, operator and editor: what each may do, and that no button of theirs fails."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, Permission
from django.db.models.functions import Now

from operations.apps import ROLES, permissions_of
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.people import client_of, make_user
from tests.kit.words import (
    DomainEvent,
    Heartbeat,
    InboundDeadLetter,
    Suppression,
    make_groups,
    new_id,
)
from tests.ops.walk import walk

pytestmark = pytest.mark.django_db


def granted(role: str) -> set[str]:
    rows = Permission.objects.filter(group__name=role).values_list("content_type__app_label", "codename")
    return {f"{app}.{code}" for app, code in rows}


def test_each_group_has_what_is_declared_and_all_of_the_one_before():
    for role in ROLES:
        assert granted(role) == permissions_of(role)
    assert granted("viewer") | granted("support") < granted("operator")
    assert granted("editor") - granted("viewer") == {"notifications.edit_texts"}
    assert all(name.partition(".")[2].startswith("view_") for name in granted("viewer"))


def test_what_a_shop_changed_stays_changed_and_a_missing_group_is_made():
    Group.objects.get(name="support").permissions.set(Permission.objects.filter(codename="view_order"))
    Group.objects.get(name="operator").delete()
    make_groups(using="default")
    assert granted("support") == {"orders.view_order"}
    assert granted("operator") == permissions_of("operator")


def test_a_shops_own_group_of_the_same_name_is_left_alone():
    Group.objects.all().delete()
    Group.objects.create(name="support")
    make_groups(using="default")
    assert granted("support") == set()
    assert granted("viewer") == permissions_of("viewer")


def test_no_group_is_made_before_its_permissions():
    Group.objects.all().delete()
    Permission.objects.get(codename="erase_person").delete()
    make_groups(using="default")
    assert set(Group.objects.values_list("name", flat=True)) == {"viewer", "support", "editor"}


@pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
@pytest.mark.parametrize(
    "role", ["viewer", *(pytest.param(role, marks=pytest.mark.drill) for role in [*ROLES][1:])]
)
def test_no_link_and_no_button_fails(role, valkey_url):
    order = make_order()
    for status in ("dead_lettered", "sent", "failed", "suppressed", "discarded", "pending"):
        make_mail(order_id=order.id, status=status, last_error="400: no", provider="sendgrid")
    values = {
        "aggregate_type": "order",
        "aggregate_id": order.id,
        "event_type": "t.v1",
        "payload": {},
        "shard": 1,
    }
    for number, state in enumerate(({}, {"dead_lettered_at": Now()}, {"published_at": Now()})):
        DomainEvent.objects.create(sequence=number, **values | state)
    InboundDeadLetter.objects.create(topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="e")
    Suppression.objects.create(address_hash="0" * 64, reason="complaint")
    Heartbeat.beat(name="poll")
    client = client_of(make_user(role, group=role))
    statuses = walk(client, "/admin/")
    assert {request: status for request, status in statuses.items() if status >= 400} == {}
    assert len(statuses) > 40
    assert client.get("/admin/auth/user/").status_code == 403
