"""Each recipe of docs/guides/extend.md: its patch applies, touches the files that the page lists, and works.

A patch of tests/recipes changes a clone of the last commit. There, the commands of its section run, and then
`make lint check`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from local.environment import write_local_env
from local.machine import PROJECT
from tests.kit import prepared, seed
from tests.kit.servers import FIXED

PAGE = PROJECT / "docs" / "guides" / "extend.md"
#: Written by commands or translators, so they are not counted.
NOT_COUNTED = re.compile(r"/migrations/|/locale/")
RENEW = """{patch} does not apply. Renew it in a clean tree:
    git apply --3way {patch}   # solve the conflicts
    git add --all
    git diff --cached >/tmp/renewed && git reset --hard && mv /tmp/renewed {patch}
"""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A patch, the section that describes it, and how many files it may touch."""

    name: str
    section: str
    most: int
    is_done: bool = False  # the tree has the change, so the patch is first applied in reverse

    @property
    def text(self) -> str:
        """The section of the page."""
        match = re.search(rf"^## {re.escape(self.section)}\n(.*?)(?=^## )", PAGE.read_text(), re.M | re.S)
        assert match is not None, f"{PAGE.name} has no section {self.section}"
        return match[1]

    @property
    def listed(self) -> list[str]:
        """The files of the section's table, with `*` for what a developer names."""
        files = []
        for cell in re.findall(r"^\| (.*?) \|", self.text, re.M)[1:]:
            links = [(PAGE.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", cell)]
            files += [str(file.relative_to(PROJECT)) for file in links]
            files += re.findall(r"`([^`]+)`", cell)
        return [re.sub(r"<\w+>", "*", file) for file in files]

    @property
    def commands(self) -> str:
        """The section's commands. `manage.py` is that of the clone."""
        blocks = re.findall(r"^```sh\n(.*?)^```", self.text, re.M | re.S)
        return re.sub(r"^manage\.py", ".venv/bin/python manage.py", "".join(blocks), flags=re.M)


RECIPES = (
    Recipe("order_field", "A field of an order", most=6),
    Recipe("condition", "A condition", most=3),
    Recipe("email_state", "A state of an e-mail", most=8),
    Recipe("event_email", "An e-mail for an event that exists", most=4, is_done=True),
    Recipe("provider", "An e-mail provider", most=6),
    Recipe("language", "A language", most=1),
    Recipe("inbound_event", "An inbound event", most=5),
    Recipe("outgoing_event", "An outgoing event", most=7),
    Recipe("setting", "A setting", most=5),
    Recipe("bulk_action", "A bulk action", most=4),
    Recipe("endpoint", "An endpoint", most=6),
)


def path_of(name: str) -> str:
    return f"tests/recipes/{name}.patch"


def run(command: list[str], *, cwd: Path) -> str:
    """Run a command without this run's servers and settings, and return its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for name in (*FIXED, "DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", prepared.FOLDER, seed.NAME):
        kept.pop(name, None)
    kept["ARGS"] = "-q -n 1"  # of `make test`, because two drills run at once
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def changed(patch: str) -> dict[str, int]:
    """Return the number of lines that a patch adds to each file and takes away from it."""
    lines = run(["git", "apply", "--numstat", patch], cwd=PROJECT).splitlines()
    return {file: int(added) + int(taken) for added, taken, file in (line.split("\t") for line in lines)}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone of the last commit with this checkout's .venv, and what `manage.py` needs to know."""
    clone = tmp_path / "orderpost"
    run(["git", "clone", "--quiet", str(PROJECT), str(clone)], cwd=tmp_path)
    (clone / ".venv").symlink_to(PROJECT / ".venv")
    (clone / "var").mkdir()
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}
    write_local_env(clone / "var" / "local.env", environment=FIXED | nowhere)
    return clone


def apply(name: str, *options: str, clone: Path) -> None:
    patch = path_of(name)
    command = ["git", "apply", *options, str(PROJECT / patch)]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, RENEW.format(patch=patch) + done.stderr


def test_each_patch_is_a_recipe() -> None:
    names = {file.stem for file in (PROJECT / "tests" / "recipes").glob("*.patch")}
    assert names == {recipe.name for recipe in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_patch_applies_to_this_tree(recipe: Recipe) -> None:
    apply(recipe.name, "--check", *(["--reverse"] if recipe.is_done else []), clone=PROJECT)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_patch_touches_the_few_files_that_the_page_lists(recipe: Recipe) -> None:
    files = list(changed(path_of(recipe.name)))
    counted = [file for file in files if not NOT_COUNTED.search(file)]
    assert len(counted) <= recipe.most
    listed = recipe.listed
    assert [file for file in counted if not any(fnmatch(file, pattern) for pattern in listed)] == []
    assert [pattern for pattern in listed if not any(fnmatch(file, pattern) for file in files)] == []
    assert f"(../../{path_of(recipe.name)})" in recipe.text


def test_a_provider_is_its_folder_and_one_line() -> None:
    lines = changed(path_of("provider"))
    outside = {file: count for file, count in lines.items() if "/brevo/" not in file}
    assert outside == {"notifications/providers/registry.py": 1}


@pytest.mark.drill
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_works_as_the_page_says(recipe: Recipe, clone: Path) -> None:
    if recipe.is_done:
        apply(recipe.name, "--reverse", clone=clone)
    apply(recipe.name, clone=clone)
    run(["sh", "-euxc", recipe.commands], cwd=clone)
    run(["make", "lint", "check"], cwd=clone)
