"""The documentation names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.local.machine import PROJECT

PAGES = sorted(
    [*(PROJECT / "docs").glob("*.md"), *(PROJECT / "docs" / "adr").glob("*.md"), PROJECT / "README.md"]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_a_page_links_to_files_and_headings_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name) if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name} links to {target}"


def test_extending_names_tests_that_exist() -> None:
    text = (PROJECT / "docs" / "extending.md").read_text()
    for name in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (PROJECT / name).exists(), name
    sources = "\n".join(path.read_text() for path in (PROJECT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in sources, name
