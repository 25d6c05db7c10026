"""Read a text that an editor wrote in place of a sentence.

It may contain variables such as `{reference}`, `**bold**`, links such as `[text](https://…)`, and line breaks
between paragraphs. Nothing else is markup. The result is format strings for `%`: rendering inserts the values
and never parses them. A sentence that is no paragraph of the e-mail has the text without its markup.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from markupsafe import Markup, escape

#: The most characters of a text, and of its variables, which keeps long values from filling an e-mail.
LIMIT, VARIABLES_LIMIT = 2000, 20
_VARIABLE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_MARKUP = re.compile(r"(\*\*)|\[([^\[\]\n]+)\]\(([^()\s]*)\)")
#: Controls, line separators, what reverses or hides text, private characters, and what is none. All else is
#: taken, also emoji of later years, so that no text depends on the Unicode of one Python. So are marks of
#: direction (U+200E, U+200F, U+061C), joiners, and the tags of a flag such as that of Scotland. Those are the
#: group.
_REFUSED = re.compile(
    "(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f)"
    r"|[\x00-\x09\x0b-\x1f\x7f-\x9f\u180e\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\ufffe\uffff"
    r"\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\U000f0000-\U0010ffff]"
)
#: What a person types who knows another way to write variables, and how it is written here.
_OTHER_VARIABLE = re.compile(r"%\((\w+)\)[sd]?")
_OTHER_BRACES = re.compile("[\uff5b\uff5d\ufe5b\ufe5c]")
_HTML = re.compile(r"</?[a-zA-Z][^<>]*>")
#: A longer text is published only after a question.
LONG = 1000


class Mistake(ValueError):
    """A text cannot be used. The message says why, for the editor."""


class NotStorable(Mistake):
    """A text cannot be kept as a draft either."""


@dataclass(slots=True)
class ShopText:
    """A text as format strings: for plain text, and for HTML as one line and as paragraphs."""

    names: set[str] = field(default_factory=set)
    text: str = ""
    line_html: Markup = field(default_factory=Markup)
    paragraphs: list[Markup] = field(default_factory=list)


def clean(text: str) -> str:
    """Return the text without spaces around it and with plain line breaks, or raise `NotStorable`."""
    text = re.sub(r"\r\n?", "\n", text).replace("\t", " ").strip()
    if len(text) > LIMIT:
        raise NotStorable(f"It has {len(text):,} characters. Write at most {LIMIT:,}.")
    refused = next((hit[0] for hit in _REFUSED.finditer(text) if not hit[1]), "")
    if refused:
        raise NotStorable(f"It contains the invisible character U+{ord(refused):04X}. Remove it.")
    return text


def read(text: str, *, variables: Collection[str] | None = None) -> ShopText:
    """Read a text that may use `variables`, or any for None. Raise `Mistake` with what is wrong."""
    text = clean(text)
    used = _VARIABLE.findall(text)
    for name in used:
        if variables is not None and name not in variables:
            listed = ", ".join(f"{{{name}}}" for name in sorted(variables))
            raise Mistake(f"{{{name}}} is no variable of this sentence. Use {listed or 'none'}.")
    if len(used) > VARIABLES_LIMIT:
        raise Mistake(f"It has {len(used)} variables. Use at most {VARIABLES_LIMIT}.")
    own = ShopText(set(used))
    lines, texts = [], []
    for source in re.split(r"\s*\n\s*", text):
        pieces = list(_pieces(source))
        lines.append("".join(plain for plain, _, _ in pieces))
        texts.append("".join(f"{plain} ({url})" if url else plain for plain, url, _ in pieces))
        own.paragraphs.append(Markup().join(_as_html(*piece) for piece in pieces))
    own.text, own.line_html = "\n\n".join(texts), escape(" ".join(lines))
    return own


def refuse_other_variables(text: str) -> None:
    """Raise `Mistake` for variables as other programs write them, which customers would read.

    Only what is typed now is checked: a published text stays in use.
    """
    if other := _OTHER_VARIABLE.search(text):
        raise Mistake(f"Write {{{other[1]}}}, and not {other[0]}.")
    if other := _OTHER_BRACES.search(text):
        raise Mistake(f"Write {{ and }} around a variable, and not {other[0]}, which is another character.")


def find_doubt(text: str) -> str:
    """Return the question that is asked before a text is published, or ""."""
    if tag := _HTML.search(text):
        return f"Customers will read {tag[0][:40]} as it stands, because HTML is no markup here."
    if len(text) > LONG:
        return f"It has {len(text):,} characters, which is long for an e-mail about an order."
    return ""


def _pieces(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield the pieces of a paragraph: its format string, the URL of a link, and a tag around it."""
    is_bold, at = False, 0
    for match in _MARKUP.finditer(source):
        bold, label, url = match.groups()
        yield _plain(source[at : match.start()]), "", "strong" if is_bold else ""
        at = match.end()
        if bold:
            is_bold = not is_bold
        else:
            yield _filled(label), _checked(url).replace("%", "%%"), "strong" if is_bold else ""
    if is_bold:
        raise Mistake("Write ** before and after the bold text of a paragraph.")
    yield _plain(source[at:]), "", ""


def _as_html(plain: str, url: str, tag: str) -> Markup:
    html = escape(plain)
    if url:
        html = Markup('<a href="{}" style="color:inherit">{}</a>').format(escape(url), html)
    return Markup(f"<{tag}>{html}</{tag}>") if tag and plain else html  # noqa: S704 - html is escaped


def _plain(text: str) -> str:
    if "](" in text:
        raise Mistake("Write a link as [text](https://…), without spaces and brackets in its address.")
    return _filled(text)


def _filled(text: str) -> str:
    """Return a text with variables as a format string."""
    parts = _VARIABLE.split(text)  # the odd ones are names
    if any("{" in part or "}" in part for part in parts[::2]):
        raise Mistake("Write { and } only around a variable, such as {reference}.")
    return "".join(
        f"%({part})s" if number % 2 else part.replace("%", "%%") for number, part in enumerate(parts)
    )


def _checked(url: str) -> str:
    if "{" in url or "}" in url:
        raise Mistake("The address of a link cannot contain a variable.")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme == "https" and bool(parts.hostname)
        has_user = "@" in parts.netloc
    except ValueError:
        is_address = has_user = False
    if not is_address:
        raise Mistake(f"The address of a link must begin with https://, and this does not: {url[:100]}")
    if has_user:
        raise Mistake(f"Leave out what is before the @, because the address looks like another: {url[:100]}")
    return url
