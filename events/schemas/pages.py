"""/api/schemas: the JSON Schemas of events and commands. Like the API's document, they need no token."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse

from events.schemas.schemas import find_schemas, read_schema
from web.api.get_only import get_only
from web.api.problems import not_found
from web.api.views import json_response

CONTENT_TYPE = "application/schema+json"


@get_only
def index(request: HttpRequest) -> HttpResponse:
    """List the schemas: `out` for published events, `in` for inbound events and commands."""
    lines = [
        {
            "direction": name.direction,
            "name": name.name,
            "title": read_schema(file)["title"],
            "url": request.build_absolute_uri(reverse("event_schema", args=name)),
        }
        for name, file in find_schemas().items()
    ]
    return json_response({"schemas": lines})


@get_only
def schema_page(request: HttpRequest, direction: str, name: str) -> HttpResponse:
    """Answer with the file of one schema."""
    file = {tuple(name): file for name, file in find_schemas().items()}.get((direction, name))
    if file is None:
        raise not_found(f"Unknown schema. Use one of those at {reverse('event_schemas')}.")
    return HttpResponse(file.read_bytes(), CONTENT_TYPE)


urlpatterns = [
    path("schemas", index, name="event_schemas"),
    path("schemas/<str:direction>/<str:name>", schema_page, name="event_schema"),
]
