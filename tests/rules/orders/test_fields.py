"""The fields of an order are those of its table, and their uses do not contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import models
from django.db.models import NOT_PROVIDED

from orders.fields import ERASED_VALUES, ORDER_FIELDS, Kind, OrderField, Use
from tests.kit.events import give, told
from tests.kit.months import Steps
from tests.kit.orders import place_order
from tests.kit.words import ERASED, ERASED_ADDRESS, Order, email_context, erase_person, export_person

#: The model's field of each kind.
COLUMNS: dict[Kind, type[models.Field]] = {
    Kind.ID: models.UUIDField,
    Kind.AMOUNT: models.BigIntegerField,
    Kind.NUMBER: models.PositiveIntegerField,
    Kind.ITEMS: models.JSONField,
    Kind.CHARGES: models.JSONField,
    Kind.DETAILS: models.JSONField,
    Kind.LINES: models.JSONField,
    Kind.TIME: models.DateTimeField,
}
#: A value of each kind that a shop gives.
GIVEN: dict[Kind, Any] = {
    Kind.ID: "0199aaaa-0000-7000-8000-000000000001",
    Kind.EMAIL: "ann@example.com",
    Kind.TEXT: "x",
    Kind.CURRENCY: "EUR",
    Kind.LOCALE: "de",
    Kind.AMOUNT: 4990,
    Kind.ITEMS: [{"sku": "TEA", "name": "Tea", "quantity": 1, "unit_amount": 4990}],
    Kind.CHARGES: [],
    Kind.DETAILS: {"customer_note": "Ring twice"},
}
VALUES = {field.name: GIVEN[field.kind] for field in ORDER_FIELDS if Use.GIVEN in field.uses}
PERSON = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def test_each_column_of_the_table_is_declared():
    assert {field.name for field in ORDER_FIELDS} == {field.attname for field in Order._meta.concrete_fields}
    assert len(ORDER_FIELDS) == len(Order._meta.concrete_fields)


@pytest.mark.parametrize("field", ORDER_FIELDS, ids=lambda field: field.name)
def test_a_column_has_the_declared_type_and_length(field: OrderField):
    column = Order._meta.get_field(field.name)
    assert type(column) is COLUMNS.get(field.kind, models.CharField)
    if isinstance(column, models.CharField) and field.kind is not Kind.EMAIL:
        assert column.max_length == field.most
    if Use.GIVEN in field.uses:
        assert field.is_required == (column.default is NOT_PROVIDED)


@pytest.mark.parametrize("field", ORDER_FIELDS, ids=lambda field: field.name)
def test_events_have_no_personal_data_and_no_free_text(field: OrderField):
    if field.erased is not None or field.kind in (Kind.EMAIL, Kind.TEXT):
        assert Use.EVENTS not in field.uses


def test_a_text_of_the_person_that_a_shop_gives_is_erased():
    kept = [
        field.name
        for field in ORDER_FIELDS
        if Use.GIVEN in field.uses and field.kind in (Kind.EMAIL, Kind.TEXT) and field.erased is None
    ]
    assert kept == ["reference"], "the shop's own number names no person"


def shown(order: Order) -> dict[str, str]:
    return {name: str(getattr(order, name)) for name in VALUES}


#: Bodies have these flat.
FLAT = {"details": {"customerNote": "Ring twice"}}


@pytest.mark.django_db
def test_an_event_of_another_system_sets_each_field_that_a_shop_gives(settings):
    settings.ORDER_SOURCES = ["shop-a"]
    sent = [field for field in ORDER_FIELDS if field.name in VALUES and field.kind is not Kind.ITEMS]
    for sequence in (2, 1):  # the second was overtaken, and changes none of them
        texts = {field.json_name: "x" * sequence for field in sent if field.kind is Kind.TEXT}
        data = {field.json_name: VALUES[field.name] for field in sent if field.name not in FLAT} | texts
        data |= FLAT["details"]
        assert give(told("placed", VALUES["user_id"], sequence, **data)) == "done"
        order = Order.objects.get()
        for field in sent:
            expected = "xx" if field.kind is Kind.TEXT else VALUES[field.name]
            assert str(getattr(order, field.name)) == str(expected), field.name


@PERSON
def test_an_export_has_each_field_and_an_erasure_replaces_the_personal_ones():
    order = place_order(**VALUES)
    before = shown(order)
    (exported,) = export_person(email=order.email, report=Steps())["orders"]
    assert exported.keys() == {field.name for field in ORDER_FIELDS}
    erase_person(email=order.email, report=Steps(), force=True)
    order.refresh_from_db()
    items = [item | {"name": ERASED} for item in VALUES["items"]]
    assert shown(order) == before | {name: str(value) for name, value in ERASED_VALUES.items()} | {
        "items": str(items)
    }
    assert order.email == ERASED_ADDRESS


def test_an_email_gets_each_field_with_a_sample():
    names = [field.name for field in ORDER_FIELDS if field.sample is not None]
    context = email_context(order=Order(**VALUES), event_type="order.paid", change={})
    assert {name: context[name] for name in names} == {name: VALUES[name] for name in names}
