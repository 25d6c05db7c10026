"""Who is let in, and to what."""

from __future__ import annotations

import datetime as dt
import inspect
import io
import re

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.urls import URLPattern, URLResolver, get_resolver

from local.machine import PROJECT
from tests.kit.api import ENDPOINTS, Api, assert_problem, make_token, template
from tests.kit.words import ApiToken, declared_scopes
from web.api.views import ApiView


def _views(patterns=None, prefix=""):
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _views(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            view = getattr(pattern.callback, "cls", None)
            if view and issubclass(view, ApiView):
                yield route, view


def test_the_matrix_of_scopes_below_names_every_endpoint():
    listed = {(method, template(path, "<str:%s>")) for method, path, _ in ENDPOINTS}
    routed = {
        (method.upper(), f"/{route}")
        for route, view in _views()
        for method in ("get", "post", "patch")
        if hasattr(view, method)
    }
    assert routed == listed


def test_the_reference_has_each_endpoint_with_its_scope():
    page = (PROJECT / "docs" / "reference" / "api.md").read_text()
    rows = re.findall(r"^\| `(\w+:\w+)` \| (.*) \|$", page, re.M)
    documented = {(*call.split(), scope) for scope, row in rows for call in re.findall(r"`([^`]+)`", row)}
    assert documented == {
        (method, template(path.removeprefix("/api/v1"), "{%s}"), scope) for method, path, scope in ENDPOINTS
    }


def test_each_endpoint_reads_the_source_to_which_a_token_is_bound():
    """Otherwise a token of one shop would see the rows of all."""
    for route, view in _views():
        ours = view.__mro__[: view.__mro__.index(ApiView)]
        text = "".join(map(inspect.getsource, ours))
        assert re.search(r"\btoken\b", text), f"{route} reads no token: narrow its rows, or refuse"


@pytest.mark.parametrize(("method", "path", "scope"), ENDPOINTS)
def test_an_endpoint_needs_its_scope_and_no_other(db, method, path, scope):
    assert scope in declared_scopes()
    others = [other for other in declared_scopes() if other != scope]
    problem = assert_problem(Api(make_token(scopes=others)).request(method, path), 403, "forbidden")
    assert scope in problem["detail"]
    allowed = Api(make_token(scopes=[scope])).request(method, path)
    assert allowed.status_code in (200, 400, 404)
    if method == "GET":
        assert Api(make_token(scopes=others)).request("HEAD", path).status_code == 403


@pytest.mark.parametrize(("method", "path", "scope"), ENDPOINTS)
def test_an_endpoint_needs_a_token(db, method, path, scope):
    response = Api().request(method, path)
    assert_problem(response, 401, "unauthenticated")
    assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer op_unknown",
        "Basic YTpi",
        "Token x",
        "op_x",
        "Bearer \xe9\xff",
        "Bearer a b",
    ],
)
def test_a_header_without_a_known_token_is_401(db, header):
    response = Api().get("/api/v1/orders", Authorization=header)
    assert_problem(response, 401, "unauthenticated")
    assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "fields",
    [{"expires_at": Now() - dt.timedelta(seconds=1)}, {"revoked_at": Now() - dt.timedelta(days=1)}],
)
def test_an_expired_or_revoked_token_is_401(db, fields):
    assert_problem(Api(make_token(**fields)).get("/api/v1/orders"), 401, "unauthenticated")


def test_a_token_is_good_until_it_expires_and_its_scheme_may_be_written_in_any_case(db):
    secret = make_token(expires_at=Now() + dt.timedelta(hours=1))
    for scheme in ("bearer ", "bEARER  "):
        assert Api().get("/api/v1/orders", Authorization=f"{scheme}{secret}").status_code == 200


def _create_token(*args: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("tokens", "create", *args, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_first_login_makes_an_administrator_and_a_token_and_shows_them_once(db):
    out = io.StringIO()
    call_command("first_login", stdout=out)
    password = re.search(r"user admin, password (\S+)", out.getvalue())
    token = re.search(r"API token  (op_\S+)", out.getvalue())
    admin = get_user_model().objects.get()
    assert password and admin.check_password(password[1]) and admin.is_superuser
    assert token and Api(token[1]).get("/api/v1/orders").status_code == 200
    call_command("first_login", stdout=out)
    assert "Old secrets are not shown again" in out.getvalue()
    assert ApiToken.objects.count() == get_user_model().objects.count() == 1


def test_tokens_create_prints_the_secret_alone_and_stores_only_its_hash(db):
    out, err = _create_token("shop", "--scope", "orders:read,notifications:read", "--scope", "orders:write")
    secret = out.strip()
    token = ApiToken.objects.get()
    assert out == f"{secret}\n" and secret not in err
    assert token.digest == ApiToken.digest_of(secret) and secret not in str(vars(token))
    assert token.scopes == ["notifications:read", "orders:read", "orders:write"]
    assert token.expires_at is None
    assert Api(secret).get("/api/v1/orders").status_code == 200


def test_tokens_create_knows_all_and_an_expiry(db):
    _create_token("shop", "--scope", "all", "--expires-days", "2")
    token = ApiToken.objects.get()
    assert token.scopes == declared_scopes()
    assert token.expires_at - token.created_at == dt.timedelta(days=2)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["shop"], "--scope"),
        (["shop", "--scope", "orders:all"], "orders:all"),
        (["shop", "--scope", "all everything"], "everything"),
        (["shop", "--scope", " ,"], "(none)"),
        (["", "--scope", "all"], "NAME"),
        (["x" * 101, "--scope", "all"], "NAME"),
        (["shop", "--scope", "all", "--expires-days", "0"], "--expires-days"),
    ],
)
def test_tokens_create_refuses_what_it_cannot_do_with_a_clear_word(db, args, word):
    with pytest.raises(CommandError, match=word.replace("(", r"\(").replace(")", r"\)")):
        _create_token(*args)
    assert not ApiToken.objects.exists()
