"""The admin's search box: find an exact term in every table that can have it.

Each app declares its searches in its admin modules with `@searches`. Every search must use an index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from runtime.database import replica
from web.admin import reading

#: The number of hits of each kind, newest first.
SHOWN = 20
LONGEST = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A found row. `key` identifies it, so that a row found twice is one hit."""

    key: str
    kind: str
    title: str
    detail: str
    url: str


Search = Callable[[HttpRequest, str], Iterable[Hit]]
_searches: list[tuple[int, Search]] = []


def searches(place: int) -> Callable[[Search], Search]:
    """Call the decorated function for each search. It checks the permissions."""

    def register(search: Search) -> Search:
        _searches.append((place, search))
        return search

    return register


def find(request: HttpRequest, term: str) -> list[Hit]:
    """Return the rows for the term that the user may see."""
    hits: dict[str, Hit] = {}
    for _, search in sorted(_searches, key=lambda placed: placed[0]):
        for hit in search(request, term):
            hits.setdefault(hit.key, hit)
    return list(hits.values())


def _find(request: HttpRequest, term: str) -> list[Hit]:
    """Search again on the primary if a replica finds nothing: the row may be new."""
    hits = reading.read(request, lambda: find(request, term))
    return hits if hits or not replica.is_set() else find(request, term)


def search_page(request: HttpRequest, context: dict[str, object]) -> HttpResponse:
    """Redirect to the only hit, or list all hits."""
    term = request.GET.get("q", "").strip().replace("\x00", "")[:LONGEST]
    hits = _find(request, term) if term else []
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
