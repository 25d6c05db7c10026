"""An own text may contain variables, and in a paragraph bold text and links. Everything else stays text."""

from __future__ import annotations

from typing import Any

import pytest
from markupsafe import Markup

from notifications.content.own_text import Mistake, NotStorable, ShopText, read, refuse_other_variables
from tests.kit.attacks import TYPED

VARIABLES = frozenset({"name", "reference"})


def filled(own: ShopText, **values: str) -> dict[str, Any]:
    """Return what an e-mail shows."""
    values = {"name": "Ann", "reference": "R-1"} | values
    return {
        "text": own.text % values,
        "line_html": own.line_html % values,
        "paragraphs": [paragraph % values for paragraph in own.paragraphs],
    }


def shown_of(text: str, **values: str) -> dict[str, Any]:
    return filled(read(text, variables=VARIABLES), **values)


def test_it_inserts_variables_and_keeps_everything_else_as_text():
    shown = shown_of("50 % <b> {reference} & *{name}* [x] (http://y)")
    assert shown["text"] == "50 % <b> R-1 & *Ann* [x] (http://y)"
    assert [shown["line_html"]] == shown["paragraphs"] == ["50 % &lt;b&gt; R-1 &amp; *Ann* [x] (http://y)"]


def test_it_may_have_bold_text_links_and_several_paragraphs_which_a_line_leaves_out():
    shown = shown_of("Dear **{name}**,\n\n\nsee [our {reference} & page](https://a.test/?b=1&c=%20) **!**")
    assert shown == {
        "line_html": "Dear Ann, see our R-1 &amp; page !",
        "text": "Dear Ann,\n\nsee our R-1 & page (https://a.test/?b=1&c=%20) !",
        "paragraphs": [
            "Dear <strong>Ann</strong>,",
            'see <a href="https://a.test/?b=1&amp;c=%20" style="color:inherit">our R-1 &amp; page</a>'
            " <strong>!</strong>",
        ],
    }


def test_a_link_may_be_bold():
    assert "<strong><a " in shown_of("**Read [this](https://a.test)**")["paragraphs"][0]


def test_a_value_is_never_parsed():
    evil = "**[Pay here](https://evil.example)** {reference} %(reference)s\n<b>"
    shown = shown_of("Dear {name}", name=evil)
    assert shown["text"] == f"Dear {evil}"
    assert [shown["line_html"]] == shown["paragraphs"] == [f"Dear {Markup.escape(evil)}"]


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
        read(text, variables=VARIABLES)
    assert says in str(caught.value)


def test_a_line_break_is_a_space_in_a_line():
    assert shown_of(" Hello\t{name} \n")["text"] == "Hello Ann"
    assert shown_of("a\nb")["line_html"] == "a b"


@pytest.mark.parametrize(
    "char", ["\x00", "\u202e", "\u2028", "\u200b", "\ud800", "\ufeff", "\x1b", "\U000e0067"]
)
def test_what_nobody_sees_is_refused_by_name(char):
    with pytest.raises(NotStorable, match=rf"invisible character U\+{ord(char):04X}\. Remove it"):
        read(f"a{char}b")


def test_letters_of_every_script_and_emoji_stay():
    scotland = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
    marks = (
        f"{scotland} \U0001fae8\U0001fae9 שלום\u200f \u061c؟\u200e"  # the second is newer than this Python
    )
    text = f"Grüße, 注文、\u00a0मन\u200d, 👩\u200d🚀 \u00ad! {marks}"
    assert shown_of(text)["text"] == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Order %(reference)s", "Write {reference}, and not %(reference)s."),
        ("Order \uff5breference\uff5d", "Write { and } around a variable, and not \uff5b"),
        ("100 % (all)", ""),
    ],
)
def test_variables_of_other_programs_are_named_where_they_are_typed(text, says):
    assert read(text)  # a published one stays in use
    try:
        refuse_other_variables(text)
    except Mistake as mistake:
        assert says and str(mistake).startswith(says)
    else:
        assert not says


@pytest.mark.parametrize("typed", TYPED.values(), ids=TYPED)
def test_what_attackers_type_is_refused_or_stays_text(typed):
    try:
        own = read(typed, variables=VARIABLES)
    except Mistake as mistake:
        assert len(str(mistake)) < 300
        return
    shown = filled(own)
    line = " ".join(shown["text"].split())
    assert line == " ".join(typed.split())
    assert shown["line_html"] == Markup.escape(line)
