"""The sentences of the e-mails, as the sample orders say them, in the order in which a customer reads them.

The editor shows them, and an own text may use their variables. `check_templates` renders the samples when a
process starts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from babel.messages.mofile import read_mo
from jinja2 import Environment

from notifications.content import sample_orders
from notifications.content.profiles import Profile, from_settings
from notifications.content.rendering import TemplateFailed, localize, render_localized
from notifications.content.template_files import (
    CATALOGUES,
    LAYOUT,
    NO_WORDS,
    PARAGRAPH,
    Key,
    Name,
    Notes,
    environment,
    event_types,
    extra_key,
    look_up,
    plural_rule,
    speaking,
    translations,
)

#: The paragraphs that only editors write, and the words for their places.
EXTRAS = {"before": "Before the order's lines", "after": "After the order's lines"}
#: An editor reads these words in place of a variable's name.
IN_WORDS = {
    "reference": "order number",
    "total_amount": "total",
    "currency": "currency",
    "ordered_at": "date of the order",
    "changed_at": "date of this change",
    "shop_name": "shop's name",
    "shop_address": "shop's address",
    "name": "customer's name",
    "refund_amount": "this refund",
    "refunded_amount": "all refunds",
    "remaining_amount": "rest after the refund",
    "reason": "reason",
    "carrier": "carrier",
    "tracking_number": "tracking number",
    "shipped_at": "date of dispatch",
    "counter": "number",
    "label": "name of the tax",
}
#: The values of variables that only a sentence gives.
_OF_SENTENCES = {"counter": "2", "label": "VAT 19 %"}
#: The variables that every profile gives.
_OF_PROFILES = ("shop_name", "shop_address")
_VARIABLE = re.compile(r"%\((\w+)\)s")
#: Numbers that show which forms of a plural a language has.
_NUMBERS = range(200)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with all places that it has in an e-mail."""

    context: str
    msgid: str
    plural: str = ""
    is_subject: bool = False
    is_paragraph: bool = False
    #: The names of the samples that say it.
    samples: tuple[str, ...] = ()
    #: In words, these samples or those that do not say it; "" if all do.
    when: str = ""

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_VARIABLE.findall(self.plural or self.msgid)))

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
    return record(environment())[event_type]


@functools.lru_cache(maxsize=8)
def record(files: Environment) -> Mapping[str, Sentences]:
    """Render the samples of every e-mail, and return what they say. Raise `TemplateFailed`."""
    said = {event_type: _say_samples(event_type) for event_type in (*sorted(event_types()), LAYOUT)}
    shared = _in_order(said[LAYOUT].values())
    return {
        event_type: _sentences(notes, shared=() if event_type == LAYOUT else shared)
        for event_type, notes in said.items()
    }


def _say_samples(event_type: str) -> Mapping[str, Notes]:
    """Return what each sample of an e-mail says. The keys are the same in each language."""
    said: dict[str, Notes] = {}
    for name, sample in sample_orders.of(event_type).items():
        notes = said[name] = {}
        localized = localize(locale="en", context=sample, profile=from_settings())
        if event_type != LAYOUT:
            render_localized(event_type=event_type, localized=localized, notes=notes)
            continue
        try:
            with speaking("en", NO_WORDS, notes):
                for file in ("_layout.html", "_layout.txt"):
                    environment().get_template(file).render({**localized.data, "subject": ""})
        except Exception as error:
            raise TemplateFailed(event_type=LAYOUT, error=error) from error
    return said


def _in_order(said: Collection[Notes]) -> list[Name]:
    """Return the sentences of all samples, each after those before it in a sample, alternatives together."""
    places: dict[Name, int] = {}
    for _ in said:
        for notes in said:
            place = -1
            for name in notes:
                place = places[name] = max(places.get(name, 0), place + 1)
    return sorted(places, key=places.__getitem__)


