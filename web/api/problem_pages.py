"""/api/problems: a page for each problem type. Like the API's document, they need no token."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import path, reverse

from web.api.get_only import get_only
from web.api.problem_types import find_types
from web.api.problems import not_found


@get_only
def index(request: HttpRequest) -> HttpResponse:
    """List all problem types."""
    return HttpResponse(render_to_string("problems.html", {"types": find_types().values()}))


@get_only
def problem_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Explain one problem type."""
    problem_type = find_types().get(slug)
    if problem_type is None:
        raise not_found(f"Unknown problem type. Use one of those at {reverse('problems')}.")
    return HttpResponse(render_to_string("problem.html", {"type": problem_type}))


urlpatterns = [
    path("problems", index, name="problems"),
    path("problems/<str:slug>", problem_page, name="problem"),
]
