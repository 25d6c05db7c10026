"""The one search box of the admin: an exact term, looked up in every table that can have it.

Each app declares what it can find in its admin modules, with `@searches`. Every look-up reads an index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

#: Hits shown of each kind; the newest come first.
SHOWN = 20
LONGEST = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A row that was found. `key` names it, so that the same row found twice is one hit."""

    key: str
    kind: str
    title: str
    detail: str
    url: str


Search = Callable[[HttpRequest, str], Iterable[Hit]]
_searches: list[tuple[int, Search]] = []


def searches(place: int) -> Callable[[Search], Search]:
    """Have the decorated function asked for hits. It checks the permissions."""

    def register(search: Search) -> Search:
        _searches.append((place, search))
        return search

    return register


def find(request: HttpRequest, term: str) -> list[Hit]:
    """Return what the user may see of what the term names."""
    hits: dict[str, Hit] = {}
    for _, search in sorted(_searches, key=lambda one: one[0]):
        for hit in search(request, term):
            hits.setdefault(hit.key, hit)
    return list(hits.values())


def search_page(request: HttpRequest, context: dict[str, object]) -> HttpResponse:
    """Go straight to the only hit, else list all."""
    term = request.GET.get("q", "").strip().replace("\x00", "")[:LONGEST]
    hits = find(request, term) if term else []
    if len(hits) == 1:
        return HttpResponseRedirect(hits[0].url)
    context |= {
        "title": "Search",
        "term": term,
        "hits": hits,
        "shown": SHOWN,
        "action": reverse("admin:search"),
    }
    return TemplateResponse(request, "admin/search.html", context)
