"""What the rules, the dashboards, the docs and the code say of each other."""

from __future__ import annotations

import re

import pytest

from local.machine import PROJECT
from tests.ops.test_alert_rules import alerts, rules
from tests.ops.test_dashboards import DASHBOARDS, queries

DOCS = PROJECT / "docs"
PARTS = ["Customers", "Check", "Do"]
#: Prometheus' own, and node_exporter's.
FOREIGN = re.compile(r"(up|ALERTS|node_\w+)$")


def sections() -> dict[str, str]:
    """Return the runbook's paragraphs by their headings."""
    page = (DOCS / "guides" / "alerts.md").read_text()
    runbook = page.split("\n## Alerts\n", 1)[1].split("\n## ", 1)[0]
    found = re.split(r"^### (.+)\n", runbook, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def named(expr: str) -> set[str]:
    """Return the metrics that a query names."""
    bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"", "", expr)
    bare = re.sub(r"\b(by|on|without|group_left|ignoring) *\([^)]*\)", "", bare)
    return set(re.findall(r"\b(?:orderpost[_:][\w:]+|up|ALERTS|node_\w+)\b", bare))


def family(metric: str) -> str:
    return re.sub(r"_(bucket|count|sum)$", "", metric)


def used() -> set[str]:
    asked = [rule["expr"] for rule in rules()]
    asked += [expr for dashboard in DASHBOARDS.values() for _, expr in queries(dashboard)]
    return {name for expr in asked for name in named(expr)}


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def sources() -> str:
    paths = [
        path
        for app in ("outbox", "notifications", "orders", "config")
        for path in (PROJECT / app).rglob("*.py")
    ]
    return "\n".join(path.read_text() for path in paths)


def test_each_alert_has_a_paragraph_and_each_paragraph_an_alert():
    assert list(sections()) == list(alerts())


@pytest.mark.parametrize("name", alerts())
def test_a_paragraph_says_what_it_means_and_for_whom_what_to_check_and_what_to_do(name):
    text = sections()[name]
    assert text.startswith(f"**{alerts()[name]['labels']['priority']}.** ")
    assert re.findall(r"^- \*(\w+)\*", text, flags=re.MULTILINE) == PARTS


def test_the_metrics_that_rules_and_dashboards_name_are_documented_and_exist():
    page, code = (DOCS / "reference" / "metrics.md").read_text(), sources()
    names = {name for name in used() - recorded() if not FOREIGN.match(name)}
    assert len(names) > 30
    assert {name for name in names if f"`{family(name)}`" not in page} == set()
    declared = {name: family(name).removesuffix("_total").removeprefix("orderpost_") for name in names}
    assert {name for name, end in declared.items() if f'{end}"' not in code} == set()


def test_what_is_recorded_is_used():
    assert recorded() <= used()


def test_a_link_to_a_paragraph_leads_there():
    page = DOCS / "guides" / "alerts.md"
    for target, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text()):
        text = (page.parent / target).read_text() if target else page.read_text()
        headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in anchors, f"{target}#{anchor}"
