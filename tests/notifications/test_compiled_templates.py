"""A compiled template renders byte for byte what Django would."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.conf import settings
from django.template import Context, Engine
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from notifications.compiled_templates import compiled
from notifications.rendering import PARTS, event_types, render_email, warm_up

LIBRARIES = {"i18n": "django.templatetags.i18n"}
ENGINE = Engine(dirs=[str(settings.BASE_DIR / "templates" / "emails")], libraries=LIBRARIES)
LANGUAGES = [language for language, _ in settings.LANGUAGES]
NAMES = [f"{event}/{part}" for event in sorted(event_types()) for part in PARTS]

text = st.sampled_from(["", "A-1", "Ann & <b>Bob</b>", "100 %", "%(name)s", "\"quoted\" 'so'", "zoë €"])
item = st.fixed_dictionaries(
    {"name": text, "quantity": st.integers(0, 3), "unit_amount": text, "line_amount": text}
)
variables = st.fixed_dictionaries(
    {"reference": text, "items": st.lists(item, max_size=3)},
    optional={
        **dict.fromkeys(("name", "total_amount", "changed_at", "ordered_at", "reason", "tracking_url"), text),
        **dict.fromkeys(("shop_name", "shop_url", "shop_address", "subject", "refund_amount"), text),
        **dict.fromkeys(("charges_amount", "refunded_amount", "remaining_amount"), st.none() | text),
        **dict.fromkeys(("was_paid", "refunded_before"), st.booleans()),
        "more_items": st.integers(0, 3),
    },
)


def both(engine: Engine, name: str, language: str, data: dict[str, Any]) -> tuple[str, str]:
    """Render by Django and compiled."""

    def context() -> Context:
        return Context(dict(data), autoescape=name.endswith(".html"), use_l10n=False, use_tz=False)

    with translation.override(language):
        return engine.get_template(name).render(context()), compiled(engine, name, language).render(context())


@given(st.sampled_from(NAMES), st.sampled_from(LANGUAGES), variables)
def test_an_email_is_the_same_with_whatever_variables(name, language, data):
    plain, fast = both(ENGINE, name, language, data)
    assert fast == plain


@pytest.mark.parametrize("name", NAMES)
def test_our_templates_look_nothing_up_and_translate_nothing_when_they_are_rendered(name):
    template = compiled(ENGINE, name, "de")
    kinds = {type(node).__name__ for node in template.nodelist}
    assert kinds.isdisjoint(
        {"ExtendsNode", "IncludeNode", "BlockNode", "TranslateNode", "BlockTranslateNode"}
    )


OURS = {
    "plain.html": "{{ a }} {{ a|upper }} {{ a.b }} {{ n }} {{ none }} {{ missing }} {{ 'x<' }} {{ when }}",
    "with.html": "{% with b=a %}{{ b }}{% endwith %}",
    "child.html": "{% extends 'parent.html' %}{% block one %}1 {{ block.super }}{% endblock %}",
    "parent.html": "<{% block one %}p{% block two %}q{{ a }}{% endblock %}{% endblock %}>",
    "inner.html": "{% extends 'parent.html' %}lost"
    "{% block two %}{{ a }}{% include 'plain.html' %}{% endblock %}",
    "third.html": "{% extends 'inner.html' %}{% block two %}third{% endblock %}",
    "variable.html": "{% extends parent %}{% block two %}2{% endblock %}",
    "included.html": "{% include 'plain.html' with a='c' only %}{% include 'plain.html' with n=a %}",
    "itself.html": "{{ n }}{% if n == 1 %}{% else %}{% include 'itself.html' with n=1 %}{% endif %}",
    "loops.html": "{% for x in list %}{{ forloop.counter }}{{ x.b }}{{ x }}{% empty %}-{% endfor %}",
    "pairs.html": "{% for x, y in pairs %}{{ x }}={{ y }};{% endfor %}",
    "named.html": "{% load i18n %}{{ w }}{% translate 'Total' context 'e-mail' as w %}{{ w }}{{ w|upper }}"
    "{% if w %}{% translate 'Hello,' as v %}{{ v }}{% endif %}{{ v }}{% include 'names.html' %}{{ u }}",
    "names.html": "{% load i18n %}{% translate 'Hello,' as u %}{{ u }}{{ w }}",
    "shadowed.html": "{% load i18n %}{% translate 'Hello,' as x %}{% for x in list %}{{ x }}{% endfor %}",
    "words.html": "{% load i18n %}{% translate 'Hello,' %}{% translate a %}{% translate '100%' %}"
    "{% translate 'a<b' noop %}{% blocktranslate %}Hello {{ name }},{% endblocktranslate %}"
    "{% blocktranslate with name=a %}Hello {{ name }},{% endblocktranslate %}"
    "{% blocktranslate asvar s %}Hello {{ name }},{% endblocktranslate %}{{ s }}",
    "off.html": "{% autoescape off %}{{ a }}{% endautoescape %}{{ a|safe }}{{ list|length }}",
}
DATA: dict[str, Any] = {
    "a": "<&>",
    "n": 1234567,
    "none": None,
    "name": "Ann <b>",
    "list": [{"b": "<"}, {"b": 1}, {}],
    "pairs": [("<", 1)],
    "parent": "parent.html",
    "when": dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
}


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("name", OURS)
def test_a_shops_template_may_use_every_tag(tmp_path, name, language):
    for file, source in OURS.items():
        (tmp_path / file).write_text(source)
    plain, fast = both(Engine(dirs=[str(tmp_path)], libraries=LIBRARIES), name, language, DATA)
    assert fast == plain


def test_each_template_is_compiled_once_for_a_language():
    warm_up()
    before = compiled.cache_info().misses
    for language in LANGUAGES:
        for event in event_types():
            render_email(event_type=event, locale=language, context={"currency": "EUR", "total_amount": 1})
    assert compiled.cache_info().misses == before
