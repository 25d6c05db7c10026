"""Templates are checked at the start, translated in catalogues, and replaced one by one by a shop's own."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.plurals import get_plural
from babel.messages.pofile import read_po
from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from jinja2.ext import extract_from_ast

from notifications.content.template_checks import warm_up
from notifications.content.template_files import CATALOGUES, environment
from tests.kit.words import (
    EMAILS,
    SAMPLE,
    Order,
    check_templates,
    email_context,
    event_types,
    render_email,
)

CONTEXT = {**SAMPLE, "reference": "A-1", "total_amount": 4200}
TEMPLATES = project.BASE_DIR / "templates" / "emails"
LANGUAGES = [language for language, _ in project.LANGUAGES if language != "en"]


@pytest.fixture
def replacements(tmp_path, settings):
    """Use a folder of a shop's own files; return a function that writes one."""
    *others, emails = settings.TEMPLATES
    settings.EMAIL_TEMPLATES_DIR = str(tmp_path)
    settings.TEMPLATES = [*others, emails | {"DIRS": [tmp_path, *emails["DIRS"][-1:]]}]

    def write(name: str, text: str | bytes) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def test_it_accepts_the_templates_as_they_are():
    check_templates(declared=EMAILS)


def test_it_renders_samples_with_the_variables_of_an_order():
    items = [{"sku": "s", "name": "n", "quantity": 1, "unit_amount": 1}]
    context = email_context(
        order=Order(total_amount=1, items=items, reference="R"), event_type="order.paid", change={}
    )
    assert SAMPLE.keys() == context.keys()
    assert SAMPLE["items"][0].keys() == context["items"][0].keys()


def test_it_refuses_a_declared_email_without_templates():
    with pytest.raises(ImproperlyConfigured, match=r"lacks order\.lost/body\.html, order\.lost/body\.txt"):
        check_templates(declared=[*EMAILS, "order.lost"])


def test_it_refuses_templates_that_no_event_declares():
    with pytest.raises(ImproperlyConfigured, match=r"order\.refunded is not .* Use order\.cancelled, "):
        check_templates(declared=[name for name in EMAILS if name != "order.refunded"])


def test_a_file_of_the_shop_replaces_one_and_leaves_the_others(replacements):
    replacements(
        "order.paid/subject.txt", "{{ shop_name }}: {{ total_amount }} for {{ reference }}, thank you"
    )
    check_templates(declared=EMAILS)
    mail = render_email(event_type="order.paid", locale="en", context=CONTEXT)
    assert mail.subject == "Example Shop: €42.00 for A-1, thank you"
    assert "we received your payment" in mail.body_text
    assert mail.subject in mail.body_html


def test_a_file_of_the_shop_may_extend_the_one_that_it_replaces(replacements):
    replacements(
        "_layout.html",
        '{% extends "orderpost/_layout.html" %}'
        "{% block colour %}#123456;content:<{{ reference }}>{% endblock %}",
    )
    check_templates(declared=EMAILS)
    mail = render_email(event_type="order.placed", locale="de", context={**CONTEXT, "reference": "<b>"})
    assert "background-color:#123456;content:<&lt;b&gt;>" in mail.body_html
    assert "<b>" not in mail.body_html


def test_a_file_of_the_shop_may_keep_what_a_block_had(replacements):
    replacements(
        "order.paid/body.txt",
        '{% extends "orderpost/order.paid/body.txt" %}'
        "{% block message %}{{ super() }} Bye{{ colon }}{% endblock %}",
    )
    check_templates(declared=EMAILS)
    mail = render_email(event_type="order.paid", locale="en", context=CONTEXT)
    assert "We are now getting your order ready. Bye:\n" in mail.body_text
    assert "Order: A-1" in mail.body_text


def test_our_files_include_the_one_that_the_shop_replaced(replacements):
    replacements("_order.txt", "{{ items|length }} items{{ colon }} {{ total_amount }}")
    check_templates(declared=EMAILS)
    mail = render_email(event_type="order.paid", locale="en", context=CONTEXT)
    assert "\n\n2 items: €42.00\n" in mail.body_text


