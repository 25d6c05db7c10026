"""The admin's search box, which looks for a person's words in every table that can have them.

Each app declares its searches in its admin modules with `@searches`. Every search must use an index.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from runtime.addresses import as_stored
from runtime.database import replica
from runtime.database.beginnings import LIMIT
from runtime.database.ids import parse_uuid
from runtime.database.parts import READ, SHORTEST
from web.admin import reading

#: The number of hits of each kind, newest first.
SHOWN = LIMIT
LONGEST = 255


#: The help of a list that is searched by a `Term`.
HELP = (
    "A reference or a part of it, a name, an address or its domain, a tracking number, or an id. Case makes"
    " no difference."
)


class Term(NamedTuple):
    """The text of a search, by its form: a whole address, an id, or any other text.

    That may be the beginning or a part of a reference, a part of a tracking number, the beginnings of words
    of a name, the domain of an address, or the part before its `@`.
    """

    text: str
    address: str = ""
    id: uuid.UUID | None = None

    @classmethod
    def of(cls, text: str) -> Term:
        text = text.strip()
        if "@" in text.strip("@"):
            return cls(text, address=as_stored(text))
        return cls(text, id=parse_uuid(text))

    @property
    def address_begins(self) -> str:
        """The beginning of addresses, or "" for a domain."""
        return "" if self.text.startswith("@") else self.text.rstrip("@") + "@"

    @property
    def says(self) -> str:
        """Say what is searched, and how."""
        if self.address:
            return f"the whole address {self.address}, in any case"
        if self.id:
            return f"the id {self.id}"
        text = self.text.lstrip("#")
        parts = f", references and tracking numbers with {text}" if len(text) >= SHORTEST else ""
        return (
            f"references that are or begin with {text}, with or without #{parts}, names with words that begin"
            f" so, and addresses that begin with {self.address_begins or 'nothing else'} or have this domain,"
            f" in any case and at most {LIMIT} of each; and for names, domains and parts of references in the"
            f" newest {READ:,} orders"
        )


def note_cut(request: HttpRequest) -> None:
    """Note that a search stopped before it had read all rows, so that the page says so."""
    request.__dict__["search_is_cut"] = True


def is_cut(request: HttpRequest) -> bool:
    return bool(request.__dict__.get("search_is_cut"))


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A row of the results. `key` identifies it, so that a row that two searches find is one hit."""

    key: str
    kind: str
    title: str
    url: str
    reference: str = ""
    at: dt.datetime | None = None
    state: SafeString | str = ""


Search = Callable[[HttpRequest, Term], Iterable[Hit]]
_searches: list[tuple[int, Search]] = []


def searches(place: int) -> Callable[[Search], Search]:
    """Call the decorated function for each search. It checks the permissions."""

    def register(search: Search) -> Search:
        _searches.append((place, search))
        return search

    return register


def find(request: HttpRequest, term: Term) -> list[Hit]:
    """Return the rows for the term that the user may see."""
    hits: dict[str, Hit] = {}
    for _, search in sorted(_searches, key=lambda placed: placed[0]):
        for number, hit in enumerate(search(request, term)):
            if number == SHOWN:
                note_cut(request)
                break
            hits.setdefault(hit.key, hit)
    return list(hits.values())


def _find(request: HttpRequest, term: Term) -> list[Hit]:
    """Search again on the primary if a replica finds nothing: the row may be new."""
    hits = reading.read(request, lambda: find(request, term))
    return hits if hits or not replica.is_set() else find(request, term)


def search_page(request: HttpRequest, context: dict[str, object]) -> HttpResponse:
    """Redirect to the only hit, or list all hits."""
    term = Term.of(request.GET.get("q", "").replace("\x00", "")[:LONGEST])
    hits = _find(request, term) if term.text else []
    if len(hits) == 1:
        return HttpResponseRedirect(hits[0].url)
    context |= {
        "title": "Search",
        "term": term,
        "hits": hits,
        "shown": SHOWN,
        "is_cut": is_cut(request),
        "action": reverse("admin:search"),
    }
    return TemplateResponse(request, "admin/search.html", context)
