"""Texts of others: one line, without invisible characters and links, and as PostgreSQL can store them."""

from __future__ import annotations

import re

#: C0 (with NUL, CR and LF), DEL, C1, Unicode's two line separators, and surrogates.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: Invisible characters that change the order of others or hide text, and tags outside the flags that need
#: them. Words and emoji need joiners (U+200C, U+200D), variation selectors and soft hyphens, which stay.
_DROPPED = re.compile(
    "(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f)"
    r"|[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
#: No space, and neither a default ignorable code point of Unicode nor one with an empty glyph. Most texts
#: have a letter of ASCII, which is found sooner.
_VISIBLE = re.compile(
    r"[A-Za-z]|[^\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3"
    r"\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

_DOT = r"[.\u3002\uff0e\uff61]"
_SCHEMES = ("callto", "facetime", "geo", "mailto", "maps", "sip", "sips", "skype", "sms", "tel", "whatsapp")
_AFTER_SCHEME = "|".join(rf"(?<=\b(?i:{scheme}):)" for scheme in _SCHEMES)
_AFTER_WWW = r"(?<=\b(?i:www).)|(?<=\b(?i:www)\d.)|(?<=\b(?i:ftp).)"
#: Begins with a set of characters that few texts have, which makes a search cheap.
_LINKED = re.compile(
    r"[.:@\\\u3002\uff0e\uff1a\uff61](?=\S)(?:"
    # A bare domain, and an IPv4 address
    rf"(?P<joined>(?<={_DOT})(?:(?=[\u00ad\u200d]*[^\W\d_][^\s.])(?<=[^\s.].)|(?=\d{{1,3}}\.\d{{1,3}}\.\d)(?<=\d.)(?<!\d{{4}}.))"
    rf"(?!{_AFTER_WWW}))|(?<={_DOT})(?:{_AFTER_WWW})"
    # A scheme, with slashes or one of those that need none
    rf"|(?<=[:\uff1a])(?=[\u00ad\u200c\u200d]*[/\\])|(?<=:)(?:{_AFTER_SCHEME})"
    # The @ of an address, and Outlook's \\server\share
    rf"|(?<=@)(?=[^\s@]+{_DOT}[\u00ad\u200c\u200d]*\w)|(?<=\\)(?=\\))"
)


def one_line(text: str) -> str:
    r"""Return a text as one line, without invisible characters that no word needs.

    A text without any visible character is empty.

    >>> one_line("A\r\nB\u202e"), one_line("\u3164\u200d")
    ('A B', '')
    """
    if not text.isprintable():
        text = _DROPPED.sub(r"\1", CONTROL_CHARACTERS.sub(" ", text))
    return " ".join(text.split()) if text.isascii() or _VISIBLE.search(text) else ""


def has_visible(text: str) -> bool:
    """Return whether a reader sees anything of a text."""
    return _VISIBLE.search(text) is not None


def name_invisible(text: str) -> str:
    r"""Return an error that names the first character that `one_line` would drop, or "".

    >>> name_invisible("Shop\u200f")
    'Contains an invisible character (U+200F). Remove it.'
    """
    dropped = next((hit[0] for hit in _DROPPED.finditer(text) if not hit[1]), "")
    if not dropped and text.strip() and not has_visible(text):
        dropped = text.strip()[0]
    return f"Contains an invisible character (U+{ord(dropped):04X}). Remove it." if dropped else ""


def break_links(text: str) -> str:
    r"""Return a text of `one_line` in which mail programs link nothing.

    Programs link all up to a space, which is why one follows a scheme, "www." and the @ of an address. A bare
    domain is linked only if its end is known to the program. There U+200C after the dot suffices. It cannot
    be seen, and "Node.js" looks as before.

    >>> break_links("http://evil.example"), break_links("Anna Schmidt")
    ('http: //evil.\u200cexample', 'Anna Schmidt')
    """
    if not _LINKED.search(text):
        return text
    return _LINKED.sub(lambda hit: hit[0] + (" " if hit["joined"] is None else "\u200c"), text)


def make_storable(text: str) -> str:
    """Return a text without NUL and with `?` for each lone surrogate, which PostgreSQL cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")
