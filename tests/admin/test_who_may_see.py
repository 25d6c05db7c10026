"""Who may open which page and endpoint: a table of all of them, generated from the URL configuration.

`who_may_see.txt` has a line for each page and method, and each action of a list. A page without a line fails.
To write the table again after a change that is meant: WRITE=1 make test TESTS=tests/admin/test_who_may_see.py
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.contrib.messages.storage.cookie import CookieStorage
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.http import Http404, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import RequestFactory
from django.urls import URLResolver, get_resolver, resolve
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

from notifications.models import EmailText, MailProfile
from operations.site import Site
from orders.privacy.jobs import EXPORT
from retention.models import DetachedPartition
from runtime.binding import UNBOUND, Binding
from runtime.models import AuditRow, BulkJob, Heartbeat, Pause
from runtime.personal_data import address_hash
from shop_connections.models import ConnectionPost, ShopConnection
from tests.kit.admin import dead_letter, make_event
from tests.kit.api import ENDPOINTS, ID, SHIPMENT_ID, Api, make_token
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.texts import publish_texts
from tests.kit.words import ApiToken, EmailNotification, Order, Suppression, declared_scopes
from web.admin.page_limits import TURNS
from web.login import urls as login

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
TABLE = Path(__file__).with_name("who_may_see.txt")
#: The shops, with the word that each text of their rows has.
WORDS = {"shop-a": "zqxa", "shop-b": "zqxb", "": "zqxown"}
#: Requests of every list.
QUERIES = ("q=zqx", "q={address}", "q={id}", "shop={shop}", "source={shop}", "ids={id}", "cause={cause}")
#: What is posted to a page, by its name. The others get nothing.
POSTED = {
    "notifications_emailnotification_act": {"action": "resend"},
    "notifications_emailnotification_bulk": {"action": "give_up", "status": "dead_lettered"},
    "connections_shopconnection_act": {"action": "off"},
    "orders_order_returned": {"event": str(uuid.UUID(int=7))},
    "notifications_emailtext_page": {"act": "withdraw"},
}
#: Pages of Django that show no rows, and those of the login, which show the user's own factors alone.
LEFT_OUT = {"jsi18n", "logout", "login", "view_on_site"} | {str(page.name) for page in login.urlpatterns}


#: The user of `fill`, whom all callers are copies of.
BOSS: list[User] = []


class Shops(SimpleNamespace):
    """A row of each table: by model, then by source, or None for a table without sources."""

    rows: dict[type[models.Model], dict[str | None, models.Model]]


def fill() -> Shops:
    rows: dict[type[models.Model], dict[str | None, models.Model]] = {}

    def keep(row: models.Model, source: str | None = None) -> None:
        rows.setdefault(type(row), {})[source] = row

    for source, word in WORDS.items():
        address = f"{word}@example.com"
        order = make_order(source=source, reference=f"{word}-1", email=address, name=word, total_amount=500)
        keep(order, source)
        mail = make_mail(
            order_id=order.id,
            source=source,
            status="dead_lettered",
            provider="sendgrid",
            last_error=f"400: {word}",
            recipient_email=address,
            subject=word,
            body=f"<p>{word}</p>",
            body_text=word,
            to_name=word,
            profile=source,
        )
        make_mail(
            order_id=order.id, source=source, status="suppressed", recipient_email=address, subject=word
        )
        keep(mail, source)
        keep(make_event(aggregate_id=order.id, aggregate_type="order", payload={"x": word}), source)
        letter = dead_letter(order_id=order.id, envelope=f'{{"x": "{word}"}}', error=word, key=word)
        keep(letter, source)
        keep(
            Suppression.objects.create(
                address_hash=address_hash(address),
                reason="complaint",
                provider="postmark",
                notification_id=mail.id,
                source=source,
            ),
            source,
        )
        profile = MailProfile.objects.create(
            source=source,
            from_email=f"{word}@shop.example",
            shop_name=word,
            postal_address="x",
            colour="#111111",
        )
        keep(profile, source)
        act = AuditRow(kind="resend", who=word, act=word, subject=word, source=source, order_id=order.id)
        keep(AuditRow.objects.bulk_create([act])[0], source)
        if source:
            publish_texts(source=source, published_by=word)
            keep(EmailText.objects.get(source=source), source)
            shop = ShopConnection.objects.create(
                source=source, address=f"https://{word}.example.com", state="trial"
            )
            keep(shop, source)
            post = ConnectionPost.objects.create(
                source=source, body=f'{{"x": "{word}"}}', state="unusable", reason=word, reference=word
            )
            keep(post, source)
    boss = User.objects.create_superuser("boss", "boss@example.com", "x")
    BOSS[:] = [boss]
    publish_texts()
    keep(EmailText.objects.get(source=""), "")
    keep(boss)
    keep(Group.objects.get(name="viewer"))
    token = make_token()
    assert token
    keep(ApiToken.objects.get())
    keep(BulkJob.objects.create(action=EXPORT, filter={"person": "x" * 64}, user=boss, username="boss"))
    Heartbeat.beat(name="poll")
    keep(Heartbeat.objects.get(name="poll"))
    keep(Pause.objects.create(part="relay", reason="Kafka moves", username="boss"))
    keep(DetachedPartition.objects.create(**detached()))
    interval = IntervalSchedule.objects.create(every=1, period="days")
    keep(interval)
    keep(CrontabSchedule.objects.create())
    keep(ClockedSchedule.objects.create(clocked_time="2026-01-01T00:00:00Z"))
    keep(PeriodicTask.objects.create(name="x", task="x", interval=interval))
    return Shops(rows=rows)


def detached() -> dict[str, Any]:
    names = {field.name for field in DetachedPartition._meta.concrete_fields}
    values = {
        "name": "email_notifications_p202001",
        "table": "email_notifications",
        "since": "2020-01-01T00:00:00Z",
        "until": "2020-02-01T00:00:00Z",
        "row_count": 1,
    }
    return {name: value for name, value in values.items() if name in names}


@pytest.fixture(scope="module")
def shops(django_db_setup: None, django_db_blocker: Any) -> Iterator[Shops]:
    """Fill the tables once for all tests of this file."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield fill()
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def no_menu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the menu out, which asks for all permissions. It has a test of its own."""
    monkeypatch.setattr(Site, "_menu", lambda *_: [])


# callers


def user_with(*permissions: str, shops: Binding = UNBOUND, staff: bool = True) -> User:
    """Return a stored user who seems to have these permissions and shops, without a statement."""
    user = copy.copy(BOSS[0])
    user.is_superuser, user.is_staff = False, staff
    user._user_perm_cache = user._group_perm_cache = set()  # type: ignore[attr-defined]
    user._perm_cache = set(permissions)  # type: ignore[attr-defined]
    user._binding = shops  # type: ignore[attr-defined]
    return user


def granted(group: str) -> list[str]:
    rows = Permission.objects.filter(group__name=group).values_list("content_type__app_label", "codename")
    return [f"{app}.{code}" for app, code in rows]


def every_permission() -> list[str]:
    rows = Permission.objects.values_list("content_type__app_label", "codename")
    return [f"{app}.{code}" for app, code in rows]


# pages


def patterns(resolvers: list[Any], before: str = "/") -> Iterator[tuple[str, str, Any]]:
    """Yield the name, the path and the view of each page of the admin."""
    for pattern in resolvers:
        path = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from patterns(pattern.url_patterns, path)
        elif path.startswith("/admin/") and pattern.name and pattern.name not in LEFT_OUT:
            yield pattern.name, path, pattern.callback


def model_of(name: str) -> type[models.Model] | None:
    """Return the model of the ids in a page's address, by the page's name."""
    if name == "orders_order_copy":
        return EmailNotification
    labels = {f"{m._meta.app_label}_{m._meta.model_name}": m for m in admin.site._registry}
    labels["auth_user"] = User
    fitting = [label for label in labels if name == label or name.startswith(f"{label}_")]
    return labels[max(fitting, key=len)] if fitting else None


def path_of(path: str, row: models.Model | None) -> str:
    values = {"event_type": "order.paid", "language": "en", "app_label": "orders"}
    path = re.sub(r"<(?:\w+:)?(event_type|language|app_label)>", lambda part: values[part[1]], path)
    return re.sub(r"<(?:\w+:)?\w*id>", str(row.pk if row else uuid.UUID(int=1)), path)


def ask(user: Any, method: str, path: str, data: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """Call a view as the site does, and take all changes back. Return the status and the answer's text."""
    request = getattr(RequestFactory(), method.lower())(path, data or {})
    request.user, request.session = user, {}
    request._messages = CookieStorage(request)
    request._dont_enforce_csrf_checks = True
    request.axes_ip_address = None
    match = request.resolver_match = resolve(path.partition("?")[0])
    with transaction.atomic() if method == "POST" else contextlib.nullcontext():
        try:
            answer: HttpResponse = match.func(request, *match.args, **match.kwargs)
            if hasattr(answer, "render"):
                answer.render()
            is_page = isinstance(answer, SimpleTemplateResponse) and not answer.is_rendered
            text = "" if is_page else answer.getvalue().decode(errors="replace")
            text += "".join(str(message) for message in request._messages)
            status = answer.status_code
        except (Http404, DisallowedModelAdminLookup):
            status, text = 404, ""
        except PermissionDenied:
            status, text = 403, ""
        if method == "POST":
            transaction.set_rollback(True)
    TURNS._working.clear()
    if status in (301, 302) and answer.headers["Location"].startswith("/admin/login/"):
        status = 401
    return status, text


