"""Every URL of the web process."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.generic import RedirectView

from events.schemas import asyncapi, pages
from web.api import problem_pages, problems, schema

urlpatterns: list[URLPattern | URLResolver] = [
    path("api/v1/", include("orders.api.urls")),
    path("api/v1/", include("notifications.api.urls")),
    path("api/schema", schema.SchemaView.as_view(), name="schema"),
    path("api/", include(pages)),
    path("api/", include(asyncapi)),
    path("api/", include(problem_pages)),
    path("api/docs", schema.DocsView.as_view(url_name="schema"), name="docs"),
    path("", RedirectView.as_view(url="/api/docs"), name="home"),
    path("webhooks/", include("notifications.webhooks")),
    path("connect/", include("shop_connections.receive")),
    path("admin/", include("web.login.urls")),
    path("admin/", admin.site.urls),
    # Do not leave these to handler404, which DEBUG replaces by a page.
    re_path(r"^(?:api|webhooks|connect)(?:/|$)", problems.unknown_path),
]

handler400 = "web.api.problems.handle_400"
handler403 = "web.api.problems.handle_403"
handler404 = "web.api.problems.handle_404"
handler500 = "web.api.problems.handle_500"
