"""Compile and render templates of the database, within limits that hold for every order.

The data are texts, numbers, and lists of mappings of both, never Python objects. A template may extend and
include the files of the e-mails, which the limits trust, because who deploys orderpost wrote them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    FileSystemLoader,
    PrefixLoader,
    StrictUndefined,
    Template,
    meta,
    nodes,
    select_autoescape,
)
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from notifications.parts import Part, install_sentences
from notifications.sandboxed.rules import GLOBALS, NUMBER_LIMIT, SOURCE_LIMIT, Refused, check_rules

#: The most numbers of one range, steps of all loops in one part, and characters of one part's output.
RANGE_LIMIT = 100
STEPS_LIMIT = 50_000
OUTPUT_LIMIT = 300_000
#: The steps of an included file. Each other node in a loop is one step of each round.
INCLUDE_STEPS = 50


class LimitReached(Exception):
    """A template is not rendered to its end, because it takes too long or its output is too long."""


@dataclass(slots=True)
class _Left:
    """The steps of loops that one part may still take."""

    steps: int


_left: ContextVar[_Left] = ContextVar("left")


def sandbox(*, folders: Sequence[str | Path]) -> ImmutableSandboxedEnvironment:
    """Return an environment whose templates may use the files of the folders, of the first that has one.

    The last folder is the project's own, whose files are also named `orderpost/<name>`.
    """
    own = PrefixLoader({"orderpost": FileSystemLoader(folders[-1])})
    loaders: list[BaseLoader] = [FileSystemLoader(folders), own]
    environment = _Sandbox(
        loader=ChoiceLoader(loaders),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        auto_reload=False,
        optimized=False,  # it calculates at compilation, and takes seconds for long chains of filters
    )
    install_sentences(environment)
    environment.globals["range"] = _short_range
    environment.filters["_counted"] = _count_steps
    return environment


class _Sandbox(ImmutableSandboxedEnvironment):
    """Calculates with numbers alone, because a text that is multiplied or formatted can fill the memory."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator not in "+-%" or not all(isinstance(one, int) for one in (left, right)):
            raise TypeError(f"{operator} is only for whole numbers")
        result = super().call_binop(context, operator, left, right)
        if abs(result) > NUMBER_LIMIT:
            raise LimitReached("A number is too large.")
        return result


def _short_range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > RANGE_LIMIT:
        raise LimitReached(f"A range has at most {RANGE_LIMIT} numbers.")
    return found


def _count_steps(values: Iterable[Any], steps: int) -> list[Any]:
    """Return the values of a loop whose round takes so many steps."""
    left = _left.get()
    taken = list(islice(values, left.steps // steps + 1))
    left.steps -= len(taken) * steps
    if left.steps < 0:
        raise LimitReached(f"The loops take more than {STEPS_LIMIT} steps.")
    return taken


def _steps_of(loop: nodes.For) -> int:
    return sum(INCLUDE_STEPS if isinstance(node, nodes.Include) else 1 for node in loop.find_all(nodes.Node))


def compile_part(
    environment: ImmutableSandboxedEnvironment,
    *,
    name: str,
    source: str,
    attributes: Collection[str] | None = None,
    known: Collection[str] | None = None,
) -> Template:
    """Compile a part of a template of the database, such as "body.html".

    With `attributes` and `known`, refuse other names after a point and other variables. Raise `Refused`, or
    Jinja2's `TemplateSyntaxError`.
    """
    if len(source) > SOURCE_LIMIT:
        raise Refused(f"This has more than {SOURCE_LIMIT} characters.", line=1)
    tree = environment.parse(source, name, name)
    check_rules(tree, attributes=attributes)
    if known is not None and (unknown := _undeclared(tree, environment) - {*known, *GLOBALS}):
        first = min(unknown)
        line = next((node.lineno for node in tree.find_all(nodes.Name) if node.name == first), 1)
        raise Refused(f"The variable {first} is unknown.", line=line)
    for loop in tree.find_all(nodes.For):
        steps = nodes.Const(_steps_of(loop), lineno=loop.lineno)
        loop.iter = nodes.Filter(loop.iter, "_counted", [steps], [], None, None, lineno=loop.lineno)
    code = environment.compile(tree, name, name)
    return Template.from_code(environment, code, environment.make_globals(None))


def _undeclared(tree: nodes.Template, environment: ImmutableSandboxedEnvironment) -> set[str]:
    """Return what `meta.find_undeclared_variables` does, without the optimizer, which takes seconds."""
    tracking = meta.TrackingCodeGenerator(environment)
    tracking.optimizer = None
    tracking.visit(tree)
    return tracking.undeclared_identifiers


def limited(template: Template) -> Part:
    """Return a function that renders a template, and raises `LimitReached` beyond the limits."""

    def render(data: Mapping[str, Any], /) -> str:
        token = _left.set(_Left(STEPS_LIMIT))
        try:
            chunks, size = [], 0
            for chunk in template.generate(data):
                size += len(chunk)
                if size > OUTPUT_LIMIT:
                    raise LimitReached(f"The output has more than {OUTPUT_LIMIT} characters.")
                chunks.append(chunk)
            return "".join(chunks)
        finally:
            _left.reset(token)

    return render