def every_request(shops: Shops) -> Iterator[tuple[str, str, Callable[[str | None], str], dict[str, Any]]]:
    """Yield the line's name, the method, the path for a row of a source, and what is posted."""
    for name, path, view in patterns(get_resolver().url_patterns):
        model = model_of(name)

        def path_for(source: str | None, path: str = path, model: type[models.Model] | None = model) -> str:
            rows = shops.rows.get(model, {}) if model else {}
            query = "?source=shop-a" if "emailtext" in path else ""
            return path_of(path, rows.get(source) or rows.get(None)) + query

        yield name, "GET", path_for, {}
        yield name, "POST", path_for, POSTED.get(name, {})
        page = getattr(getattr(view, "model_admin", None), "model", None)
        assert page is None or page in admin.site._registry
        if name.endswith("_changelist"):
            for action in actions_of(model):

                def tick(source: str | None, model: Any = model) -> dict[str, Any]:
                    row = shops.rows[model].get(source) or shops.rows[model].get(None)
                    return {ACTION_CHECKBOX_NAME: [str(row.pk if row else uuid.UUID(int=1))]}

                yield f"{name} {action}", "POST", path_for, {"action": action, "tick": tick}


def actions_of(model: Any) -> list[str]:
    request = RequestFactory().get("/admin/")
    request.user = user_with(*every_permission())
    return sorted(admin.site._registry[model].get_actions(request))


