"""The editor shows every sentence of the files once, in the order of the e-mail, and says when it shows."""

from __future__ import annotations

import pytest
from django.conf import settings as project
from jinja2.ext import extract_from_ast

from notifications.content import sample_orders
from notifications.content.own_text import read
from notifications.content.sentences import (
    EXTRAS,
    Sentence,
    example_numbers,
    original,
    read_keys,
    sentences_of,
)
from notifications.content.template_files import (
    LAYOUT,
    NO_WORDS,
    Key,
    Words,
    environment,
    our_folder,
    plural_rule,
    speaking,
    translations,
)
from tests.kit.texts import BEFORE, READY, SUBJECT, publish_texts
from tests.kit.words import EMAILS, SAMPLE, render_email

COLON = '{% set colon = pgettext("e-mail", ":") %}'


@pytest.fixture
def replace(tmp_path, settings):
    """Use a folder of a shop's own files; return a function that writes one."""
    *others, emails = settings.TEMPLATES
    settings.EMAIL_TEMPLATES_DIR = str(tmp_path)

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        settings.TEMPLATES = [*others, emails | {"DIRS": [tmp_path, *emails["DIRS"][-1:]]}]

    return write


def texts(event_type: str) -> list[str]:
    return [sentence.msgid for sentence in sentences_of(event_type).all]


def test_every_sentence_of_the_files_has_one_field():
    in_files = set()
    for path in our_folder().glob("**/*.[ht]*"):
        for _, _, strings in extract_from_ast(environment().parse(path.read_text()), babel_style=False):
            in_files.add(strings)
    shown = [
        tuple(filter(None, (sentence.context, sentence.msgid, sentence.plural)))
        for event_type in (*EMAILS, LAYOUT)
        for sentence in sentences_of(event_type).all
    ]
    assert set(shown) == in_files - {("e-mail", ":")}
    for event_type in (*EMAILS, LAYOUT):
        assert len(set(texts(event_type))) == len(texts(event_type))


def test_they_come_in_the_order_of_the_email():
    assert texts("order.paid") == [
        "Payment received for your order %(reference)s",
        "Thank you for your order %(reference)s",
        "%(total_amount)s for your order %(reference)s",
        "Paid",
        "Order received",
        "We have received your payment",
        "Thank you for your order",
        "Thank you. On %(changed_at)s we received your payment of %(total_amount)s for your order"
        " %(reference)s.",
        "On %(changed_at)s we received your order %(reference)s. There was nothing to pay for it.",
        "We are now getting your order ready.",
    ]
    assert texts(LAYOUT)[0] == "Hello %(name)s,"
    assert texts(LAYOUT)[-1].startswith("You are receiving this e-mail")


def test_a_sentence_that_only_some_samples_say_names_them():
    cancelled = {sentence.msgid: sentence.when for sentence in sentences_of("order.cancelled").all}
    assert cancelled["Reason: %(reason)s"] == "in all samples but: least data"
    assert cancelled["There is nothing for you to pay."] == "in samples: least data"
    assert cancelled["Your order has been cancelled"] == ""
    for event_type in (*EMAILS, LAYOUT):
        for sentence in sentences_of(event_type).all:
            assert (sentence.when == "") == (len(sentence.samples) == len(sample_orders.of(event_type)))


def test_a_sentence_is_a_paragraph_if_one_of_its_places_is():
    completed = {sentence.msgid: sentence for sentence in sentences_of("order.completed").all}
    sentence = completed["Your order was completed on %(changed_at)s."]  # also in the preheader
    assert sentence.is_paragraph and sentence.variables == ("changed_at",)
    assert not completed["Track your parcel"].is_paragraph
    assert not completed["Your order is complete"].is_paragraph


def test_variables_that_an_email_always_has_may_be_used_in_all_of_its_sentences():
    paid, refunded = sentences_of("order.paid"), sentences_of("order.refunded")
    assert {"reference", "total_amount", "changed_at", "shop_name"} <= paid.variables
    assert not {"name", "reason", "tracking_url", "items", "refund_amount"} & paid.variables
    assert "refund_amount" in refunded.variables


def test_a_plural_has_a_field_for_each_form_of_the_language():
    keys = [key for key in read_keys(LAYOUT, "fr") if key.plural]
    assert [key.form for key in keys] == [0, 1]
    assert [example_numbers(key, "fr") for key in keys] == ["1", "2, 3, 4 …"]
    assert original(keys[1], "de") == "und {counter} weitere Artikel"
    assert original(keys[0], "en") == "and one more item"


def test_an_original_is_that_of_the_language():
    assert original(READY, "de") == "Wir bereiten Ihre Bestellung nun für Sie vor."
    assert original(SUBJECT, "en") == "Payment received for your order {reference}"
    assert original(Key("e-mail", "Total"), "de") == "Gesamtbetrag"
    assert {language for language, _ in project.LANGUAGES} >= {"de", "en"}


