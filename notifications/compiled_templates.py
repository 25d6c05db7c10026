"""Compile a Django template for one language: parents, blocks and includes in place, sentences translated.

Django looks up parents and includes and translates each sentence at every rendering, which is three quarters
of the time that an e-mail takes. A template with tags that are not handled here is rendered by Django as it
is, and so is a value that is no plain string.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from itertools import groupby
from typing import Any

from django.template import Context, Engine, Template
from django.template.base import FilterExpression, Node, NodeList, Origin, TextNode, VariableNode
from django.template.defaulttags import CommentNode, ForNode, IfNode, LoadNode
from django.template.loader_tags import BlockNode, ExtendsNode, IncludeNode
from django.templatetags.i18n import BlockTranslateNode, TranslateNode
from django.utils import translation
from django.utils.safestring import mark_safe

Blocks = Mapping[str, BlockNode]
MAX_DEPTH = 20  # of includes: one that includes itself is left to Django


class _LeftToDjango(Exception):
    """The template uses something that is not compiled."""


@functools.lru_cache(maxsize=1024)
def compiled(engine: Engine, name: str, language: str) -> Template:
    """Return the template of that name, compiled for a language; it renders as Django's own would.

    It is compiled once. A file that changes later is not read again.
    """
    original = engine.get_template(name)
    template = Template(original.source, original.origin, original.name, engine)
    try:
        with translation.override(language):
            template.nodelist = _Compiler(engine, escapes=name.endswith(".html")).template(name, depth=0)
    except _LeftToDjango:
        return original
    return template


class _Compiler:
    def __init__(self, engine: Engine, *, escapes: bool) -> None:
        self._engine = engine
        self._context = Context(autoescape=escapes, use_l10n=False, use_tz=False)
        self._words: dict[str, str] = {}  # by name: `{% translate "…" as name %}`

    def template(self, name: str, *, depth: int) -> NodeList:
        """Return the nodes of a template whose parents' blocks are replaced by its own."""
        if depth > MAX_DEPTH:
            raise _LeftToDjango
        blocks: dict[str, BlockNode] = {}
        origins: list[Origin] = []
        while True:
            # Without its own origins: a file may extend the one of the same name that it replaces.
            found, origin = self._engine.find_template(name, skip=list(origins) or None)
            if "block.super" in str(found.source):
                raise _LeftToDjango
            origins.append(origin)
            # Parsed anew: what is kept in Django's cache must not change.
            nodes = Template(found.source, origin, found.name, self._engine).nodelist
            for block in nodes.get_nodes_by_type(BlockNode):
                assert isinstance(block, BlockNode)
                blocks.setdefault(str(block.name), block)
            extends: Any = next((node for node in nodes if isinstance(node, ExtendsNode)), None)
            if extends is None:
                # What a block or an include names is unknown outside of it, so only these are replaced.
                outermost = [self._named(node) if depth == 0 else node for node in nodes]
                return self._list(outermost, blocks, depth)
            name = _constant(extends.parent_name)

    def _list(self, nodes: Iterable[Node], blocks: Blocks, depth: int) -> NodeList:
        flat = NodeList()
        for kind, group in groupby(self._nodes(nodes, blocks, depth), type):
            if kind is TextNode:
                flat.append(TextNode("".join(node.s for node in group)))  # type: ignore[attr-defined]
            else:
                flat += group
        return flat

    def _nodes(self, nodes: Iterable[Node], blocks: Blocks, depth: int) -> Iterator[Node]:
        for node in nodes:
            kind = type(node)  # a subclass may do anything
            if kind is TextNode:
                yield node
            elif kind is VariableNode:
                yield self._variable(node)
            elif kind is TranslateNode:
                yield TextNode(self._translated(node))
            elif kind is BlockTranslateNode:
                yield _sentence(node)
            elif kind is BlockNode:
                yield from self._nodes(blocks[node.name].nodelist, blocks, depth)  # type: ignore[attr-defined]
            elif kind is IncludeNode:
                yield from self._included(node, depth)
            elif kind is _Named:
                self._words[node.name] = node.text  # type: ignore[attr-defined]
                yield node
            elif kind is IfNode:
                node.conditions_nodelists = [  # type: ignore[attr-defined]
                    (condition, self._list(branch, blocks, depth))
                    for condition, branch in node.conditions_nodelists  # type: ignore[attr-defined]
                ]
                yield node
            elif kind is ForNode:
                if not self._words.keys().isdisjoint(node.loopvars):  # type: ignore[attr-defined]
                    raise _LeftToDjango
                for name in ("nodelist_loop", "nodelist_empty"):
                    setattr(node, name, self._list(getattr(node, name), blocks, depth))
                yield node
            elif kind not in (LoadNode, CommentNode):
                raise _LeftToDjango

    def _included(self, node: Any, depth: int) -> Iterator[Node]:
        if node.extra_context or node.isolated_context:
            raise _LeftToDjango
        yield from self.template(_constant(node.template), depth=depth + 1)

    def _named(self, node: Any) -> Node:
        if type(node) is not TranslateNode or not node.asvar:
            return node  # type: ignore[no-any-return]
        name, node.asvar = node.asvar, None
        return _Named(name, self._translated(node))

    def _variable(self, node: Any) -> Node:
        expression = node.filter_expression
        if str(expression) in self._words:
            return TextNode(self._words[str(expression)])
        names = expression.var.lookups if expression.is_var and not expression.filters else None
        if names is None or len(names) > 2 or expression.var.translate:
            return node  # type: ignore[no-any-return]
        return _Variable(node, names)

    def _translated(self, node: Any) -> str:
        expression = node.filter_expression
        if node.asvar or node.noop or expression.filters or expression.var.literal is None:
            raise _LeftToDjango
        _message_context(node)
        return str(node.render(self._context))


