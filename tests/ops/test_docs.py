"""The docs name files and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from local.machine import PROJECT

PAGES = [
    PROJECT / "README.md",
    PROJECT / "tests" / "pairs" / "README.md",
    *sorted((PROJECT / "docs").rglob("*.md")),
]
DECISIONS = sorted((PROJECT / "docs" / "adr").glob("0*.md"))
WALKS = [PROJECT / "docs" / "explain" / name for name in ("an-email.md", "a-payment.md")]


def steps(walk: Path) -> list[str]:
    return re.findall(r"^\d+\. (.*?)(?=^\d+\. |^$|\Z)", walk.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.stem)
def test_a_walk_names_each_file_once_and_what_is_in_it(walk: Path) -> None:
    visited: list[str] = []
    for step in steps(walk):
        paths = re.findall(r"\*\*(.+?)\*\*", step)
        visited += paths
        source = "".join((PROJECT / path).read_text() for path in paths)
        if named := re.match(r"\*\*.+?\*\*: `(\w+)`", step):
            assert re.search(rf"(def|class) {named[1]}\b|^{named[1]}\b.* =", source, re.MULTILINE), step
    assert len(visited) > 10
    assert len(visited) == len(set(visited))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_a_link_leads_to_a_file(page: Path) -> None:
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_tests_that_the_docs_name_exist() -> None:
    files = list((PROJECT / "tests").rglob("*.py"))
    sources = "\n".join([*(path.name for path in files), *(path.read_text() for path in files)])
    named = {name for page in PAGES for name in re.findall(r"`(test_[\w…]+(?:\.py)?)`", page.read_text())}
    assert len(named) > 20
    assert [name for name in named if name.rstrip("…_") not in sources] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_short_and_in_the_index(page: Path) -> None:
    text = page.read_text()
    found = re.match(r"# (\d+)\. (.+)\n\nStatus: (.+)\n", text)
    assert found, "a page begins with its number, its title, and its status"
    number, title, status = found.groups()
    assert int(number) == int(page.name[:4])
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert len(text.split()) <= 200
    line = f"| [{number}]({page.name}) | {title} | {status} |"
    assert (page.parent / "README.md").read_text().splitlines().count(line) == 1
