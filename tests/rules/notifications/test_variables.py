"""docs/guides/templates.md explains each variable, and templates use no other."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from django.conf import settings
from jinja2 import meta

from notifications.template_checks import ADDED
from tests.kit.words import SAMPLE, Order, email_context, environment

FOLDER = settings.BASE_DIR / "templates" / "emails"


def given() -> dict[str, object]:
    items = [{"sku": "s", "name": "n", "quantity": 1, "unit_amount": 1}]
    return email_context(order=Order(total_amount=1, items=items, reference="R"), change={})


def of_items(context: Mapping[str, object]) -> set[str]:
    items = context["items"]
    assert isinstance(items, list)
    return {f"item.{key}" for item in items for key in item}


def test_the_documentation_explains_each_variable_and_no_other():
    table = (settings.BASE_DIR / "docs" / "guides" / "templates.md").read_text().partition("## Variables")[2]
    rows = re.findall(r"^\| (`.*?) \|.*", table.partition("## Change")[0], re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert explained == {*given(), *ADDED}
    assert of_items(given()) == set(re.findall(r"`(item\.[a-z_]+)`", table))


def test_the_samples_of_the_start_have_the_variables_of_an_order():
    assert set(SAMPLE) == set(given())
    assert of_items(SAMPLE) == of_items(given())


@pytest.mark.parametrize(
    "path",
    sorted(path for path in FOLDER.rglob("*") if path.is_file()),
    ids=lambda path: str(path.relative_to(FOLDER)),
)
def test_a_template_uses_only_documented_variables(path):
    used = meta.find_undeclared_variables(environment().parse(path.read_text()))
    assert used <= {*given(), *ADDED, "colon"}  # which _layout.txt sets