def _constant(expression: FilterExpression) -> str:
    if expression.is_var or expression.filters or not isinstance(expression.var, str):
        raise _LeftToDjango
    return str(expression.var)


def _sentence(node: Any) -> Node:
    if node.asvar:
        raise _LeftToDjango
    if node.plural or node.extra_context:
        return node  # type: ignore[no-any-return]
    text, names = node.render_token_list(node.singular)
    context = _message_context(node)
    message = translation.pgettext(context, text) if context else translation.gettext(text)
    try:
        blank = message % dict.fromkeys(names, "")
    except (KeyError, ValueError):
        return node  # type: ignore[no-any-return] # a broken translation: Django falls back to English
    return _Sentence(node, message, names) if names else TextNode(blank)


def _message_context(node: Any) -> str:
    return _constant(node.message_context) if node.message_context else ""


class _Named(Node):
    """`{% translate "…" as name %}`, translated. Most uses of the name are replaced by its text."""

    child_nodelists = ()

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, mark_safe(text)  # noqa: S308 - escaped when it was translated

    def render(self, context: Context) -> str:
        context[self.name] = self.text
        return ""

    render_annotated = render


class _Variable(Node):
    """A variable without filters."""

    child_nodelists = ()

    def __init__(self, original: VariableNode, names: tuple[str, ...]) -> None:
        self.original = original
        self.first, *self.more = names

    def render(self, context: Context) -> str:
        value = context.get(self.first)
        for name in self.more:
            value = value.get(name) if type(value) is dict else None
        if type(value) is str:
            return escape(value) if context.autoescape else value
        return self.original.render(context)

    render_annotated = render


class _Sentence(Node):
    """A translated sentence with variables."""

    child_nodelists = ()

    def __init__(self, original: BlockTranslateNode, message: str, names: Iterable[str]) -> None:
        self.original = original
        self.message = message
        self.names = tuple(names)

    def render(self, context: Context) -> str:
        values = {}
        for name in self.names:
            value = context.get(name)
            if type(value) is not str:
                return self.original.render(context)
            values[name] = escape(value) if context.autoescape else value
        return self.message % values

    render_annotated = render
