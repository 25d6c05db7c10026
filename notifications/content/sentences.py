"""The sentences of the e-mails' files, in the order in which a customer reads them.

The editor shows them, and an own text may use their variables. A comment at the beginning of a branch of a
file, such as `{# if the order was paid #}`, says when the branch's sentences show.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from jinja2 import Environment, TemplateNotFound, nodes

from notifications.content import samples
from notifications.content.template_files import (
    EXTRA,
    IN_TEXT,
    OURS,
    PLACE,
    SENTENCES,
    Key,
    called,
    environment,
    extra_key,
    plural_rule,
    translations,
)

#: The name of the sentences that all e-mails share, in place of an event.
LAYOUT = "layout"
#: The paragraphs that only editors write, and the words for their places.
EXTRAS = {"before": "Before the order's lines", "after": "After the order's lines"}
#: The variables that every profile gives.
_OF_PROFILES = ("shop_name", "shop_address")
_VARIABLE = re.compile(r"%\((\w+)\)s")
#: Numbers that show which forms of a plural a language has.
_NUMBERS = range(200)


@dataclass(slots=True)
class Sentence:
    """A sentence with all places that it has in an e-mail. `when` is "" if all orders show it."""

    context: str
    msgid: str
    plural: str
    variables: tuple[str, ...]
    is_subject: bool = False
    is_paragraph: bool = False
    is_always: bool = False
    when: str = ""

    def keys(self, language: str) -> list[Key]:
        """Return a key for each form of the language."""
        if not self.plural:
            return [Key(self.context, self.msgid)]
        forms = {plural_rule(translations(language))(number) for number in _NUMBERS}
        return [Key(self.context, self.msgid, self.plural, form) for form in sorted(forms)]


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of one e-mail, or those that all share."""

    all: tuple[Sentence, ...]
    #: The variables that are never empty in this e-mail.
    variables: frozenset[str]
    #: The names of `EXTRAS` that the files have a place for.
    extras: frozenset[str]

    def allowed(self, sentence: Sentence) -> frozenset[str]:
        """Return the variables that an own text of the sentence may use."""
        return self.variables | set(sentence.variables)


def sentences_of(event_type: str) -> Sentences:
    """Return the sentences of an e-mail without those of `LAYOUT`, or these."""
    return _sentences_of(environment(), event_type)


def original(key: Key, language: str) -> str:
    """Return the sentence of a language's catalogue, with variables as in own texts."""
    if not key.msgid:
        return ""
    catalogue = translations(language)
    if key.plural:
        rule = plural_rule(catalogue)
        number = next((number for number in _NUMBERS if rule(number) == key.form), 2)
        if key.context:
            text = catalogue.npgettext(key.context, key.msgid, key.plural, number)
        else:
            text = catalogue.ngettext(key.msgid, key.plural, number)
    else:
        text = catalogue.pgettext(key.context, key.msgid) if key.context else catalogue.gettext(key.msgid)
    return _VARIABLE.sub(r"{\1}", text).replace("%%", "%")


def example_numbers(key: Key, language: str) -> str:
    """Return the first numbers that take the form of a plural's key, such as "2, 3, 4 …"."""
    rule = plural_rule(translations(language))
    numbers = [str(number) for number in _NUMBERS if number and rule(number) == key.form]
    return ", ".join(numbers[:3]) + (" …" if len(numbers) > 3 else "")


