"""The pages of docs/reference say what the code does. Logs, metrics and settings have tests of their own."""

from __future__ import annotations

import json
import re

from django.contrib import admin

from local.machine import PROJECT
from orders.events import EVENTS

FOLDER = PROJECT / "docs" / "reference"


def rows(page: str, section: str) -> list[list[str]]:
    """Return the cells of the table's rows in a section of a page, without its heading."""
    text = (FOLDER / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def code(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_the_table_of_events_has_the_fields_and_statuses_of_the_schemas() -> None:
    schemas = {event.topic: json.loads(event.schema.read_text())["properties"] for event in EVENTS.values()}
    common = set.intersection(*(set(fields) for fields in schemas.values()))
    (text,) = re.findall(
        r"data of an\s+order's event are (.*) and:", (FOLDER / "events.md").read_text(), re.S
    )
    assert code(text) == common
    described = {}
    for topic, fields, status in (row for row in rows("events.md", "Events out") if len(row) == 3):
        if (name := topic.strip("`")) in schemas:
            described[name] = code(fields) - {"sku", "quantity"}, code(status)
    assert described == {
        topic: (set(fields) - common, set(fields["status"]["enum"])) for topic, fields in schemas.items()
    }


def test_the_glossary_explains_each_word_of_the_admins_menu() -> None:
    terms = {
        term
        for bold in re.findall(r"^- \*\*(.+?)\*\*", (FOLDER / "glossary.md").read_text(), re.MULTILINE)
        for term in bold.split(", ")
    }
    pages_with_menu = [page for page in admin.site._registry.values() if hasattr(page, "menu")]
    titles = {item.title for page in pages_with_menu for item in (page.menu, *getattr(page, "more_menu", ()))}
    assert len(titles) > 8
    assert {title.lower().removesuffix("s") for title in titles | {"Overview", "Set-up"}} - terms == set()
