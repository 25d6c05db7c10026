"""docs/explain/architecture.md lists what can be registered, and no module sets another one's global."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.machine import PROJECT

PACKAGES = (
    *("local", "config", "operations", "shop_connections", "orders", "outbox", "notifications", "events"),
    *("retention", "web", "runtime"),
)
PAGE = PROJECT / "docs" / "explain" / "architecture.md"
CHANGES = {"append", "extend", "add", "update", "insert", "setdefault", "clear", "pop", "remove"}
#: A line of the table: what, `module`: `function`, …, packages
LINE = re.compile(r"^\| [^|]+ \| `([\w/]+)`: ([^|]+) \| ([^|]+) \|$", re.MULTILINE)

Place = tuple[str, str]  # a module, and a name in it


class Module:
    """A module's syntax, and what its names mean."""

    def __init__(self, name: str, source: str, names: frozenset[str]) -> None:
        self.name, self.package, self.tree = name, name.partition(".")[0], ast.parse(source)
        self.imported: dict[str, Place] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    module = f"{node.module}.{alias.name}"
                    place = (module, "") if module in names else (node.module, alias.name)
                    if place[0] in names:
                        self.imported[alias.asname or alias.name] = place
        self.globals = {
            target.id
            for node in self.tree.body
            for target in targets_of(node)
            if isinstance(target, ast.Name)
        }

    def meaning(self, node: ast.expr) -> Place | None:
        """Return the module and the name that an expression means, if it is another module's."""
        match node:
            case ast.Name(id=name) if self.imported.get(name, ("", ""))[1]:
                return self.imported[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                module, inner = self.imported.get(name, ("", "?"))
                return (module, attribute) if not inner else None
        return None

    def others_changed(self) -> Iterator[tuple[int, Place]]:
        """Yield the globals of other modules that this one assigns or changes."""
        for node in ast.walk(self.tree):
            for target in changed_by(node):
                if (place := self.meaning(base_of(target))) is not None:
                    yield target.lineno, place

    def registers(self) -> set[str]:
        """Return the functions and classes that change a global of this module."""
        return {
            node.name
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            for inner in ast.walk(node)
            for target in changed_by(inner)
            if isinstance(base := base_of(target), ast.Name) and base.id in self.globals
        }

    def at_start(self) -> Iterator[Place]:
        """Yield what is called at the module's import, and in `ready()`, also by its own functions."""
        functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        waiting: list[ast.AST] = [*self.tree.body]
        while waiting:
            match waiting.pop():
                case ast.FunctionDef() as function:
                    waiting += function.body if function.name == "ready" else ()
                    used = function.decorator_list
                    waiting += used
                case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                    used = []
                case ast.Call() as call:
                    if isinstance(call.func, ast.Name) and call.func.id in functions:
                        waiting += functions.pop(call.func.id).body
                    used = [call.func]
                    waiting += ast.iter_child_nodes(call)
                case node:
                    used = []
                    waiting += ast.iter_child_nodes(node)
            yield from filter(None, map(self.meaning, used))


def targets_of(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign():
            return [
                part
                for target in node.targets
                for part in (target.elts if isinstance(target, ast.Tuple) else [target])
            ]
        case ast.AnnAssign() | ast.AugAssign():
            return [node.target]
    return []


def changed_by(node: ast.AST) -> list[ast.expr]:
    """Return what a statement assigns, and what a call such as `append` changes."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in CHANGES:
            return [value]
    return [target for target in targets_of(node) if isinstance(target, ast.Attribute | ast.Subscript)]


def base_of(target: ast.expr) -> ast.expr:
    return target.value if isinstance(target, ast.Subscript) else target


def read_modules(root: Path) -> dict[str, Module]:
    files = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for package in PACKAGES
        for file in (root / package).rglob("*.py")
        if "migrations" not in file.parts
    }
    names = frozenset(files)
    return {name: Module(name, file.read_text(), names) for name, file in files.items()}


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read_modules(PROJECT)


def registered(modules: dict[str, Module]) -> dict[Place, set[str]]:
    """Return what registers something at the start for another package, and those packages."""
    registries = {(module.name, name) for module in modules.values() for name in module.registers()}
    users: defaultdict[Place, set[str]] = defaultdict(set)
    for module in modules.values():
        for place in module.at_start():
            if place in registries and not place[0].startswith(f"{module.package}."):
                users[place].add(module.package)
    return dict(users)


def test_no_module_changes_a_global_of_another_one(modules):
    changed = [(name, *change) for name, module in modules.items() for change in module.others_changed()]
    assert changed == []


@pytest.mark.parametrize(
    "statement",
    ["shop_texts.log = []", "shop_texts.log.append({})", "shop_texts.log[0] = {}", "log.append({})",
     "log[:] = []", "shop_texts.find, shop_texts.x = 1, 2"],
)  # fmt: skip
def test_a_module_that_does_is_noticed(statement):
    path = "notifications.content"
    source = f"from {path} import shop_texts\nfrom {path}.shop_texts import log\n{statement}\n"
    module = Module("orders.apps", source, frozenset({"notifications", f"{path}.shop_texts", "orders.apps"}))
    assert list(module.others_changed())


def test_the_architecture_lists_what_can_be_registered_where_and_by_whom(modules):
    listed = {
        (path.replace("/", "."), name): set(re.findall(r"\w+", users))
        for path, functions, users in LINE.findall(PAGE.read_text())
        for name in re.findall(r"`(\w+)`", functions)
    }
    assert listed == registered(modules)