@functools.lru_cache(maxsize=64)
def _sentences_of(files: Environment, event_type: str) -> Sentences:
    reader = _TemplateReader(files, event_type)
    shared = _sentences_of(files, LAYOUT).all if event_type != LAYOUT else ()
    skipped = {(sentence.context, sentence.msgid, sentence.plural) for sentence in shared}
    merged: dict[tuple[str, str, str], Sentence] = {}
    for occurrence in reader.read():
        name = (occurrence.context, occurrence.msgid, occurrence.plural)
        # A sentence without letters is a mark, such as the colon of a language.
        if name in skipped or not any(map(str.isalpha, _VARIABLE.sub("", occurrence.msgid))):
            continue
        sentence = merged.setdefault(name, Sentence(*name, variables=()))
        sentence.variables = tuple(dict.fromkeys((*sentence.variables, *occurrence.variables)))
        sentence.is_subject |= occurrence.file.endswith("subject.txt")
        sentence.is_paragraph |= occurrence.is_paragraph
        sentence.is_always |= not occurrence.is_conditional
        sentence.when = sentence.when or occurrence.when
    for sentence in merged.values():
        if sentence.is_always:
            sentence.when = ""
    variables, extras = _never_empty(), reader.extras_in(".html") & reader.extras_in(".txt")
    if event_type == LAYOUT:
        return Sentences(tuple(merged.values()), variables, frozenset())
    always = {name for sentence in merged.values() if sentence.is_always for name in sentence.variables}
    named = {name for kind in samples.kinds()[:1] for name in kind}
    return Sentences(tuple(merged.values()), variables | (always & named), frozenset(extras))


def _never_empty() -> frozenset[str]:
    """Return the variables that have a value in every sample."""
    kinds = samples.kinds()
    always = {
        name
        for name in (kinds[0] if kinds else {})
        if all(kind[name] and not isinstance(kind[name], (bool, list)) for kind in kinds)
    }
    return frozenset(always | {*_OF_PROFILES})


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """A sentence at one place of a file."""

    file: str
    context: str
    msgid: str
    plural: str
    variables: tuple[str, ...]
    is_paragraph: bool
    is_conditional: bool
    when: str


@dataclass(slots=True)
class _File:
    name: str
    tree: nodes.Template
    occurrences: dict[int, _Occurrence] = field(default_factory=dict)  # by the id of the call


_Blocks = dict[str, tuple[_File, nodes.Block]]


class _TemplateReader:
    """Walks the files of an e-mail as Jinja2 renders them, through what they extend and include."""

    def __init__(self, files: Environment, event_type: str) -> None:
        self._environment, self._event_type = files, event_type
        self._files: dict[str, _File | None] = {}

    def read(self) -> list[_Occurrence]:
        """Return the sentences of the e-mail in their order. Those of blocks that are replaced come last."""
        if self._event_type == LAYOUT:
            shared = [name for name in self._environment.list_templates() if name.startswith("_")]
            names = sorted(shared, key=lambda name: (not name.startswith("_layout"), name))
        else:
            names = [f"{self._event_type}/{part}" for part in ("subject.txt", "body.html", "body.txt")]
        seen = [occurrence for name in names for occurrence in self._walk(name, {})]
        ids = set(map(id, seen))
        files = [file for file in self._files.values() if file]
        rest = [
            occurrence
            for file in files
            for occurrence in file.occurrences.values()
            if id(occurrence) not in ids
        ]
        return [occurrence for occurrence in (*seen, *rest) if _document(occurrence.file) == self._event_type]

    def extras_in(self, end: str) -> set[str]:
        """Return the names of `EXTRAS` that the files with this end have a place for, once they are read."""
        return {
            str(call.args[0].value)
            for file in self._files.values()
            if file and file.name.endswith(end)
            for call in file.tree.find_all(nodes.Call)
            if called(call) == EXTRA and call.args and isinstance(call.args[0], nodes.Const)
        } & EXTRAS.keys()

    def _walk(self, name: str, blocks: _Blocks) -> Iterator[_Occurrence]:
        if (file := self._file(name)) is None:
            return
        blocks = {block.name: (file, block) for block in file.tree.find_all(nodes.Block)} | blocks
        parent = next(iter(file.tree.find_all(nodes.Extends)), None)
        if parent is not None:
            yield from self._walk(_constant(parent.template), blocks)
        else:
            yield from self._visit(file, file.tree, blocks)

    def _visit(self, file: _File, node: nodes.Node, blocks: _Blocks) -> Iterator[_Occurrence]:
        for child in node.iter_child_nodes():
            if isinstance(child, nodes.Block):
                yield from self._visit(*blocks[child.name], blocks)
                continue
            if isinstance(child, nodes.Include):
                yield from self._walk(_constant(child.template), {})
            elif id(child) in file.occurrences:
                yield file.occurrences[id(child)]
            yield from self._visit(file, child, blocks)

    def _file(self, name: str) -> _File | None:
        if name not in self._files:
            self._files[name] = self._parse(name)
        return self._files[name]

    def _parse(self, name: str) -> _File | None:
        assert self._environment.loader
        try:
            source, _, _ = self._environment.loader.get_source(self._environment, name)
        except TemplateNotFound:
            return None
        file = _File(name, self._environment.parse(source, name))
        calls = [call for call in file.tree.find_all(nodes.Call) if called(call) in {*SENTENCES, "_"}]
        branches = list(_branches(self._environment, source))
        if len(branches) != len(calls):
            branches = [(False, "")] * len(calls)
        for call, (is_conditional, when) in zip(calls, branches, strict=True):
            if occurrence := _occurrence(call, name, is_conditional, when):
                file.occurrences[id(call)] = occurrence
        return file


