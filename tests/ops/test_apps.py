"""The pages of docs/reference say what the code does. Logs, metrics and settings have tests of their own."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from django.conf import settings
from django.contrib import admin
from django.core.management import get_commands

from config.help import OURS, our_commands
from local.machine import PROJECT
from notifications.admin import email_actions
from notifications.api import urls as notifications_urls
from orders import bodies, emails
from orders.api import timeline
from orders.api import urls as orders_urls
from outbox.api import event_bodies, parsers
from outbox.events.consuming import envelope
from outbox.models import jobs
from tests.kit import warm
from tests.kit.words import (
    EVENTS,
    ApiToken,
    commands,
    consumer,
    find_types,
    pages,
    problems,
    purge,
    relay,
    webhooks,
)

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


def test_each_setting_to_leave_alone_names_a_page_that_tells_when_to_change_it() -> None:
    part = (FOLDER / "configuration.md").read_text().partition("\n## Leave these alone")[2]
    told = 0
    for row in re.findall(r"^\| `.*", part, re.M):
        names, *_, when = [cell.strip() for cell in row.strip("|").split("|")]
        links = re.findall(r"\]\(([^)#]+)", when)
        text = "".join((FOLDER / link).read_text() for link in links)
        missing = {name for name in code(names) if not re.search(rf"\b{name.strip('…')}", text)}
        assert links and not missing, (names, missing)
        told += 1
    assert told > 30


def test_the_example_has_the_settings_that_a_shop_must_decide_and_starts() -> None:
    part = (FOLDER / "configuration.md").read_text().partition("\n## Unknown variables")[0]
    example = dict(
        line.split("=", 1) for line in part.partition("```sh\n")[2].partition("```")[0].splitlines()
    )
    of_its_provider = {"POSTMARK_SERVER_TOKEN", "POSTMARK_WEBHOOK_BASIC_AUTH"}
    decided = {name for row in rows("configuration.md", "You must decide") for name in code(row[0])}
    assert example.keys() == decided | of_its_provider and len(decided) <= 18
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **example}
    done = warm.run([sys.executable, "manage.py", "check", "--deploy"], environment=environment)
    assert done.returncode == 0, done.stderr
    warned = set(re.findall(r"\((\w+\.[WE]\d+)\)", done.stderr))
    assert warned == {"notifications.W003"}, done.stderr  # the example's values


def test_the_table_of_the_api_is_the_urls_with_their_scopes() -> None:
    routes = {
        (method.upper(), "/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(route.pattern))): view
        for route in [*orders_urls.urlpatterns, *notifications_urls.urlpatterns]
        for view in [vars(route.callback)["cls"]]
        for method in ("get", "post", "put", "patch", "delete")
        if hasattr(view, method)
    }
    described = {
        tuple(call.split()): scope.strip("`")
        for scope, calls in rows("api.md", "Endpoints")
        for call in code(calls)
    }
    assert described == {call: view.scopes[call[0]] for call, view in routes.items()}
    assert set(described.values()) == set(ApiToken.SCOPES)


def test_the_table_of_problems_has_each_type() -> None:
    described = [(slug, int(kind[:3])) for kind, _ in rows("api.md", "Errors") for slug in code(kind)]
    assert sorted(described) == sorted((type.slug, type.status) for type in find_types().values())


def test_the_help_shows_our_commands_first_with_one_line_each() -> None:
    done = warm.run([sys.executable, "manage.py", "help"], environment=os.environ)
    assert done.returncode == 0, done.stderr
    ours, _, others = done.stdout.partition("Django's")
    lines = dict(line.strip().split(maxsplit=1) for line in ours.splitlines()[2:] if line)
    assert lines == our_commands()
    assert lines.keys() == {name for name, app in get_commands().items() if app in OURS}
    assert {name for name, line in lines.items() if not 20 < len(line) <= 100} == set()
    assert "makemigrations" in others and not lines.keys() & set(others.split())


@pytest.mark.parametrize("words", [["help", "--commands"], ["help", "status"], ["--help"]])
def test_djangos_other_ways_to_help_still_work(words: list[str]) -> None:
    done = warm.run([sys.executable, "manage.py", *words], environment=os.environ)
    assert done.returncode == 0 and "status" in done.stdout, done.stderr


def test_the_help_names_a_wrong_setting() -> None:
    done = warm.run([sys.executable, "manage.py", "help"], environment=os.environ | {"POLL_INTERVAL": "0"})
    assert "POLL_INTERVAL" in done.stdout + done.stderr


def test_the_tables_of_limits_have_the_numbers_of_the_code() -> None:
    purged = {rule.table: rule.days for rule in purge.rules()}
    limits = {
        "body of a request or webhook's post": settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
        "levels in a request's body": parsers.MAX_DEPTH,
        "amount, in minor units": bodies.MAX_AMOUNT,
        "events of a request": event_bodies.MOST_EVENTS,
        "items of an order": bodies.MAX_ITEMS,
        "items that an e-mail shows": emails.SHOWN_ITEMS,
        "results of a page": pages.MAX_SIZE,
        "errors that a 400 lists": problems.MAX_ERRORS,
        "entries of a timeline in the API": timeline.MOST,
        "event, in or out": envelope.LARGEST,
        "levels in an inbound event": envelope.DEEPEST,
        "e-mails that a command names": commands.MOST_NAMED,
        "e-mails of a search that an action changes": email_actions.MAX_ROWS,
        "tries of an inbound event": consumer.TRIES,
        "tries of a job's batch": jobs.MAX_TRIES,
        "wrong passwords before a pause of 5 minutes": settings.AXES_FAILURE_LIMIT,
        "answers of idempotency keys": purged["idempotency_keys"],
        "expired and revoked tokens": purged["api_tokens"],
        "ended and failed jobs": purged["bulk_jobs"],
        "names and addresses of wrong logins": purged["axes_accessattempt"],
    }
    assert settings.DATA_UPLOAD_MAX_MEMORY_SIZE == webhooks.MOST_BYTES and envelope.LARGEST == relay.TOO_LARGE
    cells = rows("limits.md", "Sizes and counts") + rows("limits.md", "Kept")
    described = {what: int(most.partition(" ")[0].replace(",", "")) for what, most in cells}
    assert described == limits


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
