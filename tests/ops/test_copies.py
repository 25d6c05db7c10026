"""Where a list has to be written twice, the second copy equals the first one.

config/roles.py has the roles, and notifications/providers/registry.py the providers. tests/ops compares
the roles of the compose file and of the chart, and tests/providers keeps the names of providers
out of other code.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from local.machine import PROJECT
from notifications.providers import registry
from outbox.telemetry.health import WEB
from tests.kit.roles import OPTIONAL, RUNNING
from tests.ops.test_alert_rules import RULES, alerts

DOCS = PROJECT / "docs"
PROCESSES = [*RUNNING, *OPTIONAL]
WITHOUT_WEBHOOK = {name for name, one in registry.declarations().items() if not one.webhook}


def rows(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    text = page.read_text().partition(f"\n## {heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table, f"{page.name} has no table under {heading}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def providers_in(heading: str) -> list[str]:
    """Return the names of the providers that have a row under a heading of providers.md."""
    return [
        first.lower().removeprefix("amazon ") for first, *_ in rows(DOCS / "guides" / "providers.md", heading)
    ]


def test_the_table_of_processes_has_each_role_with_its_command() -> None:
    table = rows(DOCS / "guides" / "production.md", "Processes")
    assert sorted(first.partition(",")[0] for first, *_ in table) == sorted(PROCESSES)
    for first, command, *_ in table:
        assert command.startswith(f"`orderpost {first.partition(',')[0]}`"), first


def test_each_process_says_its_health_under_the_name_of_its_role() -> None:
    packages = ("config", "orders", "notifications", "outbox")
    code = "".join(path.read_text() for package in packages for path in (PROJECT / package).rglob("*.py"))
    assert {*re.findall(r"\bwatch\(\"(\w+)\"\)", code), WEB} == set(PROCESSES)


def test_prometheus_scrapes_each_role_and_names_the_optional_ones() -> None:
    text = (PROJECT / "docker" / "prometheus" / "prometheus.yml").read_text()
    jobs = {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}
    scraped = [one["labels"]["role"] for one in jobs["orderpost"]["static_configs"]]
    assert scraped == RUNNING
    assert set(re.findall(r"# - \{targets: .* labels: \{role: (\w+)\}", text)) == OPTIONAL


def test_an_alert_tells_of_each_role_that_is_gone() -> None:
    watched = re.findall(
        r'absent\(orderpost_build_info\{job="orderpost", role="(\w+)"\}\)', RULES.read_text()
    )
    assert ["web", *watched] == [*RUNNING, "cdc"]  # the web has an alert of its own
    for role in OPTIONAL:  # an installation without it has no heartbeat
        gone = f'absent(orderpost_build_info{{job="orderpost", role="{role}"}})'
        used = f'and on () orderpost_heartbeat_age_seconds{{name="{role}"}}'
        assert re.search(rf"{re.escape(gone)}\s+{re.escape(used)}", alerts()["ProcessGone"]["expr"])
    assert "ApiDown" in alerts()


def test_each_folder_of_a_provider_is_in_the_list() -> None:
    folders = {path.parent.name for path in Path(registry.__file__).parent.glob("*/__init__.py")}
    assert folders == set(registry.NAMES)


def test_the_docs_list_the_providers_in_their_order() -> None:
    configuration = (DOCS / "reference" / "configuration.md").read_text()
    listed = re.search(r"^\| `EMAIL_PROVIDERS` .*order of preference: (.*?);", configuration, re.MULTILINE)
    readme = re.search(r"an e-mail provider \((.*?)\)", (PROJECT / "README.md").read_text())
    assert listed and readme
    assert re.findall(r"`(\w+)`", listed[1]) == list(registry.NAMES)
    assert re.split(", | or ", readme[1].lower()) == list(registry.NAMES)


def test_the_tables_of_providers_are_complete() -> None:
    assert providers_in("What to set at each") == list(registry.NAMES)
    assert providers_in("What their answers mean") == list(registry.NAMES)
    assert providers_in("Webhooks") == [name for name in registry.NAMES if name not in WITHOUT_WEBHOOK]


def test_an_alert_expects_events_of_each_provider_that_posts_some() -> None:
    assert set(re.findall(r'provider!="(\w+)"', alerts()["EmailWebhooksSilent"]["expr"])) == WITHOUT_WEBHOOK


def test_the_page_about_the_admin_names_the_menu_and_the_tiles_of_the_screen() -> None:
    page = DOCS / "guides" / "admin.md"
    apps = ("outbox", "notifications", "orders")
    code = "".join(path.read_text() for app in apps for path in (PROJECT / app).rglob("*.py"))
    menu = {*re.findall(r"MenuItem\(\d+, \"([^\"]+)\"", code)}
    table = page.read_text().partition("| to | open |")[2].partition("\n\n")[0]
    assert {*re.findall(r"\*([^*]+)\*", table)} <= menu
    tiles = {name for first, *_ in rows(page, "The first page") for name in re.findall(r"\*([^*]+)\*", first)}
    assert len(tiles) > 8
    assert {name for name in tiles if f'"{name.removeprefix("late: ")}"' not in code} == set()
