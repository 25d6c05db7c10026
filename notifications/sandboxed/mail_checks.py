"""Check each e-mail that a template of the database renders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from notifications.parts import RenderedEmail

#: Gmail shows no more than 102 kB of an e-mail's HTML.
BODY_LIMIT = 100_000
#: Mail programs remove these.
_REMOVED = frozenset(["base", "embed", "form", "frame", "iframe", "link", "object", "script"])
_LINKS = frozenset(["action", "background", "href", "poster", "src", "srcset"])
_PLAIN = re.compile(r"\bhttp://(?!www\.w3\.org/)[^\s\"'<>()]{0,200}", re.IGNORECASE)


def check_mail(mail: RenderedEmail) -> Iterator[tuple[str, str]]:
    """Yield the name of a part and what is wrong in it."""
    if not mail.subject:
        yield "subject.txt", "The subject is empty."
    for part, body in (("body.txt", mail.body_text), ("body.html", mail.body_html)):
        if not body.strip():
            yield part, "This part is empty."
        if (size := len(body.encode())) > BODY_LIMIT:
            yield part, f"This part has {size // 1000} kB. Gmail shows {BODY_LIMIT // 1000} kB."
        for link in dict.fromkeys(_PLAIN.findall(body)):
            yield part, f"Links must be https, and this is not: {link}"
    if len(mail.body_html) <= BODY_LIMIT:
        reader = _Reader()
        reader.feed(mail.body_html)
        reader.close()
        for text in dict.fromkeys(reader.wrong):
            yield "body.html", text


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _REMOVED:
            self.wrong.append(f"Mail programs remove the element {tag}.")
        for name, given in attrs:
            value = (given or "").strip()
            if name.startswith("on"):
                self.wrong.append(f"Mail programs remove the attribute {name}.")
            elif name in _LINKS and not _is_link(value) and not _PLAIN.match(value):
                self.wrong.append(f"Links must be https, and this is not: {value[:200]}")


def _is_link(value: str) -> bool:
    return value.startswith(("https://", "mailto:", "tel:", "cid:", "#"))