def _occurrence(call: nodes.Call, name: str, is_conditional: bool, when: str) -> _Occurrence | None:
    texts = [arg.value for arg in call.args if isinstance(arg, nodes.Const) and isinstance(arg.value, str)]
    function = called(call)
    context = texts.pop(0) if function in ("pgettext", "npgettext") and texts else ""
    is_plural = function in ("ngettext", "npgettext")
    if len(texts) < 1 + is_plural:
        return None
    names = {argument.key for argument in call.kwargs} - {PLACE}
    place = next((argument.value for argument in call.kwargs if argument.key == PLACE), nodes.Const(""))
    return _Occurrence(
        name,
        context,
        texts[0],
        texts[1] if is_plural else "",
        tuple(sorted(names, key=lambda name: texts[-1].find(f"({name})"))),
        isinstance(place, nodes.Const) and place.value not in ("", IN_TEXT),
        is_conditional,
        when,
    )


def _branches(files: Environment, source: str) -> Iterator[tuple[bool, str]]:
    """Yield for each sentence of a source whether it is in a branch, and when the branches show."""
    stack: list[str | None] = []  # what is said about each open branch; None for a loop
    is_first = False
    for _, kind, value in files.lex(source):
        if kind == "block_begin":
            is_first = True
        elif kind == "comment" and stack and stack[-1] == "" and value.strip().startswith("if "):
            stack[-1] = value.strip()
        elif kind == "name":
            if is_first and value in ("if", "for"):
                stack.append("" if value == "if" else None)
            elif is_first and value in ("elif", "else") and stack and stack[-1] is not None:
                stack[-1] = ""
            elif is_first and value in ("endif", "endfor") and stack:
                stack.pop()
            elif (is_first and value == "trans") or value in SENTENCES or value == "_":
                said = [condition for condition in stack if condition is not None]
                yield bool(said), " and ".join(filter(None, said))
            is_first = False


def _constant(node: nodes.Expr) -> str:
    return str(node.value) if isinstance(node, nodes.Const) else ""


def _document(name: str) -> str:
    folder, _, file = name.removeprefix(f"{OURS}/").rpartition("/")
    return folder if file and folder else LAYOUT


def read_keys(event_type: str, language: str) -> Mapping[Key, Sentence]:
    """Return the sentences of an e-mail by their keys, those that only editors write last."""
    sentences = sentences_of(event_type)
    keys = {key: sentence for sentence in sentences.all for key in sentence.keys(language)}
    extras = [Sentence(name, "", "", (), is_paragraph=True) for name in EXTRAS if name in sentences.extras]
    return keys | {extra_key(sentence.context): sentence for sentence in extras}