def post(values: dict[str, Any], source: str | None) -> dict[str, Any]:
    values = dict(values)
    if tick := values.pop("tick", None):
        values |= tick(source)
    return values


@contextlib.contextmanager
def recorded(asked: set[str]) -> Iterator[None]:
    """Record the permissions that are asked for."""
    has_perm = User.has_perm

    def noted(user: Any, perm: str, obj: Any = None) -> bool:
        asked.add(perm)
        return bool(has_perm(user, perm, obj))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(User, "has_perm", noted)
        yield


def admin_lines(shops: Shops) -> Iterator[str]:
    everything = every_permission()
    bound = {shop: user_with(*everything, shops=Binding(frozenset({shop}))) for shop in WORDS}
    callers = {
        "staff": user_with(),
        **{g: user_with(*granted(g)) for g in ("viewer", "support", "operator", "editor")},
    }
    callers["all"] = user_with(*everything)
    callers["unbound to any"] = user_with(*everything, shops=Binding())
    for name, method, path_for, values in every_request(shops):
        sent = post(values, "shop-a")
        cells = [f"nobody {ask(AnonymousUser(), method, path_for('shop-a'), sent)[0]}"]
        asked: set[str] = set()
        for caller, user in callers.items():
            with recorded(asked):
                cells.append(f"{caller} {ask(user, method, path_for('shop-a'), sent)[0]}")
        for shop, user in bound.items():
            # One for a page without rows.
            here = {
                repr((path := path_for(other), data := post(values, other))): (path, data) for other in WORDS
            }
            statuses = [str(ask(user, method, path, data)[0]) for path, data in here.values()]
            cells.append(f"{shop or 'own'} {'/'.join(statuses)}")
        closed = ask(callers["staff"], method, path_for("shop-a"), sent)[0]
        if closed != 403:
            asked.clear()
        opens = [
            permission
            for permission in sorted(asked)
            if ask(user_with(permission), method, path_for("shop-a"), sent)[0] not in (closed, 403, 401)
        ]
        yield f"{method} {name}: {', '.join(cells)}; alone {' '.join(opens) or 'none'}"