def test_sentences_of_a_shops_own_files_appear(replace):
    replace(
        "order.paid/body.html",
        '{% extends "orderpost/order.paid/body.html" %}{% block message %}'
        "{% if reason %}{{ p(_('100%% ours, %(reference)s', reference=reference)) }}"
        "<p>{% trans %}Click{% endtrans %}</p>{% endif %}{{ super() }}{% endblock %}",
    )
    by_text = {sentence.msgid: sentence for sentence in sentences_of("order.paid").all}
    ours = by_text["100%% ours, %(reference)s"]
    assert ours.is_paragraph and "least data" not in ours.samples and "everything" in ours.samples
    assert not by_text["Click"].is_paragraph  # the form of older releases
    assert "We are now getting your order ready." in by_text
    assert original(Key("", ours.msgid), "de") == "100% ours, {reference}"
    assert sentences_of("order.paid").extras == EXTRAS.keys()


def test_a_layout_of_the_shop_may_lack_the_place_of_further_paragraphs(replace):
    replace("_layout.txt", COLON + "{% trans %}Dear all{% endtrans %}{% block message %}{% endblock %}")
    assert sentences_of("order.paid").extras == frozenset()
    assert "Dear all" in texts(LAYOUT) and "Hello %(name)s," in texts(LAYOUT)  # which the HTML has
    replace("_layout.html", "{{ p(own_paragraph('after')) }}{% block message %}{% endblock %}")
    replace("_layout.txt", COLON + "{{ own_paragraph('after') }}{% block message %}{% endblock %}")
    assert sentences_of("order.paid").extras == {"after"}
    assert "Hello %(name)s," not in texts(LAYOUT)


OLD = (
    "{% extends '_layout.html' %}{% block message %}"
    "<p>{% trans %}We are now getting your order ready.{% endtrans %}</p>{{ own_paragraph('before', '<p>') }}"
    "{% if name == 'X' %}<p>{% trans %}Ours{% endtrans %}</p>{% endif %}{% endblock %}"
)


@pytest.mark.django_db
def test_a_file_in_the_form_of_older_releases_keeps_the_published_texts_as_lines(replace):
    replace("order.paid/body.html", OLD)
    (ready,) = [sentence for sentence in sentences_of("order.paid").all if sentence.msgid == READY.msgid]
    assert not ready.is_paragraph
    publish_texts({READY: "**Soon**\n[See](https://a.test)", BEFORE: "**Look**", Key("", "Ours"): "**Own**"})
    html = render_email(event_type="order.paid", locale="en", context=SAMPLE).body_html
    assert "<p>Soon See</p>Look" in html and "Own" not in html
    html = render_email(event_type="order.paid", locale="en", context={**SAMPLE, "name": "X"}).body_html
    assert "<p>Own</p>" in html  # which no sample says


def test_a_sentence_of_the_catalogue_that_no_sample_says_is_listed_last_on_the_page_of_all_emails(replace):
    assert all(sentence.samples for sentence in list(read_keys(LAYOUT, "de").values()))
    for name in ("subject.txt", "body.html", "body.txt"):
        replace(f"order.cancelled/{name}", "{% if name == 'X' %}{% trans %}Ours{% endtrans %}{% endif %}")
    unsaid = [sentence for sentence in read_keys(LAYOUT, "de").values() if not sentence.samples]
    assert Key("", "Reason: %(reason)s") in [key for sentence in unsaid for key in sentence.keys("de")]
    assert list(read_keys(LAYOUT, "de").values())[-len(unsaid) :] == unsaid
    assert not [sentence for sentence in unsaid if sentence.msgid == "Ours"]  # only a published one is


@pytest.mark.parametrize("language", [language for language, _ in project.LANGUAGES])
@pytest.mark.parametrize("event_type", [*EMAILS, LAYOUT])
def test_no_sentence_lets_a_value_be_html(event_type, language):
    sentences = sentences_of(event_type)
    for key, sentence in read_keys(event_type, language).items():
        allowed = sorted(sentences.allowed(sentence))
        text = "**<b>** " + " ".join(f"{{{name}}}" for name in allowed[:20]) + "\n[<b>](https://a.test?<b>)"
        for words in (NO_WORDS, Words({key: read(text)})):
            for file in ("{{ p(%s) }}", "{{ %s }}", "<p>{{ %s }}</p>"):
                html = say(file, key, sentence, language, words, dict.fromkeys(allowed, "<b>"))
                values = original(key, language).count("{") if words is NO_WORDS else len(allowed[:20]) + 2
                assert "<b>" not in html and html.count("&lt;b&gt;") >= values, key


def say(file: str, key: Key, sentence: Sentence, language: str, words: Words, values: dict[str, str]) -> str:
    """Say a sentence in HTML with values."""
    call = "gettext(key.msgid, **written)"
    if key.plural:
        call = "ngettext(key.msgid, key.plural, number, **written)"
    elif key.context:
        call = "pgettext(key.context, key.msgid, **written)"
    if not key.msgid:
        call = "own_paragraph(key.context)"
    number = next(number for number in range(200) if plural_rule(translations(language))(number) == key.form)
    written = dict.fromkeys(sentence.variables, "<b>")
    with speaking(language, words):
        template = environment().from_string(file % call)
        return template.render({**values, "key": key, "number": number, "written": written})
