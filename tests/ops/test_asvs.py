"""asvs.txt lists OWASP ASVS 5.0: each requirement once, each test exists, and the page names the rest."""

from __future__ import annotations

import re
from collections import Counter

from local.machine import PROJECT

#: The requirements of levels 1 and 2, by chapter.
REQUIREMENTS = {
    **{1: 27, 2: 11, 3: 19, 4: 10, 5: 9, 6: 35, 7: 18, 8: 7, 9: 7},
    **{10: 29, 11: 14, 12: 9, 13: 13, 14: 9, 15: 13, 16: 16, 17: 7},
}
LINE = re.compile(r"^(\d+)\.(\d+)\.(\d+) ([12]) (met|not met:|not ours:) (\S.*)$")
LINES = [
    line
    for line in (PROJECT / "tests/ops/asvs.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def test_each_requirement_has_one_line() -> None:
    assert all(LINE.match(line) for line in LINES)
    numbers = [line.split()[0] for line in LINES]
    assert len(set(numbers)) == len(numbers) == sum(REQUIREMENTS.values()) == 253
    assert Counter(int(number.partition(".")[0]) for number in numbers) == REQUIREMENTS


def test_each_test_that_meets_one_exists() -> None:
    for line in LINES:
        kind, told = line.split()[2], line.split()[-1]
        if kind == "met":
            path, _, name = told.partition("::")
            source = (PROJECT / path).read_text()
            assert "def test_" in source if name == "*" else f"def {name}(" in source, line


def test_the_page_names_what_is_not_met() -> None:
    [named] = re.findall(r"^\*Not met\*: (.+?)\.$", _page(), re.MULTILINE | re.DOTALL)
    lines = [line for line in LINES if line.split()[2:4] == ["not", "met:"]]
    assert re.findall(r"\d+\.\d+\.\d+", named) == [line.split()[0] for line in lines]


def _page() -> str:
    return (PROJECT / "docs/explain/security.md").read_text()