def _sentences(said: Mapping[str, Notes], *, shared: Collection[Name]) -> Sentences:
    """Return what the samples of an e-mail say besides what all e-mails share."""
    sentences, extras, always = [], set(), set()
    for name in _in_order(said.values()):
        shown = tuple(sample for sample, notes in said.items() if name in notes)
        files = {file for sample in shown for file in said[sample][name]}
        if not name[1]:
            extras |= {name[0]} if {".html", ".txt"} <= {file[file.rfind(".") :] for file in files} else set()
        elif name not in shared and _has_letters(name):
            others = [sample for sample in said if sample not in shown]
            is_subject, is_paragraph = "subject.txt" in files, PARAGRAPH in files
            sentence = Sentence(*name, is_subject, is_paragraph, shown, _when(shown, others))
            sentences.append(sentence)
            always |= set() if others else set(sentence.variables)
    data = sample_orders.of(LAYOUT).values()
    named = {name for sample in data for name in sample}
    filled = {
        name
        for name in named
        if all(sample[name] and not isinstance(sample[name], (bool, list)) for sample in data)
    }
    variables = {*filled, *_OF_PROFILES} | (always & named)
    return Sentences(tuple(sentences), frozenset(variables), frozenset(EXTRAS.keys() & extras))


def _when(shown: Collection[str], others: Collection[str]) -> str:
    if len(shown) < len(others):
        return f"in samples: {', '.join(shown)}"
    return f"in all samples but: {', '.join(others)}" if others else ""


def _has_letters(name: Name) -> bool:
    """Return False for a mark, such as the colon of a language."""
    return any(map(str.isalpha, _VARIABLE.sub("", name[1])))


@functools.lru_cache(maxsize=8)
def _unsaid(files: Environment) -> tuple[Sentence, ...]:
    """Return the sentences of the catalogues that no sample says."""
    said = {(sentence.context, sentence.msgid) for each in record(files).values() for sentence in each.all}
    with next(CATALOGUES.glob("*/LC_MESSAGES/django.mo")).open("rb") as file:
        messages = list(read_mo(file))
    names = [
        (_decoded(message.context), *([message.id] if isinstance(message.id, str) else message.id))
        for message in messages
    ]
    return tuple(Sentence(*name) for name in names if name[:2] not in said and _has_letters(name))


def _decoded(context: str | bytes | None) -> str:
    """Return a context, which Babel reads as bytes."""
    return context.decode() if isinstance(context, bytes) else context or ""


def original(key: Key, language: str) -> str:
    """Return the sentence of a language's catalogue, with variables as in own texts."""
    catalogue = translations(language)
    rule = plural_rule(catalogue)
    number = next((number for number in _NUMBERS if rule(number) == key.form), 2)
    return _VARIABLE.sub(r"{\1}", look_up(catalogue, key[:3], number)).replace("%%", "%")


def example_numbers(key: Key, language: str) -> str:
    """Return the first numbers that take the form of a plural's key, such as "2, 3, 4 …"."""
    rule = plural_rule(translations(language))
    numbers = [str(number) for number in _NUMBERS if number and rule(number) == key.form]
    return ", ".join(numbers[:3]) + (" …" if len(numbers) > 3 else "")


def example_values(event_type: str, language: str, profile: Profile) -> Mapping[str, str]:
    """Return an example of each variable of an e-mail."""
    sample = next(iter(sample_orders.of(event_type).values()))  # in which each has a value
    data = localize(locale=language, context=sample, profile=profile).data
    return {name: str(value) for name, value in {**data, **_OF_SENTENCES}.items() if isinstance(value, str)}


def in_words(name: str) -> str:
    """Return the words for a variable. Those of a deployment's own templates are made from its name."""
    return IN_WORDS.get(name, name.replace("_", " "))


def read_keys(event_type: str, language: str) -> Mapping[Key, Sentence]:
    """Return the sentences of an e-mail by their keys, those that only editors write last.

    `LAYOUT` also has those of the catalogues that no sample says: nobody knows in which e-mail they are.
    """
    sentences = sentences_of(event_type)
    unsaid = _unsaid(environment()) if event_type == LAYOUT else ()
    keys = {key: sentence for sentence in (*sentences.all, *unsaid) for key in sentence.keys(language)}
    extras = sentences.extras if event_type != LAYOUT else ()
    return keys | {
        extra_key(name): Sentence(name, "", is_paragraph=True) for name in EXTRAS if name in extras
    }