def test_a_sentence_of_the_shop_is_in_no_catalogue_and_stays_as_it_is(replacements):
    replacements("order.paid/body.html", "{% trans %}It's 100% <b>{{ reference }}</b> & more{% endtrans %}")
    check_templates(declared=EMAILS)
    mail = render_email(event_type="order.paid", locale="de", context={**CONTEXT, "reference": "<'>"})
    assert mail.body_html == "It's 100% <b>&lt;&#39;&gt;</b> & more\n"


def test_a_file_of_the_shop_may_set_names_and_define_macros_for_others(replacements):
    replacements(
        "_layout.txt",
        "{% set thanks = 'Thanks' %}{% macro loud(text) %}{{ text|upper }}{% endmacro %}"
        "{% block message %}{% endblock %}{% include '_order.txt' %}",
    )
    replacements("_order.txt", "{{ thanks }} {{ subject }}")
    replacements(
        "order.paid/body.txt",
        "{% extends '_layout.txt' %}"
        "{% block message %}{{ loud(thanks) }}{% set n = 1 %}{{ n }}{% endblock %}",
    )
    for name in ("order.completed", "order.shipped", "order.delivered"):
        replacements(f"{name}/body.txt", "{{ reference }}")
    check_templates(declared=EMAILS)
    mail = render_email(event_type="order.paid", locale="en", context=CONTEXT)
    assert mail.body_text == "THANKS1Thanks Payment received for your order A-1\n"


def test_a_file_of_the_shop_may_choose_its_text_by_language(replacements):
    replacements(
        "order.paid/subject.txt",
        '{% if lang[:2] == "de" %}Danke{% elif lang[:2] == "fr" %}Merci{% else %}Thank you{% endif %}',
    )
    check_templates(declared=EMAILS)
    subjects = [
        render_email(event_type="order.paid", locale=locale, context=CONTEXT).subject
        for locale in ("de-AT", "fr", "es")
    ]
    assert subjects == ["Danke", "Merci", "Thank you"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("order.payed/subject.txt", "Paid", r"order\.payed/subject\.txt replaces no file"),
        ("orderpost/_order.txt", "", r"orderpost/_order\.txt replaces no file"),
        ("order.paid/subject.txt", "{% if %}", r"order\.paid/subject\.txt does not compile"),
        ("order.paid/subject.txt", "\n{% if %}", r"does not compile.*/order\.paid/subject\.txt, line 2\)"),
        ("order.paid/subject.txt", "{{ name|shout }}", r"order\.paid/subject\.txt does not compile.*shout"),
        ("order.paid/subject.txt", "{% load i18n %}", r"order\.paid/subject\.txt does not compile.*load"),
        ("order.paid/subject.txt", b"\xff", r"order\.paid/subject\.txt does not compile: 'utf-8' codec"),
        ("_order.html", "{% for %}", r"_order\.html does not compile"),
        ("order.paid/subject.txt", "{{ totl }}", r"subject\.txt uses the unknown variable totl"),
        ("order.paid/subject.txt", "{% trans %}Paid {{ totl }}{% endtrans %}", r"subject\.txt uses .* totl"),
        # In a branch that no sample reaches, and in one that only the smallest order reaches.
        ("_order.txt", "{% if lang == 'xx' %}{{ totl }}{% endif %}", r"_order\.txt uses .* totl"),
        ("_order.txt", "{% if not items %}{{ reason.x }}{% endif %}", r"no attribute 'x'.*_order\.txt"),
        ("_order.txt", "\n{{ items[0].nmae }}", r"UndefinedError.*nmae.*/_order\.txt, line 2\)"),
        ("_order.txt", "{% for item in items %}{{ item.nmae }}{% endfor %}", r"no attribute 'nmae'"),
        ("_order.txt", "{% if was_paid %}{{ name|shout }}{% endif %}", r"No filter named 'shout'"),
        ("_order.txt", "{{ total_amount + 1 }}", r"cannot be rendered: TypeError.*_order\.txt, line 1\)"),
        ("order.paid/subject.txt", "{{ subject }}", r"order\.paid cannot .*'subject' is undefined"),
        ("order.paid/subject.txt", '{{ _("100%") }}', r"order\.paid cannot .*incomplete format"),
        ("order.paid/body.txt", '{% extends "_lost.txt" %}', r"order\.paid cannot .*_lost.*line 1"),
        ("_layout.txt", '{% extends "_layout.txt" %}', r"extends or includes itself.*orderpost/"),
    ],
)
def test_it_refuses_a_file_of_the_shop_that_could_not_work(replacements, name, text, sentence):
    replacements(name, text)
    with pytest.raises(ImproperlyConfigured, match=sentence):
        check_templates(declared=EMAILS)


