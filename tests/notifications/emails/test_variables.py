"""docs/emails.md explains each variable, and the templates use no other."""

from __future__ import annotations

import re

import pytest
from django.conf import settings

from orders.emails import email_context
from orders.models import Order

FOLDER = settings.BASE_DIR / "templates" / "emails"
ADDED = {"lang", "shop_name", "shop_address", "shop_url", "subject"}  # by rendering
LOCAL = {"item", "colon", "counter", "block"}  # made inside the templates


def given() -> set[str]:
    order = Order(
        total_amount=1, items=[{"sku": "s", "name": "n", "quantity": 1, "unit_amount": 1}], reference="R"
    )
    context = email_context(order=order, change={})
    items = context["items"]
    assert isinstance(items, list)
    return set(context) | {f"item.{key}" for key in items[0]} | ADDED


def used(text: str) -> set[str]:
    """Return the variables of a template: in {{ }}, in {% if %}, {% for %}, and of blocktranslate."""
    names = set(re.findall(r"\{\{\s*([\w.]+)", text))
    for condition in re.findall(r"\{%\s*(?:el)?if\s+(.*?)%\}", text):
        names |= set(re.findall(r"\b[a-z_][\w.]*", condition)) - {"and", "or", "not", "in", "is"}
    return {name for name in names if name not in LOCAL and not name.startswith("block.")}


def test_the_documentation_explains_each_variable():
    table = (settings.BASE_DIR / "docs" / "emails.md").read_text().partition("## Variables")[2]
    explained = set(re.findall(r"`([a-z_.]+)`", table.partition("## Change")[0]))
    assert given() <= explained


@pytest.mark.parametrize(
    "path",
    sorted(path for path in FOLDER.rglob("*") if path.is_file()),
    ids=lambda path: str(path.relative_to(FOLDER)),
)
def test_a_template_uses_only_documented_variables(path):
    assert used(path.read_text()) <= given()
