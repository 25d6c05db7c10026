"""docs/reference/logs.md names every log event, its levels and its fields."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
STACK = "exception"
#: Fields that the page describes once, for all lines.
FAILURE = {"error", STACK}
#: What each line of a transition has, beside `notification_id` or `event_id`.
IDS = {"order_id", "event_type", "correlation_id", "trace_id"}
PACKAGES = ("config", "notifications", "orders", "outbox")


def calls() -> Iterator[tuple[str, str, set[str]]]:
    """Yield event, level and fields of each log call. `write(…)` has a level that was chosen before: ""."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(node, ast.Call) and node.args):
                    continue
                event, function = node.args[0], node.func
                if not (isinstance(event, ast.Constant) and isinstance(event.value, str)):
                    continue
                fields = {word.arg for word in node.keywords if word.arg}
                if "exc_info" in fields or getattr(function, "attr", "") == "exception":
                    fields = fields - {"exc_info"} | {STACK}  # as config.logs renders it
                if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                    if function.value.id.endswith("log") and function.attr in LEVELS:
                        yield event.value, function.attr.replace("exception", "error"), fields
                elif isinstance(function, ast.Name) and function.id == "write" and fields:
                    yield event.value, "", fields


def table() -> dict[str, tuple[set[str], set[str]]]:
    """Return levels and fields by event. The levels are that of the heading and those that the text names."""
    rows = {}
    level = ""
    for line in (ROOT / "docs" / "reference" / "logs.md").read_text().splitlines():
        if line.startswith("### "):
            level = line.removeprefix("### ")
        elif line.startswith("| ") and not line.startswith("| event |"):
            event, text = (cell.strip() for cell in line.strip("|").split("|"))
            assert event not in rows
            more = re.findall(r"(?<!`)\b(warning|error)", text)
            rows[event] = {level, *more}, set(re.findall(r"`(\w+)`", text))
            if "*ids*" in text:
                rows[event][1].update({"event_id", "notification_id", *IDS})
    return rows


def transitions() -> set[str]:
    """Return the events whose lines have the ids. tests/ops/test_transition_lines.py makes each happen."""
    return {event for event, (_, fields) in table().items() if fields >= IDS}


def test_the_table_of_log_events_is_the_codes():
    levels, fields = defaultdict(set), defaultdict(set)
    for event, level, names in calls():
        levels[event] |= {level} - {""}
        fields[event] |= names
    documented = table()
    assert set(documented) == set(fields)
    assert len(fields) > 50
    for event, (known_levels, known_fields) in documented.items():
        assert levels[event] <= known_levels, event
        assert fields[event] - FAILURE <= known_fields, event
