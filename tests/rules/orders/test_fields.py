"""The fields of an order are those of its table, and their uses do not contradict each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import models
from django.db.models import NOT_PROVIDED
from rest_framework.fields import CharField

from orders.api.serializers import ItemSerializer, OrderSerializer
from orders.bodies import GIVEN_COLUMNS, ItemBody, OrderBody
from orders.emails import SAMPLE
from orders.events import PUBLISHED
from orders.fields import DETAIL_NAMES, ERASED_VALUES, ORDER_FIELDS
from tests.kit.events import give, told
from tests.kit.months import Steps
from tests.kit.orders import place_order
from tests.kit.words import ERASED, ERASED_ADDRESS, Order, email_context, erase_person, export_person
from web.api.fields import Text, camel

#: A value of each column that a shop gives.
VALUES: dict[str, Any] = {
    "user_id": "0199aaaa-0000-7000-8000-000000000001",
    "email": "ann@example.com",
    "total_amount": 4990,
    "currency": "EUR",
    "locale": "de",
    "items": [{"sku": "TEA", "name": "Tea", "quantity": 1, "unit_amount": 4990}],
    "charges": [],
    "details": {"customer_note": "Ring twice"},
}
BODY, ANSWER = OrderBody().fields, OrderSerializer().fields
#: The texts of any form that a shop gives.
TEXTS = [name for name, field in BODY.items() if type(field) is Text]
VALUES |= dict.fromkeys(TEXTS, "x")
PERSON = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
#: An answer has no other column but these. `source` and the payment are in it if there is one.
NOT_ANSWERED = {
    *("charges", "details", "source", "unexpected_payment_at"),
    *(
        "shop_key",
        "reported_at",
        "paid_at",
        "stock_reserved_at",
        "completed_at",
        "untold_since",
        "address_corrected_at",
    ),
    *("warnings", "correlation_id", "traceparent"),
}


def test_documents_table_and_columns_have_the_same_names_and_lengths():
    columns = {column.attname: column for column in Order._meta.concrete_fields}
    assert sorted(columns) == sorted(field.name for field in ORDER_FIELDS)
    answered = {name for name, field in ANSWER.items() if field.required}
    assert answered == columns.keys() - NOT_ANSWERED
    assert ANSWER.keys() - answered == {
        "charges",
        "source",
        "unexpected_payment_at",
        "email_language",
        *DETAIL_NAMES,
    }
    assert BODY.keys() == {*GIVEN_COLUMNS, *DETAIL_NAMES} - {"details"}
    assert BODY.keys() <= ANSWER.keys(), "a shop reads what it gave"
    assert ItemBody().fields.keys() == ItemSerializer().fields.keys()
    assert set(PUBLISHED.values()) <= answered
    assert VALUES.keys() == set(GIVEN_COLUMNS)
    for name in GIVEN_COLUMNS:
        column, body = columns[name], BODY.get(name)
        if isinstance(column, models.CharField) and name != "email":
            assert column.max_length == body.max_length, name
        if isinstance(column, models.CharField):
            assert type(ANSWER[name]) is CharField, name
        assert (body is not None and body.required) == (column.default is NOT_PROVIDED), name


def test_events_have_no_personal_data_and_no_free_text():
    assert not set(PUBLISHED.values()) & {*ERASED_VALUES, *TEXTS, "email"}


def test_a_text_of_the_person_that_a_shop_gives_is_erased():
    kept = [name for name in ("email", *TEXTS) if name not in ERASED_VALUES]
    assert kept == ["reference"], "the shop's own number names no person"


def shown(order: Order) -> dict[str, str]:
    return {name: str(getattr(order, name)) for name in VALUES}


#: Bodies have these flat.
FLAT = {"details": {"customerNote": "Ring twice"}}


@pytest.mark.django_db
def test_an_event_of_another_system_sets_each_field_that_a_shop_gives(settings):
    settings.ORDER_SOURCES = ["shop-a"]
    sent = [name for name in VALUES if name != "items"]
    for sequence in (2, 1):  # the second was overtaken, and changes none of them
        texts = {camel(name): "x" * sequence for name in TEXTS}
        data = {camel(name): VALUES[name] for name in sent if name not in FLAT} | texts
        data |= FLAT["details"]
        assert give(told("placed", VALUES["user_id"], sequence, **data)) == "done"
        order = Order.objects.get()
        for name in sent:
            expected = "xx" if name in TEXTS else VALUES[name]
            assert str(getattr(order, name)) == str(expected), name


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


def test_the_page_of_templates_names_each_variable():
    page = (Path(__file__).parents[3] / "docs/guides/templates.md").read_text()
    table = page.partition("## Variables")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (.+?) \|", table, re.MULTILINE))))
    assert SAMPLE.keys() - named == set()
