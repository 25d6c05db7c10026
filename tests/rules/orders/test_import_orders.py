"""The import of a CSV file sends each order once, without e-mails, and names the lines that were refused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.api import make_token
from tests.kit.events import give
from tests.kit.examples import load
from tests.kit.http import serve
from tests.kit.schemas import validate_inbound
from tests.kit.waiting import replace_time
from tests.kit.words import EmailNotification, Order

program = load("import_orders")
ROW = {
    "order_id": "A-1",
    "user_id": "42",
    "status": "completed",
    "placed_at": "2025-03-01T10:00:00+01:00",
    "email": "ann@example.com",
    "total": "4990",
}
ITEM = {"sku": "TEA-1", "name": "Green tea", "quantity": 2, "unitAmount": 1995}


def rows(count: int, **fields: str) -> list[dict[str, str]]:
    return [ROW | {"order_id": f"A-{number}"} | fields for number in range(1, count + 1)]


def written(lines: list[dict[str, str]]) -> str:
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


class Endpoint:
    """Stands in for POST /api/v1/events. `answers` has the next answers before the usual one."""

    def __init__(self) -> None:
        self.url = ""
        self.lists: list[list[dict[str, Any]]] = []
        self.seen: set[str] = set()
        self.answers: list[tuple[int, Any, dict[str, str]] | None] = []
        self.longest = 100

    def answer(self, path: str, headers: Any, body: Any) -> tuple[int, Any, dict[str, str]]:
        assert (path, headers["Authorization"]) == ("/api/v1/events", "Bearer secret")
        if self.answers:
            answer = self.answers.pop(0)
            if answer is None:
                raise ConnectionResetError
            return answer
        if len(body) > self.longest:
            return 413, {}, {}
        self.lists.append(body)
        return 200, {"results": [self.result(event) for event in body]}, {}

    def result(self, event: dict[str, Any]) -> dict[str, str]:
        id = event["eventId"]
        if event["data"]["email"] == "nobody":
            return {"event_id": id, "result": "refused", "problem": "data.email: Enter a valid address."}
        is_repeated = id in self.seen
        self.seen.add(id)
        return {"event_id": id, "result": "repeated" if is_repeated else "processed"}

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for events in self.lists for event in events]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    with serve(endpoint.answer) as endpoint.url:
        yield endpoint


Run = Callable[..., tuple[int | str | None, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: Any, capsys: Any, endpoint: Endpoint) -> Run:
    """Return a function that imports a text, and returns the exit status, stdout and stderr."""

    def run(text: str | bytes, *, token: str | None = "secret", url: str | None = None) -> Any:
        file = tmp_path / "orders.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.setenv("ORDERPOST_TOKEN", token or "")
        monkeypatch.setattr("sys.argv", ["x", str(file), "--source", "shop-a", "--url", url or endpoint.url])
        with pytest.raises(SystemExit) as exit:
            program.main()
        output = capsys.readouterr()
        return exit.value.code, output.out.strip(), output.err

    return run


@pytest.fixture
def waits(monkeypatch: Any) -> list[float]:
    seconds: list[float] = []
    replace_time(monkeypatch, program, sleep=seconds.append)
    return seconds


def test_an_import_sends_lists_and_a_second_one_only_repeats(run, endpoint):
    text = written(rows(250))
    assert run(text) == (0, "250 processed, 0 repeated, 0 refused", "")
    assert [len(events) for events in endpoint.lists] == [100, 100, 50]
    assert run(text) == (0, "0 processed, 250 repeated, 0 refused", "")
    assert run(written(rows(1, sequence="2")))[1] == "1 processed, 0 repeated, 0 refused"


CASES: list[tuple[dict[str, str], str, dict[str, Any]]] = [
    ({"status": "pending"}, "placed", {"refundedAmount": 0}),
    ({"status": "paid"}, "paid", {}),
    ({"status": "confirmed"}, "confirmed", {}),
    ({"status": "completed"}, "completed", {"placedAt": "2025-03-01T10:00:00+01:00"}),
    (
        {"status": "completed", "placed_at": "2025-03-01 09:00:00"},
        "completed",
        {"placedAt": "2025-03-01T09:00:00+00:00"},
    ),
    ({"status": "cancelled"}, "cancelled", {"wasPaid": False}),
    ({"status": "cancelled", "was_paid": "TRUE"}, "cancelled", {"wasPaid": True}),
    ({"status": "cancelled", "refunded": "4990"}, "cancelled", {"wasPaid": True, "refundedAmount": 4990}),
    ({"status": "part_refunded", "refunded": "90"}, "part_refunded", {"amount": 90, "refundedAmount": 90}),
    ({"status": "refunded", "refunded": "4990"}, "refunded", {"amount": 4990, "refundedAmount": 4990}),
    (
        {
            "name": "Ann",
            "locale": "de-AT",
            "currency": "EUR",
            "reference": "R-1",
            "items": json.dumps([ITEM]),
        },
        "completed",
        {"name": "Ann", "locale": "de-AT", "currency": "EUR", "reference": "R-1", "items": [ITEM]},
    ),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("fields", "change", "expected"), CASES)
def test_each_status_becomes_an_event_that_orderpost_takes(settings, run, endpoint, fields, change, expected):
    settings.ORDER_SOURCES = ["shop-a"]
    assert run(written([ROW | fields]))[0] == 0
    (event,) = endpoint.events
    assert event["eventType"] == f"order.order.{change}.v1"
    assert event["data"].items() >= (expected | {"notify": False}).items()
    validate_inbound(event)
    assert give(event) == "done"
    order = Order.objects.get()
    assert (order.status, order.version, order.created_at.isoformat()) == (
        fields.get("status", "completed"), 1, "2025-03-01T09:00:00+00:00",
    )  # fmt: skip


def test_bad_lines_are_named_and_the_others_imported(run, endpoint):
    bad = [
        {"status": "shipped"},
        {"total": "49.90"},
        {"refunded": "-1"},
        {"sequence": "one"},
        {"placed_at": "yesterday"},
        {"was_paid": "maybe", "status": "cancelled"},
        {"items": "[{"},
        {"items": "[NaN]"},
        {"items": '["\\ud800"]'},
        {"items": "[" * 100_000},
        {"email": "nobody"},
    ]
    lines = [ROW | {"name": "two\nlines"}] + [ROW | fields for fields in bad] + [ROW | {"order_id": "A-2"}]
    status, out, err = run(written(lines))
    assert (status, out) == (1, f"2 processed, 0 repeated, {len(bad)} refused")
    named = [int(line.split()[1].rstrip(":")) for line in err.splitlines()]
    assert sorted(named) == [number + 4 for number in range(len(bad))], "the first row has two lines"
    assert "line 4: unknown status 'shipped': use pending, paid, " in err
    assert "line 5: total is not a whole number: '49.90'" in err
    assert "line 14: data.email: Enter a valid address." in err
    assert [event["data"]["orderId"] for event in endpoint.events if event["data"]["email"] != "nobody"] == [
        "A-1",
        "A-2",
    ]


def test_a_line_of_another_length_or_encoding_is_refused_alone(run, endpoint):
    text = written(rows(3)).splitlines()
    text[1] += ",more"
    text[2] = text[2].rpartition(",")[0]
    raw = "\n".join([*text, text[3].replace("A-3", "A-\xff")]).encode("latin-1")
    status, out, err = run(b"\xef\xbb\xbf" + raw)
    assert (status, out) == (1, "1 processed, 0 repeated, 3 refused")
    assert (
        "line 2: it has more values than the first line" in err
        and "line 3: total" in err
        and "line 5: " in err
    )


def test_a_list_over_the_size_limit_is_halved(run, endpoint):
    endpoint.longest = 30
    assert run(written(rows(100)))[1] == "100 processed, 0 repeated, 0 refused"
    assert [len(events) for events in endpoint.lists] == [25] * 4
    endpoint.longest = 0
    assert run(written(rows(2)))[1] == "0 processed, 0 repeated, 2 refused"


def test_it_waits_while_orderpost_is_away(run, endpoint, waits):
    endpoint.answers = [
        (503, {}, {"Retry-After": "7"}),
        None,
        (429, {}, {"Retry-After": "soon"}),
        (502, {}, {}),
    ]
    status, out, err = run(written(rows(1)))
    assert (status, out) == (0, "1 processed, 0 repeated, 0 refused")
    assert waits == [7, 2, 4, 8]
    assert err.count("waiting for orderpost") == 4


def test_it_gives_up_after_five_minutes_and_says_where(run, endpoint, waits):
    endpoint.answers = [(200, {"results": [{"result": "processed"}] * 100}, {})] + [
        (503, {}, {"Retry-After": "9999"})
    ] * 11
    status, out, _ = run(written(rows(150)))
    assert "The lines from 102 on were not imported: 503" in str(status)
    assert out == "100 processed, 0 repeated, 0 refused"
    assert waits == [program.LONGEST_WAIT] * 10 and 290 < sum(program.WAITS) <= 300


def test_an_answer_that_cannot_change_stops_it(run, endpoint, waits):
    endpoint.answers = [(401, {"detail": "no such token"}, {})]
    status, out, _ = run(written(rows(1)))
    assert "no such token" in str(status) and waits == []
    assert out == "0 processed, 0 repeated, 0 refused"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("order_id,user_id\n", "no column email, placed_at, status, total"),
        ("", "no column"),
        (written(rows(1, refound="1")), "Unknown columns: refound. Use currency, email, "),
    ],
)
def test_a_file_with_other_columns_is_not_read(run, endpoint, text, problem):
    assert problem in str(run(text)[0])
    assert endpoint.lists == []


def test_the_token_comes_from_the_environment(run):
    assert run(written(rows(1)), token=None)[0] == "Set ORDERPOST_TOKEN."


def test_the_endpoint_takes_its_events_and_sends_no_email(settings, run, live_server):
    settings.ORDER_SOURCES, settings.FAST_PATH = ["shop-a"], False
    secret = make_token(scopes=["events:write"], source="shop-a")
    lines = (
        rows(101)
        + rows(1, order_id="B-0", email="Ann@EXÄMPLE.com")
        + rows(1, order_id="B-1", email="nobody")
        + rows(1, order_id="B-2", name="a\0b")
    )
    status, out, err = run(written(lines), token=secret, url=live_server.url)
    assert (status, out) == (1, "103 processed, 0 repeated, 1 refused")
    assert err.startswith("line 104: email: ") and "\nline 105: " in err and err.count("line ") == 2
    assert run(written(lines), token=secret, url=live_server.url)[1] == "0 processed, 103 repeated, 1 refused"
    assert Order.objects.filter(source="shop-a", status="completed").count() == 103
    assert Order.objects.filter(completed_at=None, created_at__year=2025).count() == 103
    assert Order.objects.get(reference="B-1").email == ""
    assert Order.objects.get(reference="B-0").email == "Ann@xn--exmple-cua.com"
    assert not EmailNotification.objects.exists()
    items = json.dumps([ITEM | {"name": "x" * 200}] * 200)
    large = rows(30, items=items, sequence="2")
    assert run(written(large), token=secret, url=live_server.url)[1] == "30 processed, 0 repeated, 0 refused"
