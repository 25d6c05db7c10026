"""A published own text replaces one sentence in HTML, text and subject, and never fails an e-mail."""

from __future__ import annotations

import random

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications.content import own_text
from notifications.content.editing import find_troubles
from notifications.content.profiles import from_settings
from notifications.content.template_files import Key, Words
from notifications.models import EmailText
from runtime.texts import break_links
from tests.kit.attacks import LINES
from tests.kit.texts import AFTER, BEFORE, HELLO, READY, SUBJECT, THANKS, publish_texts, renew
from tests.kit.words import SAMPLE, render_email

pytestmark = pytest.mark.django_db
FOUND = "Payment received for your order A-10234"


def mail(locale: str = "en", source: str = "", event_type: str = "order.paid", **context):
    profile = from_settings()
    if source:
        profile = type(profile)(source, "a@b.example", "", "Shop B", "B street", "https://b.example")
    return render_email(event_type=event_type, locale=locale, context={**SAMPLE, **context}, profile=profile)


def test_the_most_specific_text_is_said_sentence_by_sentence():
    publish_texts({SUBJECT: "de", READY: "bald"}, locale="de")
    publish_texts({SUBJECT: "b de"}, locale="de", source="shop-b")
    assert mail("de-AT").subject == mail("de", "shop-c").subject == "de"
    assert mail("de", "shop-b").subject == "b de" and "bald" in mail("de", "shop-b").body_text
    assert mail("en", "shop-b").subject == mail("it").subject == FOUND
    assert "Merci" in mail("fr").body_text


def test_a_locale_without_a_catalogue_gets_the_english_texts():
    publish_texts({SUBJECT: "own"})
    assert mail("nl-BE").subject == mail("en-GB").subject == "own"


def test_the_same_sentence_is_one_text_in_subject_html_text_and_preheader():
    key = Key("", "Your order was completed on %(changed_at)s.")
    publish_texts({key: "**Done**\n[See]( https://a.test)".replace(" ", "")}, event_type="order.completed")
    rendered = mail(event_type="order.completed", tracking_url="", parcels=[])
    assert 'mso-hide:all">Done See&#8199;' in rendered.body_html
    assert (
        '<p style="margin:0 0 14px"><strong>Done</strong></p>\n<p style="margin:0 0 14px">'
        in rendered.body_html
    )
    assert "\n\nDone\n\nSee (https://a.test)\n\n" in rendered.body_text


def test_paragraphs_before_and_after_the_lines():
    publish_texts({BEFORE: "Look at {shop_name}:\n**two**", AFTER: "Bye & [see](https://a.test)"})
    rendered = mail()
    text, html = rendered.body_text, rendered.body_html
    for body, pieces in (
        (text, ["Look at Example Shop:\n\ntwo", "Total", "Bye & see (https://a.test)", "You are receiving"]),
        (
            html,
            ['word">Look at Example Shop:</p>', "Total", 'Bye &amp; <a href="https://a.test"', "</table>"],
        ),
    ):
        places = [body.index(piece) for piece in pieces[:3]] + [body.rindex(pieces[3])]
        assert places == sorted(places), pieces
    assert "Look at" not in mail(event_type="order.placed").body_text


def test_a_text_may_use_a_variable_that_its_original_lacks():
    publish_texts({READY: "{reference}: {total_amount} {changed_at}"})
    assert "A-10234: €68.90 January" in mail().body_text
    assert "A-10234: €68.90 January" in mail().body_html


def test_a_variable_without_a_value_after_all_leaves_the_original():
    publish_texts({READY: "At {shop_address}"})
    profile = type(from_settings())("", "a@b.example", "", "S", "", "")
    rendered = render_email(event_type="order.paid", locale="en", context=SAMPLE, profile=profile)
    assert "We are now getting your order ready." in rendered.body_text


def test_values_are_escaped_and_never_parsed():
    publish_texts({HELLO: "Dear **{name}**,"}, event_type="layout")
    evil = "[Pay here](https://evil.example) <b>**{reference}** %(x)s"
    rendered = mail(name=evil)
    broken = break_links(evil)
    assert f"Dear {broken}," in rendered.body_text
    escaped = broken.replace("<b>", "&lt;b&gt;")
    assert f"Dear <strong>{escaped}</strong>," in rendered.body_html
    assert 'href="https://evil.example' not in rendered.body_html


def test_the_layout_is_changed_once_for_all_emails():
    publish_texts({HELLO: "Hi {name}!"}, event_type="layout")
    for event_type in ("order.paid", "order.cancelled"):
        assert "Hi Anna Schmidt!" in mail(event_type=event_type).body_html


