"""An own text may contain variables, and in a paragraph bold text and links. Everything else stays text."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from notifications.content.own_text import Mistake, NotStorable, ShopText, read
from tests.kit.attacks import TYPED

VARIABLES = frozenset({"name", "reference"})


def filled(own: ShopText, **values: str) -> dict[str, str]:
    """Return what each place of an e-mail shows."""
    values = {"name": "Ann", "reference": "R-1"} | values
    return {
        "line": own.at("", is_html=False) % values,
        "line_html": own.at("", is_html=True) % values,
        "text": own.at("text", is_html=False) % values,
        "html": own.at("<p>", is_html=True) % values,
    }


def paragraph(text: str, **values: str) -> dict[str, str]:
    return filled(read(text, variables=VARIABLES, is_paragraph=True), **values)


def test_it_inserts_variables_and_keeps_everything_else_as_text():
    shown = filled(
        read("50 % <b> {reference} & **{name}** [x](http://y)", variables=VARIABLES, is_paragraph=False)
    )
    assert shown["line"] == shown["text"] == "50 % <b> R-1 & **Ann** [x](http://y)"
    assert shown["html"] == shown["line_html"] == "50 % &lt;b&gt; R-1 &amp; **Ann** [x](http://y)"


def test_a_paragraph_may_have_bold_text_links_and_several_paragraphs():
    shown = paragraph("Dear **{name}**,\n\n\nsee [our {reference} & page](https://a.test/?b=1&c=%20) **!**")
    assert shown == {
        "line": "Dear Ann, see our R-1 & page !",
        "line_html": "Dear Ann, see our R-1 &amp; page !",
        "text": "Dear Ann,\n\nsee our R-1 & page (https://a.test/?b=1&c=%20) !",
        "html": "Dear <strong>Ann</strong>,</p>\n<p>see "
        '<a href="https://a.test/?b=1&amp;c=%20" style="color:inherit">our R-1 &amp; page</a>'
        " <strong>!</strong>",
    }


def test_a_link_may_be_bold():
    assert "<strong><a " in paragraph("**Read [this](https://a.test)**")["html"]


def test_a_value_is_never_parsed():
    evil = "**[Pay here](https://evil.example)** {reference} %(reference)s\n<b>"
    shown = paragraph("Dear {name}", name=evil)
    assert shown["text"] == shown["line"] == f"Dear {evil}"
    assert shown["html"] == f"Dear {Markup.escape(evil)}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{lost}", "{lost} is no variable of this sentence. Use {name}, {reference}."),
        ("{total_amount}", "{total_amount} is no variable of this sentence. Use {name}, {reference}."),
        ("{{ name }}", "Write { and } only around a variable, such as {reference}."),
        ("{% if name %}", "Write { and } only around a variable"),
        ("{name", "Write { and } only around a variable"),
        ("}", "Write { and } only around a variable"),
        ("{name.__class__}", "Write { and } only around a variable"),
        (
            "[x](http://a.test)",
            "The address of a link must begin with https://, and this does not: http://a.",
        ),
        ("[x](javascript:alert(1))", "Write a link as [text](https://…)"),
        ("[x](javascript:alert)", "must begin with https://"),
        ("[x](https://)", "must begin with https://"),
        ("[x](https://[a)", "must begin with https://"),
        ("[x]()", "must begin with https://"),
        ("[x](https://a.test/{name})", "The address of a link cannot contain a variable."),
        ("[x] (https://a.test) [](https://a.test)", "Write a link as [text](https://…)"),
        ("[x](https://a.test/ b)", "Write a link as [text](https://…)"),
        ("**bold", "Write ** before and after the bold text of a paragraph."),
        ("**bold\nand** more", "Write ** before and after"),
        ("{name}" * 21, "It has 21 variables. Use at most 20."),
        ("x" * 2001, "It has 2,001 characters. Write at most 2,000."),
    ],
)
def test_a_mistake_says_what_would_be_right(text, says):
    with pytest.raises(Mistake) as caught:
        read(text, variables=VARIABLES, is_paragraph=True)
    assert says in str(caught.value)


def test_a_label_is_one_line():
    assert filled(read(" Hello\t{name} \n", variables=VARIABLES, is_paragraph=False))["line"] == "Hello Ann"
    with pytest.raises(Mistake, match="Write it in one line"):
        read("a\nb", variables=(), is_paragraph=False)


@pytest.mark.parametrize("char", ["\x00", "\u202e", "\u2028", "\u200b", "\ud800", "\ufeff", "\x1b"])
def test_what_nobody_sees_is_refused_by_name(char):
    with pytest.raises(NotStorable, match=rf"invisible character U\+{ord(char):04X}\. Remove it"):
        read(f"a{char}b", variables=(), is_paragraph=True)


def test_letters_of_every_script_and_emoji_stay():
    text = "Grüße, 注文、\u00a0मन\u200d, 👩\u200d🚀 \u00ad!"
    assert paragraph(text)["text"] == text


@pytest.mark.parametrize("is_paragraph", [True, False])
@pytest.mark.parametrize("typed", TYPED.values(), ids=TYPED)
def test_what_attackers_type_is_refused_or_stays_text(typed, is_paragraph):
    try:
        own = read(typed, variables=VARIABLES, is_paragraph=is_paragraph)
    except Mistake as mistake:
        assert len(str(mistake)) < 300
        return
    shown = filled(own)
    assert shown["line"] == " ".join(typed.split())
    assert shown["line_html"] == Markup.escape(shown["line"])
