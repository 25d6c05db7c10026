"""No string of a package names what belongs to a package above it. The import contracts cannot see strings.

It names no table and no app label (`orders.view_order`, `admin:orders_order_change`), no state that only
models above have, and below the e-mails no e-mail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from django.apps import AppConfig, apps

from local.machine import PROJECT
from orders.models import STUCK
from tests.kit.packages import LEVELS, PACKAGES, files_of

Found = set[tuple[str, str]]

#: States and reasons of e-mails, parcels and connections that are also words for partitions, messages, jobs
#: and styles.
ORDINARY = {"pending", "sent", "none", "delivered", "waiting", "age", "person", "restore"}
#: File and word, with the reason.
ALLOWED = {
    ("web/api/problem_types.py", "e-mail"): "the advice of the API's most general problem",
    ("events/schemas/asyncapi.py", "e-mail"): "the document describes the topics of all apps",
    ("events/conditions.py", "e-mail"): "the sentence tells what still works",
    ("events/admin.py", "dead_lettered"): "the colour of a pill",
    ("events/admin.py", "discarded"): "the colour of a pill",
    ("runtime/models/audit.py", "e-mail"): "the audit names the kinds of acts of all apps",
    ("runtime/models/audit.py", "erasure"): "the same",
    ("notifications/models.py", "orders."): "the foreign key to the order",
    ("notifications/admin/email_actions.py", "confirmed"): "a field of a form",
}


def above(package: str) -> list[str]:
    level = next(number for number, level in enumerate(LEVELS) if package in level)
    return [name for upper in LEVELS[: level + 1] for name in upper if name != package]


def config_of(package: str) -> AppConfig:
    return next(config for config in apps.get_app_configs() if config.name == package)


def tables(packages: Sequence[str]) -> set[str]:
    return {model._meta.db_table for package in packages for model in config_of(package).get_models()}


def states(packages: Sequence[str]) -> set[str]:
    """Return the values of all choices in the packages' models, and the names of stuck orders."""
    choices = [
        choice
        for name in packages
        for model in config_of(name).get_models()
        for field in model._meta.get_fields()
        for choice in getattr(field, "choices", None) or ()
    ]
    named = {value for value, _ in choices if isinstance(value, str)}
    return named | (set(STUCK) if "orders" in packages else set())


def strings(file: Path) -> Iterator[str]:
    """Yield the strings of a file without its docstrings, which no program reads."""
    tree = ast.parse(file.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def named(text: str, table: str) -> bool:
    """Return whether a text names a table. One that is an ordinary word counts alone or in SQL only."""
    if "_" in table:
        return re.search(rf"\b{table}\b", text) is not None
    sql = rf"(?i)\b(from|join|into|update|table|only)\s+\"?{table}\b"
    return text == table or re.search(sql, text) is not None


def words(package: str) -> Callable[[str], set[str]]:
    """Return the function that finds in a text the words of packages above this one."""
    upper = above(package)
    own = [name for name in PACKAGES if name not in upper]
    strange_tables, own_tables = tables(upper), tuple(tables(own))
    strange_states = states(upper) - states(own) - ORDINARY
    labels = (
        re.compile(rf"\b({'|'.join(config_of(name).label for name in upper)})([._])[A-Za-z]\w*")
        if upper
        else None
    )

    def find(text: str) -> set[str]:
        words = {table for table in strange_tables if named(text, table)}
        words |= {state for state in strange_states if text == state or f"'{state}'" in text}
        for match in labels.finditer(text) if labels else ():
            if not match[0].startswith(own_tables):
                words.add(match[1] + match[2])
        if "notifications" in upper and re.search(r"(?i)\be-mails?\b(?! address)", text):
            words.add("e-mail")
        return words

    return find


def scan(package: str) -> Found:
    find = words(package)
    files = [file for file in files_of(package) if "migrations" not in file.parts]
    return {
        (str(file.relative_to(PROJECT)), word)
        for file in files
        for text in strings(file)
        for word in find(text)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_no_string_names_what_belongs_to_a_package_above(package):
    expected = {pair for pair in ALLOWED if pair[0].startswith(f"{package}/")}
    assert scan(package) == expected


@pytest.mark.parametrize(
    ("package", "text", "word"),
    [
        ("runtime", "SELECT FROM email_notifications WHERE id = 1", "email_notifications"),
        ("runtime", "UPDATE orders SET status = 1", "orders"),
        ("web", "admin:orders_order_change", "orders_"),
        ("web", "orders.view_order", "orders."),
        ("retention", "processed_events", "processed_events"),
        ("events", "status = 'part_refunded'", "part_refunded"),
        ("events", "unpaid", "unpaid"),
        ("retention", "no e-mail is lost", "e-mail"),
        ("outbox", "orders.view_order", "orders."),
        ("orders", "outbox.poll", "outbox."),
    ],
)
def test_the_search_finds(package, text, word):
    assert word in words(package)(text)


def test_the_search_leaves_what_is_a_packages_own():
    assert words("operations")("orders.view_order of email_notifications, 'paid'") == set()
    assert words("events")("SELECT FROM outbox_events") == set()
    assert words("web")("Use an e-mail address like alice@example.com. Read the orders.") == set()
