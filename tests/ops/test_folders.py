"""Each folder says what it is for, and an import contract names it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from local.machine import PROJECT
from outbox.bulk import ACTIONS
from outbox.traffic import summed
from tests.kit.words import metrics

PACKAGES = ("local", "config", "orders", "notifications", "outbox")
#: Folders whose names Django or import machinery gives: their place says what they are for.
GIVEN = {"migrations", "commands", "core"}
FOLDERS = sorted(
    path.parent
    for package in PACKAGES
    for path in (PROJECT / package).rglob("__init__.py")
    if not GIVEN & set(path.relative_to(PROJECT).parts)
)


def name_of(folder: Path) -> str:
    return str(folder.relative_to(PROJECT)).replace("/", ".")


def contracted() -> set[str]:
    """Return every module and folder that a contract names."""
    found = set()
    for contract in tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]:
        layers = [name.strip() for layer in contract.get("layers", []) for name in layer.split("|")]
        found |= {f"{container}.{layer}" for container in contract.get("containers", []) for layer in layers}
        found |= (
            set(layers) | set(contract.get("source_modules", [])) | set(contract.get("forbidden_modules", []))
        )
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_says_what_it_is_for_and_why_it_is_large(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert text
    if len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) > 12:
        assert re.search(r"\b(because|find|by their names)\b", text)


def test_an_import_contract_names_each_folder():
    providers = "notifications.providers."
    unnamed = {name_of(folder) for folder in FOLDERS} - contracted()
    assert {name for name in unnamed if not name.startswith(providers)} == set()


def test_the_map_of_contributing_has_each_folder():
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    providers = PROJECT / "notifications" / "providers"
    listed = [folder for folder in FOLDERS if providers not in folder.parents]
    assert [name_of(one) for one in listed if f"{name_of(one).replace('.', '/')}/ " not in text] == []


def test_each_apps_collectors_sums_and_actions_are_found():
    """Django finds these modules by name: one that moved would be missing without any error."""
    assert sorted({read.__module__ for _, read in metrics._readers}) == [
        "notifications.metrics",
        "orders.metrics",
        "outbox.metrics",
    ]
    assert sorted({read.__module__ for read in summed._readers}) == ["notifications.sums", "orders.sums"]
    assert sorted(ACTIONS) == [
        "notifications.give_up",
        "notifications.mark_sent",
        "notifications.render_again",
        "notifications.resend",
        "orders.erase_person",
        "orders.export_person",
        "outbox.discard",
        "outbox.discard_inbound",
        "outbox.replay",
        "outbox.republish",
    ]
