"""When a token was used is noted by the request, and written by the process, at most once an hour."""

from __future__ import annotations

import datetime as dt
import io

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.kit.api import Api, make_token
from tests.kit.waiting import replace_time
from tests.kit.words import ApiToken, heartbeat
from web.api import token_use

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _new_process():
    token_use.forget()
    yield
    token_use.forget()


def last_use() -> dt.datetime | None:
    return ApiToken.objects.get().last_used_at


def test_a_request_writes_nothing_and_the_process_writes_the_use_later():
    api = Api(make_token())
    with CaptureQueriesContext(connection) as captured:
        assert api.get("/api/v1/orders").status_code == 200
    assert not [query for query in captured if "last_used_at" in query["sql"]]
    assert last_use() is None
    assert token_use.write() == 1
    assert timezone.now() - last_use() < dt.timedelta(minutes=1)


def test_the_thread_of_the_heartbeat_writes_it(monkeypatch):
    class Slept(Exception):
        pass

    def sleep(_: float) -> None:
        raise Slept

    Api(make_token()).get("/api/v1/orders")
    replace_time(monkeypatch, heartbeat, sleep=sleep)
    with pytest.raises(Slept):
        heartbeat.beat_forever()
    assert last_use() is not None


def test_no_process_writes_a_token_twice_in_an_hour():
    api = Api(make_token())
    api.get("/api/v1/orders")
    assert token_use.write() == 1
    api.get("/api/v1/orders")
    with CaptureQueriesContext(connection) as captured:
        assert token_use.write() == 0
    assert len(captured) == 0  # this process knows
    token_use.forget()
    api.get("/api/v1/orders")
    assert token_use.write() == 0  # another process asks the database
    ApiToken.objects.update(last_used_at=Now() - dt.timedelta(minutes=61))
    token_use.forget()
    api.get("/api/v1/orders")
    assert token_use.write() == 1


def test_a_request_that_is_refused_is_no_use():
    make_token()
    token = make_token(revoked_at=Now())
    assert Api(token).get("/api/v1/orders").status_code == 401
    assert Api("op_unknown").get("/api/v1/orders").status_code == 401
    assert token_use.write() == 0


def test_a_use_is_written_later_if_the_database_fails(monkeypatch):
    Api(make_token()).get("/api/v1/orders")

    def fail() -> None:
        raise DatabaseError("away")

    with monkeypatch.context() as patched:
        patched.setattr(token_use.connection, "cursor", fail)
        with pytest.raises(DatabaseError):
            token_use.write()
    assert token_use.write() == 1


@pytest.mark.django_db(transaction=True, databases=["default", "direct"])
def test_a_write_waits_for_nobody():
    Api(make_token()).get("/api/v1/orders")
    direct = connections["direct"].copy()
    try:
        direct.set_autocommit(False)
        with direct.cursor() as revoking:
            revoking.execute("UPDATE api_tokens SET revoked_at = now()")
            assert token_use.write() == 0
        direct.rollback()
    finally:
        direct.close()


class TestUnused:
    OLD = dt.timedelta(days=91)

    @pytest.mark.parametrize(
        ("fields", "marked"),
        [
            ({"last_used_at": Now() - OLD}, True),
            ({"last_used_at": Now() - dt.timedelta(days=89)}, False),
            ({"created_at": Now() - OLD}, True),  # never used
            ({}, False),
            ({"last_used_at": Now() - OLD, "revoked_at": Now()}, False),
            ({"last_used_at": Now() - OLD, "expires_at": Now() - dt.timedelta(days=1)}, False),
        ],
    )
    def test_a_live_token_is_marked_after_90_days_without_a_use(self, admin_client, fields, marked):
        make_token(**fields)
        page = admin_client.get("/admin/web/apitoken/").content.decode()
        assert ("unused for 90 days" in page) is marked
        assert ("unused for 90 days" in tokens("list")) is marked


def tokens(*args: str) -> str:
    out = io.StringIO()
    call_command("tokens", *args, stdout=out)
    return out.getvalue()


def test_tokens_lists_each_without_its_secret():
    used, unused = make_token(last_used_at=Now()), make_token(scopes=["orders:read"])
    lines = tokens("list").splitlines()
    assert [used[:12] in line for line in lines] == [False, True]  # the newest first
    assert "orders:read  created" in lines[0] and "last_used never" in lines[0]
    assert f"last_used {timezone.now():%Y-%m-%d}" in lines[1] and "revoked never" in lines[1]
    assert not any(secret in "".join(lines) for secret in (used, unused))


@pytest.mark.parametrize("by", ["prefix", "id"])
def test_tokens_revokes_one_by_its_prefix_or_id(by):
    first, second = make_token(), make_token()
    token = ApiToken.objects.get(prefix=first[:12])
    shown = str(getattr(token, by))
    assert "revoked" in tokens("revoke", shown)
    assert Api(first).get("/api/v1/orders").status_code == 401
    assert Api(second).get("/api/v1/orders").status_code == 200
    at = ApiToken.objects.get(id=token.id).revoked_at
    assert "was revoked already" in tokens("revoke", shown)
    assert ApiToken.objects.get(id=token.id).revoked_at == at


def test_tokens_revokes_nothing_if_the_name_is_not_of_exactly_one():
    make_token()
    with pytest.raises(CommandError, match="There is no token op_unknown"):
        tokens("revoke", "op_unknown")
    ApiToken.objects.create(name="twin", prefix=ApiToken.objects.get().prefix, digest="x")
    with pytest.raises(CommandError, match="Several tokens"):
        tokens("revoke", ApiToken.objects.first().prefix)
    assert not ApiToken.objects.exclude(revoked_at=None).exists()
