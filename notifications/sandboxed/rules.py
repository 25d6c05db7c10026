"""Decide what a template of the database may contain.

The rules allow what an e-mail needs and refuse everything else, so nothing has to be known about what else
Jinja2 and Python can do. No allowed expression makes a text much longer than its parts, and `environment`
counts the steps of loops and the characters of the output.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from jinja2 import nodes
from jinja2.defaults import DEFAULT_NAMESPACE

#: The most characters of one part.
SOURCE_LIMIT = 50_000
#: Expressions and statements may be this deep inside each other. Python's stack allows much more.
DEPTH_LIMIT = 60
FILTERS = frozenset(
    [
        *("capitalize", "default", "e", "escape", "first", "int", "last", "length", "lower", "title", "trim"),
        "upper",
    ]
)
TESTS = frozenset(["defined", "divisibleby", "even", "none", "odd", "undefined"])
LOOP = frozenset(
    ["first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0"]
)
SENTENCES = frozenset(["gettext", "ngettext", "npgettext", "pgettext"])
#: The functions that Jinja2 and its extension give each template.
_FUNCTIONS = frozenset([*DEFAULT_NAMESPACE, *SENTENCES, "_"])
#: The names that a template may use without being given.
GLOBALS = SENTENCES | {"range"}
#: Python formats a sentence with the values, so any other % could ask for a width of a billion.
_SENTENCE = re.compile(r"(?:[^%]|%%|%\(\w+\)s)*")
_ALLOWED = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Block,
    nodes.Extends,
    nodes.Include,
    nodes.If,
    nodes.For,
    nodes.Assign,
    nodes.Name,
    nodes.Const,
    nodes.List,
    nodes.Tuple,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Filter,
    nodes.Test,
    nodes.Call,
    nodes.Keyword,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Add,
    nodes.Sub,
    nodes.Mod,
    nodes.Neg,
)
#: The words that an author writes for the refused nodes.
_WRITTEN = {
    nodes.Mul: "*",
    nodes.Pow: "**",
    nodes.Div: "/",
    nodes.FloorDiv: "//",
    nodes.Pos: "+",
    nodes.Concat: "~",
    nodes.Dict: "{ }",
    nodes.Macro: "macro",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter",
    nodes.AssignBlock: "endset",
    nodes.With: "with",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Scope: "autoescape",
    nodes.NSRef: "namespace",
}


class Refused(Exception):
    """A template contains something that the rules do not allow."""

    def __init__(self, text: str, *, line: int) -> None:
        super().__init__(text)
        self.line = line


def check_rules(tree: nodes.Template, *, attributes: Collection[str] | None) -> None:
    """Raise `Refused` for the first thing in a parsed template that the rules do not allow.

    `attributes` are the names that may follow a point, such as `name` in `item.name`. With None, every name
    may that does not begin with an underscore.
    """
    allowed = None if attributes is None else LOOP | set(attributes)
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    line = 1
    for node, depth in _walk(tree):
        line = node.lineno or line
        why = _why_not(node, allowed)
        if isinstance(node, nodes.Name) and node.name in _FUNCTIONS and id(node) not in called:
            why = f"The name {node.name} is not allowed."
        if depth > DEPTH_LIMIT:
            why = "This is too deeply nested."
        if why:
            raise Refused(why, line=line)


def _walk(tree: nodes.Template) -> Iterator[tuple[nodes.Node, int]]:
    """Yield the nodes in the order of the text, with their depth. Do not recurse, because a text may."""
    waiting: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting += [(child, depth + 1) for child in reversed(list(node.iter_child_nodes()))]


def _why_not(node: nodes.Node, attributes: Collection[str] | None) -> str:
    """Return why the rules refuse a node, or "". Do not look at its children."""
    why = ""
    match node:
        case nodes.Filter() | nodes.Test():
            known = FILTERS if isinstance(node, nodes.Filter) else TESTS
            kind = "filter" if isinstance(node, nodes.Filter) else "test"
            if node.name not in known or node.dyn_args or node.dyn_kwargs or node.kwargs:
                why = f"The {kind} {node.name} is not allowed. Use {', '.join(sorted(known))}."
        case nodes.Call():
            why = _why_not_called(node)
        case nodes.Getattr():
            if node.attr.startswith("_"):
                why = f"The attribute {node.attr} is not allowed."
            elif attributes is not None and node.attr not in attributes:
                why = f"The attribute {node.attr} is unknown. Use {', '.join(sorted(attributes))}."
        case nodes.Getitem():
            if not (_is_number(node.arg) or _is_slice(node.arg)):
                why = "Only a number or a slice such as [:2] may be in brackets."
        case nodes.Name():
            if node.name == "self" or node.name.startswith("_"):
                why = f"The name {node.name} is not allowed."
        case nodes.Const():
            if isinstance(node.value, int) and abs(node.value) > NUMBER_LIMIT:
                why = "This number is too large."
        case nodes.Extends() | nodes.Include():
            if not (isinstance(node.template, nodes.Const) and isinstance(node.template.value, str)):
                why = "Name the file in quotes."
        case nodes.For():
            if node.recursive:
                why = "A loop must not be recursive."
        case nodes.Assign():
            if not isinstance(node.target, nodes.Name):
                why = "Set one name at a time."
        case _ if not isinstance(node, _ALLOWED):
            word = _WRITTEN.get(type(node), type(node).__name__.lower())
            why = f"{word} is not allowed in templates of the admin."
    return why


def _why_not_called(node: nodes.Call) -> str:
    name = node.node.name if isinstance(node.node, nodes.Name) else ""
    if node.dyn_args or node.dyn_kwargs or name not in {"super", *GLOBALS}:
        return "A call is not allowed, except super() and range()."
    if name == "super" and (node.args or node.kwargs):
        return "super() has no arguments."
    if name in SENTENCES:
        texts = [arg.value for arg in node.args if isinstance(arg, nodes.Const)]
        wanted = len(node.args) - name.startswith("n")  # the last one is the number of a plural
        if len(texts) < wanted or not all(
            _SENTENCE.fullmatch(text) for text in texts if isinstance(text, str)
        ):
            return "Write a sentence as {% trans %}…{% endtrans %}."
    return ""


#: Numbers are quantities, so nobody needs larger ones.
NUMBER_LIMIT = 10**12


def _is_number(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and type(node.value) is int


def _is_slice(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Slice) and all(
        part is None or _is_number(part) for part in (node.start, node.stop, node.step)
    )
