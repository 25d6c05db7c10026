"""Random lives of shops' orders against the table of who gets an e-mail.

`RANDOM_LIVES=10000` plays so many, and others each time. A difference names its world, which
`World("12").run()` plays again.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.kit.random_lives import run_worlds
from tests.kit.seed import NAME

LIVES = int(os.environ.get("RANDOM_LIVES", "600"))
#: The lives of a world.
_EACH = 12


def test_nobody_is_told_twice_and_nobody_is_forgotten():
    prefix = f"{os.environ[NAME]}." if "RANDOM_LIVES" in os.environ else ""
    differences, told, lives = run_worlds([f"{prefix}{number}" for number in range(-(-LIVES // _EACH))])
    rows = Counter(each.row for each in differences)
    examples = {each.row: each.text for each in reversed(differences)}
    print(f"{lives} lives, e-mails by row:")
    for row, count in told.most_common():
        print(f"  {count:6} {row}")
    listed = [f"{count} times {row!r}, such as\n  {examples[row]}" for row, count in rows.most_common()]
    if listed:
        pytest.fail("\n".join(listed))
