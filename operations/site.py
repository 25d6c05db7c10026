"""The admin's site: its first page, the menu of every page, and the set-up page.

The menu has the pages of models whose ModelAdmin has a `menu` (a place and a title). All others are under
"Set-up": users, groups, tokens and Celery's tables. Django loads the site before the pages that register with
it, which is why this module is outside `operations.admin`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, cast

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.views import PasswordChangeView
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DataError, IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from psycopg.errors import UniqueViolation

from runtime.binding import UNBOUND
from runtime.database.away import silence
from runtime.faults import ServerTrouble
from web.admin import reading
from web.admin.acts import with_audit
from web.admin.base import ListAdmin
from web.admin.menu import GROUPS, MenuItem, Page
from web.admin.page_limits import RETRY_SECONDS, Refused, limit_page
from web.admin.rights import describe_missing, describe_refusal, shops_of
from web.api.problems import away_page

_NOT_A_VALUE = "The request has a value that cannot be stored or found, such as a NUL character."


def _checked_again(view: Any) -> Any:
    """Check a form again if another request has stored the same since its check, as with a double click.

    The transaction of the first try is rolled back, and the second one finds the row.
    """

    @functools.wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return view(request, *args, **kwargs)
        except IntegrityError as error:
            if not isinstance(error.__cause__, UniqueViolation):
                raise
            return view(request, *args, **kwargs)

    return checked


def _is_ours(view: Any) -> bool:
    """Return whether a view is not of Django or of another library."""
    package = getattr(view, "func", view).__module__.partition(".")[0]  # the menu's pages are partials
    return bool((settings.BASE_DIR / package).is_dir())


def _in_transaction(view: Any) -> Any:
    """Let a post to a view of a library commit with its row of the audit, as some open no transaction.

    Ours open their own, because some ask a provider in between, or wake a worker afterwards.
    """

    @functools.wraps(view)
    def committed(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        with transaction.atomic() if request.method == "POST" else contextlib.nullcontext():
            return view(request, *args, **kwargs)

    return committed


def _with_ids(view: Any) -> Any:
    """Refuse ids in the address of rows of other shops, and ticked rows that are no ids of the page's table.

    Django raises ValueError for numbers.
    """

    @functools.wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if isinstance(page := getattr(view, "__self__", None), admin.ModelAdmin):
            for text in request.POST.getlist(ACTION_CHECKBOX_NAME):
                page.opts.pk.to_python(text)
            _require_rows(page, request, kwargs)
        return view(request, *args, **kwargs)

    return checked


def _require_rows(page: admin.ModelAdmin[Any], request: HttpRequest, ids: Mapping[str, Any]) -> None:
    """Raise `Http404` if a bound user asks for the row of another shop, whatever the view does with it."""
    if shops_of(request).is_unbound:
        return
    for name, value in ids.items():
        if name.endswith("id") and not (isinstance(page, ListAdmin) and page.has_row(request, name, value)):
            if not page.has_view_permission(request):
                raise PermissionDenied
            raise Http404


class Site(admin.AdminSite):
    site_header = site_title = "orderpost"
    index_title = "Overview"
    site_url = None  # no link "View site": the API is for programs
    enable_nav_sidebar = False  # the lists need the width more than a second menu

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        """Let each page, also one of a library, write its acts into the audit."""
        super().register(model_or_iterable, with_audit(admin_class or admin.ModelAdmin), **options)

    def get_urls(self) -> list[URLPattern | URLResolver]:
        page = self.admin_view(self.set_up_view)
        search = self.admin_view(self.search_view)
        own_page = self.admin_view(self.own_page_view)
        return [
            path("set-up/", page, name="set_up"),
            path("search/", search, name="search"),
            path("account/", own_page, name="own_page"),
            *(
                path(page.route, self.admin_view(functools.partial(page.view, self)), name=page.menu.name)
                for page in self._pages()
            ),
            *super().get_urls(),
        ]

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Let the primary answer a user for some seconds after a change. Answer what was refused."""
        checked = _with_ids(view)
        inner = _checked_again(
            super().admin_view(checked if _is_ours(view) else _in_transaction(checked), cacheable)
        )

        @functools.wraps(inner)
        def noted(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            try:
                response = inner(request, *args, **kwargs)
            except Refused as refusal:
                return self._wait_page(request, refusal)
            except PermissionDenied as refusal:
                return self._refused_page(request, str(refusal) or self._describe_refusal(request, view))
            except (DataError, ValidationError):
                # No form of a page sends such a value: a NUL, or an id that is none.
                return self._wait_page(request, Refused(_NOT_A_VALUE, status=400))
            reading.note_change(request, response)
            return response

        return noted

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the form, or check a password unless another one is being checked."""
        if silence.since is not None and request.method == "GET":
            return away_page(ServerTrouble("PostgreSQL does not answer", ""))
        try:
            return self._login(request)
        except Refused as refusal:
            return self._wait_page(request, refusal)

    def _login(self, request: HttpRequest) -> HttpResponse:
        from web.login.passwords import PasswordLogin, usable_page  # imported late, because it imports models

        page = usable_page(request.GET.get("next", ""), request=request)
        if request.method == "GET" and self.has_permission(request):
            return HttpResponseRedirect(page)
        context = {
            **self.each_context(request),
            "title": "Log in",
            "subtitle": None,
            "app_path": request.get_full_path(),
            "username": request.user.get_username(),
            "next": page,
            "has_oidc": bool(settings.OIDC_ISSUER),
            "has_password": bool(settings.PASSWORD_LOGIN or not settings.OIDC_ISSUER),
        }
        request.current_app = self.name
        view = PasswordLogin.as_view(extra_context=context, template_name="admin/login.html")
        return cast(HttpResponse, view(request))

    def password_change(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:  # as in Django's stubs: after the change, it is a redirect
        from web.login.passwords import OwnPasswordForm  # imported late, because it imports models

        request.current_app = self.name
        view = PasswordChangeView.as_view(
            form_class=OwnPasswordForm,
            success_url=reverse("admin:password_change_done"),
            extra_context={**self.each_context(request), **(extra_context or {})},
        )
        return cast(TemplateResponse, view(request))

    def _wait_page(self, request: HttpRequest, refusal: Refused) -> HttpResponse:
        title = "Bad request" if refusal.status == 400 else "Please wait"
        context = {**self.each_context(request), "title": title, "text": str(refusal)}
        headers = {"Retry-After": str(RETRY_SECONDS)} if refusal.status == 429 else {}
        return TemplateResponse(request, "admin/wait.html", context, status=refusal.status, headers=headers)

    def _refused_page(self, request: HttpRequest, text: str) -> HttpResponse:
        context = {**self.each_context(request), "title": "Not allowed", "text": text}
        return TemplateResponse(request, "admin/wait.html", context, status=403)

    def _describe_refusal(self, request: HttpRequest, view: Any) -> str:
        """Name the permission to view the page if the user lacks it, else the one that was asked last."""
        refusal = describe_refusal(request)
        page = getattr(view, "__self__", None)
        if isinstance(page, admin.ModelAdmin) and not page.has_view_permission(request):
            return describe_missing(request, f"{page.opts.app_label}.view_{page.opts.model_name}")
        return refusal

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        context = super().each_context(request)
        menu = self._menu(request) if context["has_permission"] else []
        groups = [
            (GROUPS[start], list(items))
            for start, items in itertools.groupby(
                menu, key=lambda item: max(start for start in GROUPS if start <= item["place"])
            )
        ]
        section = next((item for item in menu if item["here"]), None)
        shops = shops_of(request) if context["has_permission"] else UNBOUND
        bound_to = "" if shops.is_unbound else str(shops)
        return context | {"menu": menu, "menu_groups": groups, "section": section, "bound_to": bound_to}

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Show tiles and charts. For `?part=1`, answer only with the part that the page refreshes."""
        from operations.admin import (
            front,  # imported late, because its package registers pages with this site
        )

        context = {
            **self.each_context(request),
            "title": self.index_title,
            **reading.read(request, lambda: front.page(request)),
            **(extra_context or {}),
        }
        request.current_app = self.name
        template = "admin/_front.html" if "part" in request.GET else "admin/front.html"
        return TemplateResponse(request, template, context)

    @limit_page("search")
    def search_view(self, request: HttpRequest) -> HttpResponse:
        """Open the only hit of the search box, or list all hits."""
        from web.admin.search import search_page

        return search_page(request, self.each_context(request))

    def own_page_view(self, request: HttpRequest) -> HttpResponse:
        from operations.admin.own_page import own_page  # imported late, as `front`

        return own_page(self, request)

    def set_up_view(self, request: HttpRequest) -> HttpResponse:
        """List the tables that are not in the menu."""
        apps = []
        for app in self.get_app_list(request):
            models = [model for model in app["models"] if not hasattr(self._registry[model["model"]], "menu")]
            if models:
                apps.append(app | {"models": models})
        context = {**self.each_context(request), "title": "Set-up", "app_list": apps}
        return TemplateResponse(request, "admin/set_up.html", context)

    def _pages(self) -> list[Page]:
        """Return the pages that belong to no table."""
        from outbox import admin as providers  # imported late, because Django loads this module before it

        return [providers.PAGE]

    def _menu(self, request: HttpRequest) -> list[dict[str, Any]]:
        """Return the links that the user may follow."""
        items = [MenuItem(0, "Overview", "index")]
        items += [page.menu for page in self._pages() if page.may_view(request)]
        others: list[str] = []  # the URLs of the tables that the page "Set-up" lists
        for model, page in self._registry.items():
            if not page.has_view_permission(request):
                continue
            item: MenuItem | None = getattr(page, "menu", None)
            name = f"{model._meta.app_label}_{model._meta.model_name}_changelist"
            if item is None:
                others.append(reverse(f"admin:{name}"))
                continue
            items.append(dataclasses.replace(item, name=name))
            items += getattr(page, "more_menu", ())
        if others:
            items.append(MenuItem(1000, "Set-up", "set_up"))
        links: list[dict[str, Any]] = [
            {"title": item.title, "url": reverse(f"admin:{item.name}"), "place": item.place}
            for item in sorted(items, key=lambda item: item.place)
        ]
        matching = [link["url"] for link in links if request.path.startswith(link["url"])]
        here = max(matching, key=len, default="")
        if request.path.startswith(tuple(others)):
            here = reverse("admin:set_up")
        return [link | {"here": link["url"] == here} for link in links]