def test_it_ignores_the_hidden_files_of_editors_and_volumes(replacements):
    replacements("..2026_11_21/subject.txt", "{% if %}")
    replacements(".DS_Store", "x")
    check_templates(declared=EMAILS)


def test_no_email_compiles_a_template_once_the_process_is_warm(monkeypatch):
    warm_up(sample=SAMPLE)
    compiled: list[str | None] = []
    monkeypatch.setattr(environment(), "compile", lambda source, name, *_: compiled.append(name))
    for event in event_types():
        for language, _ in project.LANGUAGES:
            render_email(event_type=event, locale=language, context=SAMPLE)
    assert compiled == []


def test_a_file_that_changes_later_is_not_read_again(replacements):
    replacements("order.paid/subject.txt", "Before")
    check_templates(declared=EMAILS)
    replacements("order.paid/subject.txt", "After, and longer")
    assert render_email(event_type="order.paid", locale="en", context=CONTEXT).subject == "Before"


def folder(language: str) -> Path:
    return CATALOGUES / language / "LC_MESSAGES"


def catalogue(language: str) -> Catalog:
    with (folder(language) / "django.po").open("rb") as file:
        return read_po(file, locale=language)


def messages_of(path: Path) -> Iterator[tuple[str | None, str]]:
    """Yield (context, msgid) of each translatable string of a template."""
    tree = environment().parse(path.read_text())
    for _, function, strings in extract_from_ast(tree, babel_style=False):
        assert isinstance(strings, tuple)
        context, message = strings[:2] if "pgettext" in function else (None, strings[0])
        yield context, str(message)


def all_messages() -> set[tuple[str | None, str]]:
    files = [path for path in TEMPLATES.rglob("*") if path.is_file()]
    return {message for path in files for message in messages_of(path)}


@pytest.mark.parametrize("language", LANGUAGES)
class TestACatalogue:
    def test_has_the_strings_of_the_templates_and_no_others(self, language):
        translated = {
            (entry.context, entry.id if isinstance(entry.id, str) else entry.id[0])
            for entry in catalogue(language)
            if entry.id
        }
        assert translated == all_messages()
        assert len(translated) > 40  # the templates were found

    def test_leaves_nothing_untranslated_or_fuzzy(self, language):
        for entry in catalogue(language):
            texts = entry.string if isinstance(entry.string, tuple) else (entry.string,)
            assert all(texts), entry.id
            assert not (entry.id and entry.fuzzy), entry.id

    def test_keeps_every_placeholder(self, language):
        def placeholders(text: str) -> list[str]:
            return sorted(re.findall(r"%\(\w+\)s", text))

        for entry in catalogue(language):
            # Of a plural the last form, because the singular spells its number out.
            before = entry.id if isinstance(entry.id, str) else entry.id[-1]
            after = entry.string if isinstance(entry.string, str) else (entry.string or ("",))[-1]
            if entry.id:  # and not the header
                assert placeholders(before) == placeholders(after), before

    def test_is_compiled(self, language):
        compiled = io.BytesIO()
        write_mo(compiled, catalogue(language))
        path = folder(language) / "django.mo"
        assert path.exists() and path.read_bytes() == compiled.getvalue(), "run pybabel compile"

    def test_names_its_language_and_its_plurals(self, language):
        # A head that was copied from another language would choose wrong plurals.
        locale = catalogue(language)
        assert locale.locale_identifier == language
        assert locale.plural_expr == get_plural(language).plural_expr, f"Plural-Forms: {get_plural(language)}"


def test_each_catalogue_has_its_language_in_the_settings():
    """Otherwise its e-mails would be in English."""
    assert sorted(path.name for path in CATALOGUES.iterdir()) == sorted(LANGUAGES)
