"""The log: one JSON object for a line, nobody's address, no secret."""

from __future__ import annotations

import io
import json
import logging
import socket
import subprocess
import sys

import psycopg
import pytest
import structlog
from django.db import InterfaceError, OperationalError, connection
from hypothesis import given
from hypothesis import strategies as st
from psycopg import errors

from config import logs, masking
from runtime.database.postgres.connection import ServerSilent
from runtime.telemetry.context import working_for
from tests.kit.api import Api, assert_problem, make_token, order_body
from tests.kit.races import broken
from tests.kit.words import Context, health, version
from web.metrics import REQUESTS

SECRET = "op_" + "Ab-_9" * 8


@pytest.fixture
def written(settings):
    """Capture what a process logs; restore the root logger afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    logs.configure({"level": "INFO", "format": "json"})
    (handler,) = root.handlers
    stream = io.StringIO()
    handler.setStream(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers, root.level = before, level


def test_ours_and_everybody_elses_lines_are_json_with_time_level_and_logger(written):
    with working_for(Context("c-1")):
        structlog.get_logger("ours").info("done", rows=3, id=object)
        logging.getLogger("django.db").warning("slow: %s", "x")
        logging.getLogger("_granian").info("booting")
    ours, django, granian = written()
    assert (ours["event"], ours["rows"], ours["logger"], ours["level"]) == ("done", 3, "ours", "info")
    assert (django["event"], django["level"], django["logger"]) == ("slow: x", "warning", "django.db")
    assert granian["event"] == "booting"
    assert all(line["timestamp"].endswith("Z") for line in (ours, django, granian))
    assert all(line["correlation_id"] == "c-1" for line in (ours, django, granian))


def test_each_line_names_the_service_its_version_and_the_role(written, monkeypatch):
    structlog.get_logger("ours").info("one")
    monkeypatch.setattr(health, "role", lambda: "relay")
    structlog.get_logger("ours").info("two", role="mine")
    logging.getLogger("celery.beat").warning("three")
    lines = written()
    assert {line["service"] for line in lines} == {"orderpost"}
    assert {line["version"] for line in lines} == {version()}
    assert [line["role"] for line in lines[1:]] == ["mine", "relay"]


def test_addresses_and_secrets_are_masked_in_messages_values_keys_and_tracebacks(written):
    log = structlog.get_logger("ours")
    try:
        raise ValueError(f"550 no such user alice.smith@example.com, {SECRET}")
    except ValueError as error:
        log.exception(
            "failed for bob@example.com", to=["carol@example.com"], by={"dave@example.com": {"x": error}}
        )
        logging.getLogger("other").exception("sent %s to erin@example.com", f"Bearer {SECRET}")
    log.info("x", authorization="Basic YWxpY2U6cHc=", url="postgresql://app:hunter2@db:5432/x")
    log.info("q?recipient_email=frank%40example.com&x=1 SG.abcdef.ghi-jkl")
    text = json.dumps(written())
    for hidden in (
        "alice",
        "bob@",
        "carol",
        "dave",
        "erin@",
        "frank",
        SECRET,
        "Ab-_9",
        "hunter2",
        "YWxp",
        "ghi",
    ):
        assert hidden not in text, hidden
    for shown in ("ali***@example.com", "bob***@example.com", "car***@", "dav***@", "fra***@example.com"):
        assert shown in text, shown
    assert "Traceback" in text and len(written()) == 4


def test_the_row_of_a_broken_constraint_is_not_written(written):
    try:
        raise ValueError("violates check\nDETAIL:  Failing row contains (Ann Smith\n\nStreet).\nHINT: no")
    except ValueError:
        structlog.get_logger("ours").exception("failed")
    text = json.dumps(written())
    assert "Smith" not in text and "Street" not in text
    assert "violates check" in text and "HINT: no" in text


PIECES = st.sampled_from(
    [
        *("alice.smith@example.com", "bob%40example.com", "Bearer abc", "BaSic YWxp", "baſic abc", SECRET),
        *("SG.abcdef.ghi-jkl", "whsec_abcdefghijk", "re_abcdefghijk", "key-" + "0a" * 16, "a://b:c@d"),
        *("/connect/tea-shop/s3cret/posts", "/connect/tea-shop"),
        *("DETAIL:  Failing row (Ann)", "CONTEXT: x", "\n", "core_values", "é", "plain", " ", '"', "\\"),
    ]
)
TEXTS = st.lists(PIECES, max_size=4).map("".join)


ADDRESSES = st.sampled_from(["alice.smith@example.com", "o'hara%40shop.example", 'a"b@c.example'])


@given(
    st.dictionaries(TEXTS | st.sampled_from(["password", "Cookie", "to"]), TEXTS | st.lists(TEXTS))
    | st.dictionaries(st.text(), st.text() | st.tuples(st.text(), ADDRESSES, st.text()).map("".join))
)
def test_a_line_is_masked_as_its_values_are(event):
    assert json.loads(masking.masked_json_line(event)) == json.loads(json.dumps(masking.mask_values(event)))


def test_celerys_lines_about_each_task_are_left_out_but_not_its_errors(written):
    for name in ("celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(name).info("Task drain_emails received")
        logging.getLogger(name).error("Task drain_emails raised")
    assert [line["event"] for line in written()] == ["Task drain_emails raised"] * 2


def test_a_line_has_what_json_does_not_know_and_the_stack_of_others(written):
    structlog.get_logger("ours").info("x", id=object)
    logging.getLogger("other").info({"a": 1}, stack_info=True)
    ours, other = written()
    assert "object" in ours["id"]
    assert other["event"] == "{'a': 1}" and "test_logs" in other["stack"]


def test_a_line_with_breaks_stays_one_line(written):
    structlog.get_logger("ours").info("a\nb\r\n{}", x="\u2028\ud800")
    assert len(written()) == 1


def test_debug_lines_are_left_out_at_info(written):
    structlog.get_logger("ours").debug("quiet")
    logging.getLogger("other").debug("quiet")
    logging.getLogger("django.request").warning("Not Found: /x")
    assert written() == []


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("alice@example.com", "ali***@example.com"),
        ("al@example.com", "al***@example.com"),
        ("<alice+tag@sub.example.com>,'bob@x.org'", "<ali***@sub.example.com>,'bob***@x.org'"),
        ("Key (email)=(o'brien@example.com)", "Key (email)=(o***@example.com)"),
        ("to=alice@example.com", "to=ali***@example.com"),
        ("zoë@bücher.example", "zoë***@bücher.example"),
        ("no address here: @ @x y@", "no address here: @ @x y@"),
        ("ali***@example.com", "ali***@example.com"),
        ("a%2Bb%40example.com", "a%2***@example.com"),
    ],
)
def test_an_address_keeps_three_characters_and_its_domain(text, masked):
    shown = masking.mask(text)
    assert shown == masked or (shown.startswith(masked.split("***")[0][:15]) and "brien" not in shown)
    assert masking.mask(shown) == shown


LOCAL = st.text("abcdefghijklmnopqrstuvwxyzABC0123456789.!#$*+^_`{|}~-", min_size=7, max_size=40)


@given(LOCAL, st.sampled_from(["", " ", "<", "'", '"', "(", "mailto:", "to=", "a, ", "\n"]))
def test_no_local_part_survives(local, before):
    assert f"{local}@" not in masking.mask(f"{before}{local}@example.com{before}")


@pytest.mark.parametrize("host", ["web-1", "3f2a9c", socket.gethostname()])
def test_the_name_of_a_celery_worker_is_not_masked(host):
    for line in (f"celery@{host} ready.", f"sync with celery@{host}.", f"celery@{host}"):
        assert masking.mask(line) == line
    assert masking.mask("celery@example.com") == "cel***@example.com"


#: The characters that mean something to the search for addresses or secrets, and pairs of them.
SPECIAL = [
    *("'", "a", "@", "%", ".", "-", "*", "[", "!", '"', "\\", "/", ":", "é", "{", "~"),
    *("'a", "a'", "%4", "%40", "'%40", "a@", "a@'", "a***@", "celery@", "celery@a"),
    *("://", "bearer ", "op_", "op_-", "re_", "SG.", "SG.a-", "key-", "DETAIL: ", "CONTEXT:\n"),
]


def test_a_long_text_of_any_special_character_is_masked_in_linear_time():
    program = """if True:
        import ast, sys
        from config import masking

        for text in ast.literal_eval(sys.argv[1]):
            for end in ("", " @x"):
                masking.mask(text * (300_000 // len(text)) + end)
        """
    # Not a timing that decides: in quadratic time a single text would take more than the timeout.
    subprocess.run([sys.executable, "-c", program, repr(SPECIAL)], check=True, timeout=900)


def test_addresses_after_one_another_in_quotes_are_each_masked():
    text = "'ann.smith@example.com'bob.jones@example.org'%40'carol.king@example.net'"
    assert masking.mask(text) == "'ann***@example.com'bob***@example.org'%40'car***@example.net'"


def test_the_console_form_masks_too(capsys):
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.configure({"level": "INFO", "format": "console"})
        structlog.get_logger("ours").info("to alice@example.com", x="bob@example.com")
    finally:
        root.handlers, root.level = before, level
    text = capsys.readouterr().err
    assert "ali***@example.com" in text and "bob***" in text and "alice" not in text


def test_no_line_is_lost_when_the_file_is_moved_away(written, tmp_path):
    path, moved = tmp_path / "web.log", tmp_path / "web.log.1"
    logs.configure({"level": "INFO", "format": "json", "file": str(path)})
    log = structlog.get_logger("ours")
    log.info("before")
    path.rename(moved)
    log.info("after")
    logging.getLogger().handlers[0].close()
    (line,), (next_line,) = moved.read_text().splitlines(), path.read_text().splitlines()
    assert (json.loads(line)["event"], json.loads(next_line)["event"]) == ("before", "after")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("state", ["53100", "57P01", "58030", "25006"])
def test_a_write_that_postgres_refuses_for_its_own_state_is_one_line_and_counted(written, state):
    api = Api(make_token())
    counted = REQUESTS.labels("place_order", 503)._sum.get
    before = counted()
    with broken("orders", f"RAISE EXCEPTION 'no space' USING ERRCODE = '{state}'"):
        assert_problem(api.post("/api/v1/orders", order_body()), 503, "unavailable")
        connection.close()  # as Django does after a real request
    (line,) = (record for record in written() if record["event"] == "database did not answer")
    assert "exception" not in line and line["error"].startswith("no space"), line
    assert counted() > before


@pytest.mark.parametrize(
    ("error", "is_short"),
    [
        (OperationalError("connection refused\nIs the server running?"), True),
        (InterfaceError("the connection is closed"), True),
        (ServerSilent("the database server did not answer within 4 s"), False),
        (errors.QueryCanceled("canceling statement due to statement timeout"), False),
        (errors.DeadlockDetected("deadlock detected"), False),
        (ValueError("x"), False),
    ],
)
def test_only_errors_of_the_databases_state_lose_their_traceback(written, error, is_short):
    try:
        if isinstance(error, psycopg.Error):
            raise OperationalError(str(error)) from error
        raise error
    except Exception:
        structlog.get_logger("ours").exception("failed")
        logging.getLogger("celery.app.trace").error("task failed", exc_info=True)
    for line in written():
        assert ("exception" not in line) is is_short, line
        assert not is_short or line["error"] == str(error).partition("\n")[0]


@pytest.mark.parametrize(
    ("query", "host"), [("nonsense=1", "testserver"), ("x=1&" * 1001, "testserver"), ("", "evil.example")]
)
def test_what_django_refuses_of_a_strangers_address_is_a_line_without_traceback(
    written, admin_client, query, host
):
    path = f"/admin/orders/order/?{query}"
    assert admin_client.get(path, headers={"host": host}).status_code == 400
    (line,) = [line for line in written() if line["level"] == "error"]
    assert line["logger"].startswith("django.security.") and line["event"]
    assert "exception" not in line and "Traceback" not in json.dumps(written())