def together(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines. One says GET and POST if a page answers both alike."""
    for line in (waiting := iter(lines)):
        if not line.startswith("GET "):
            yield line
            continue
        other = next(waiting)
        if line.removeprefix("GET ") == other.removeprefix("POST "):
            yield f"GET POST {line.removeprefix('GET ')}"
        else:
            yield from (line, other)


def api_lines(shops: Shops) -> Iterator[str]:
    """Yield the line of each endpoint of the API: each scope alone, then bound tokens with all scopes."""
    served = {path for path in api_paths() if path.startswith("/api/v1/")}
    listed = {template_of(path) for _, path, _ in ENDPOINTS}
    assert served == listed, served ^ listed
    scoped = {scope: Api(make_token(scopes=[scope])) for scope in declared_scopes()}
    bound = {shop: Api(make_token(source=shop)) for shop in ("shop-a", "shop-b")}
    for method, path, _ in ENDPOINTS:

        def path_for(shop: str, path: str = path) -> str:
            model = EmailNotification if "/notifications/" in path else Order
            return path.replace(str(ID), str(shops.rows[model][shop].pk))

        def status(api: Api, path: str, method: str = method) -> int:
            block = transaction.atomic()
            block._from_testcase = True  # type: ignore[attr-defined]  # a request begins one of its own
            with block:
                answer = api.request(method, path, {} if method != "GET" else None)
                transaction.set_rollback(True)
            return int(answer.status_code)

        cells = [f"nobody {status(Api(), path_for('shop-a'))}"]
        cells += [f"{scope} {status(api, path_for('shop-a'))}" for scope, api in scoped.items()]
        for shop, api in bound.items():
            cells.append(f"{shop} {'/'.join(str(status(api, path_for(other))) for other in WORDS)}")
        yield f"{method} {template_of(path)}: {', '.join(cells)}"


def api_paths() -> Iterator[str]:
    def walk(resolvers: list[Any], before: str = "/") -> Iterator[str]:
        for pattern in resolvers:
            path = before + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, path)
            else:
                yield re.sub(r"<\w+:(\w+)>", r"<\1>", path)

    return walk(get_resolver().url_patterns)


def template_of(path: str) -> str:
    return path.replace(str(ID), "<id>").replace(str(SHIPMENT_ID), "<shipment_id>")


def test_each_table_has_a_row(shops):
    here = set(admin.site._registry)
    assert here - set(shops.rows) == set()


def test_each_page_action_and_endpoint_has_its_line_and_answers_whom_it_should(shops, monkeypatch):
    # The table has statuses alone, and rendering would take most of the time.
    monkeypatch.setattr(SimpleTemplateResponse, "render", lambda page: page)
    monkeypatch.setattr(Site, "each_context", lambda *_: {})
    monkeypatch.setattr("operations.site.describe_missing", lambda *_: "")
    monkeypatch.setattr("operations.site.describe_refusal", lambda *_: "")
    lines = [*together(admin_lines(shops)), *api_lines(shops)]
    first = (
        "# Statuses: 401 leads to the login; of bound users and tokens, for a row of shop-a, of shop-b, and"
        " of own orders. The permissions that open the page alone come last."
    )
    text = "\n".join([first, *lines, ""])
    if os.environ.get("WRITE"):
        TABLE.write_text(text)
    assert text.splitlines() == TABLE.read_text().splitlines()


@pytest.mark.parametrize("shop", ["shop-a", ""])
def test_a_bound_user_reads_nothing_of_another_shop(shops, shop):
    """Ask every page for rows of each shop, with all filters and searches."""
    user = user_with(*every_permission(), shops=Binding(frozenset({shop})))
    others = {source: word for source, word in WORDS.items() if source != shop}
    seen_own = set()
    for name, path in every_address(shops, other="shop-b" if shop == "shop-a" else "shop-a"):
        _, text = ask(user, "GET", path)
        # A page repeats what was searched.
        text = text.replace(path.partition("?")[2], "")
        text = re.sub(r"zqx\w+(@|%40|%2540)example.com", "", text) if "q=zqx" in path else text
        for source, word in others.items():
            assert word not in text, (path, word)
            assert not source or source in path or source not in text, (path, source)
        if WORDS[shop] in text:
            seen_own.add(name)
    assert len(seen_own) >= 15, seen_own


def every_address(shops: Shops, *, other: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of each page for a row of each shop, and searches for one of another."""
    row = shops.rows[EmailNotification][other]
    values = {"shop": other, "id": row.pk, "address": f"{WORDS[other]}@example.com", "cause": "x"}
    for name, method, path_for, _ in every_request(shops):
        if method != "GET":
            continue
        yield from ((name, path) for path in {path_for(source) for source in WORDS})
        path = path_for(other).partition("?")[0]
        if name.endswith(("_changelist", "_csv", "search", "_causes", "index")):
            yield from ((name, f"{path}?{query.format(**values)}") for query in QUERIES)
        if name == "autocomplete":
            wanted = "app_label=notifications&model_name=emailnotification&field_name=order&term=zqx"
            yield name, f"{path}?{wanted}"
