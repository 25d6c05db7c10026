"""Walk through the admin like a user: follow every link and press every button of each page."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from urllib.parse import parse_qs, urljoin, urlsplit

from django.test import Client

#: Links that are not followed, because they end or change the session.
LEFT = re.compile(r"/(logout|login|jsi18n|password_change)/")
#: Parameters of the previous page and of a list's order.
KEPT = {"_changelist_filters", "o", "p", "e", "all", "select_across", "csrfmiddlewaretoken"}
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=/)\d+(?=/)")


@dataclasses.dataclass
class Form:
    action: str
    method: str
    fields: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    buttons: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    choices: dict[str, list[str]] = dataclasses.field(default_factory=dict)


class Page(HTMLParser):
    """The links and forms of a page. Only the first check box of a name is ticked."""

    def __init__(self, url: str, html: str) -> None:
        super().__init__()
        self.url, self.links, self.forms = url, list[str](), list[Form]()
        self._form: Form | None = None
        self._select = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag in ("a", "iframe") and (link := attributes.get("href") or attributes.get("src")):
            if not link.startswith("#"):  # the same page
                self.links.append(urljoin(self.url, link))
        elif tag == "form":
            action = urljoin(self.url, attributes.get("action") or self.url)
            self._form = Form(action, attributes.get("method", "get").lower())
            self.forms.append(self._form)
        elif self._form is not None:
            self._field(self._form, tag, attributes)

    def _field(self, form: Form, tag: str, attributes: dict[str, str]) -> None:
        name, value, kind = (
            attributes.get("name", ""),
            attributes.get("value", ""),
            attributes.get("type", "text"),
        )
        if tag == "button" or (tag == "input" and kind == "submit"):
            form.buttons.append((name, value))
        elif tag == "input" and kind in ("checkbox", "radio"):
            if name and name not in dict(form.fields):
                form.fields.append((name, value or "on"))
        elif tag in ("input", "textarea") and name:
            form.fields.append((name, value))
        elif tag == "select":
            self._select = name
            form.choices[name] = []
        elif tag == "option" and self._select:
            form.choices[self._select].append(value)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "select":
            self._select = ""

    def requests(self) -> list[tuple[Form, dict[str, list[str]]]]:
        """Return the data of each form's buttons, once for each choice of an action."""
        pairs = []
        for form in self.forms:
            if not form.buttons or form.method == "dialog":
                continue  # Django's read-only pages are such forms, and a dialog's sends nothing
            fixed: dict[str, list[str]] = {}
            for name, value in form.fields:
                fixed.setdefault(name, []).append(value)
            for name, values in form.choices.items():
                fixed[name] = values[-1:]
            actions = [value for value in form.choices.get("action", []) if value]
            for name, value in form.buttons:
                for action in actions or [""]:
                    data = (
                        fixed | ({name: [value]} if name else {}) | ({"action": [action]} if action else {})
                    )
                    pairs.append((form, data))
        return pairs


def walk(client: Client, start: str, *, most: int = 250) -> dict[str, int]:
    """Follow and press everything reachable from `start`. Return each request's status.

    Visit pages that differ only in the ids or values of their address once.
    """
    statuses: dict[str, int] = {}
    seen: set[str] = set()
    queue = [start]
    while queue and len(statuses) < most:
        url = queue.pop(0)
        parts = urlsplit(url)
        names = sorted(parse_qs(parts.query, keep_blank_values=True).keys() - KEPT)
        shape = f"{_ID.sub('ID', parts.path)}?{names}"
        if len(names) > 1:
            continue  # a filter on top of another
        if parts.netloc or not parts.path.startswith("/admin/") or LEFT.search(parts.path) or shape in seen:
            continue
        seen.add(shape)
        answer = client.get(url)
        statuses[f"GET {url}"] = answer.status_code
        if answer.status_code in (301, 302):
            queue.append(urljoin(url, answer["Location"]))
        pages = [_page(url, answer)]
        while pages:
            page = pages.pop()
            queue += page.links
            for form, data in page.requests():
                where = _ID.sub("ID", urlsplit(form.action).path)
                press = f"{form.method} {where} {data.get('action')} {sorted(data.keys() - KEPT)}"
                if LEFT.search(form.action) or press in seen:
                    continue
                seen.add(press)
                send = client.post if form.method == "post" else client.get
                answer = send(form.action, data, follow=True)
                statuses[press] = answer.status_code
                pages.append(_page(form.action, answer))
    return statuses


def _page(url: str, answer: object) -> Page:
    if getattr(answer, "streaming", False):
        answer.getvalue()  # type: ignore[attr-defined]  # until then it keeps its user's turn
        return Page(url, "")
    if "html" not in answer["Content-Type"]:  # type: ignore[index]
        return Page(url, "")
    return Page(url, answer.content.decode())  # type: ignore[attr-defined]