def test_each_form_of_a_plural_has_its_text():
    singular, plural = (Key("", "and one more item", "and %(counter)s more items", form) for form in (0, 1))
    publish_texts({plural: "plus {counter}"}, event_type="layout")
    assert "plus 7" in mail(more_items=7).body_text and "and one more item" in mail(more_items=1).body_text
    publish_texts({singular: "plus one"}, event_type="layout")
    assert "plus one" in mail(more_items=1).body_html and "and 7 more items" in mail(more_items=7).body_html


def test_the_email_names_its_versions():
    assert mail().text_versions == ()
    layout = publish_texts({HELLO: "Hi {name}"}, event_type="layout")
    paid = publish_texts()
    other = publish_texts(event_type="order.paid", source="shop-b")
    assert mail().text_versions == (str(layout.id), str(paid.id))
    assert mail(source="shop-b").text_versions == (str(layout.id), str(paid.id), str(other.id))
    assert mail("de").text_versions == ()


def test_a_text_whose_variable_is_gone_is_not_used_and_the_rest_is():
    version = publish_texts({THANKS: "Thanks for {lost}", SUBJECT: "own"})
    rendered = mail()
    assert rendered.subject == "own" and "Thank you. On" in rendered.body_text
    (trouble,) = find_troubles(version.sentences, event_type="order.paid", language="en")
    assert trouble["says"].startswith(
        "Your text is not used, and the original is sent. {lost} is no variable"
    )


def test_a_text_for_an_older_original_is_used_and_named():
    version = publish_texts({READY: "Soon."}, originals={READY: "We are getting ready."})
    assert "Soon." in mail().body_text
    (trouble,) = find_troubles(version.sentences, event_type="order.paid", language="en")
    assert trouble == {
        "says": "Your text was written for an older original. If it still fits, publish it again.",
        "text": "Soon.",
        "original": "We are getting ready.",
        "now": "We are now getting your order ready.",
    }


def test_a_text_without_its_sentence_is_not_used_and_named():
    gone = READY._replace(msgid="We did.")
    version = publish_texts({gone: "Soon."})
    assert "Soon." not in mail().body_text
    (trouble,) = find_troubles(version.sentences, event_type="order.paid", language="en")
    assert (trouble["says"], trouble["now"]) == (
        "No sample order has this sentence. Your text is used only if an e-mail still has it.",
        "",
    )


def test_a_row_that_cannot_be_read_keeps_no_other_from_a_process(caplog):
    publish_texts({SUBJECT: "own"})
    broken = publish_texts(event_type="layout")
    type(broken).objects.filter(id=broken.id).update(sentences=[{"text": 1}])
    renew()
    assert mail().subject == "own"
    assert "own texts not used" in caplog.text


def test_withdrawn_texts_are_not_said():
    publish_texts()
    EmailText.objects.update(published=None)
    renew()
    assert mail().subject == FOUND


def test_a_process_reads_a_version_once_and_rendering_reads_nothing(monkeypatch):
    parsed = []
    read = own_text.read
    monkeypatch.setattr(own_text, "read", lambda text, **values: parsed.append(text) or read(text, **values))
    publish_texts({SUBJECT: "own", READY: "soon"})
    assert parsed == ["own", "soon"]
    with CaptureQueriesContext(connection) as captured:
        assert [mail().subject for _ in range(3)] == ["own"] * 3
    assert captured.captured_queries == [] and len(parsed) == 2


def test_an_email_grows_by_the_text_alone_whatever_an_editor_writes():
    """Ten thousand random texts: each is refused or said, and no rendering reads one or fails."""
    chance, said = random.Random(70), 0
    usual, value = len(mail().body_html), "W" * 200
    context = {**SAMPLE, "reference": value, "name": value}
    least = len(render_email(event_type="order.paid", locale="en", context=context).body_html)
    assert least > usual
    for _ in range(10_000):
        text = "".join(chance.choices(LINES, k=chance.randint(1, 25)))
        try:
            own = own_text.read(text, variables={"reference", "name"})
        except own_text.Mistake:
            continue
        said += 1
        words = Words({READY: own})
        rendered = render_email(event_type="order.paid", locale="en", context=context, words=words)
        # An escaped character has up to five; each piece of markup has its tags, and a variable its value.
        most = 5 * len(text) + 60 * (text.count("](") + text.count("\n") + text.count("**"))
        most += len(value) * (text.count("{reference}") + text.count("{name}"))
        assert len(rendered.body_html) <= least + most, text
    assert said > 1000
