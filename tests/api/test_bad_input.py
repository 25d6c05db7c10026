"""Bad input is a 4xx that says where and why, never a 500, and changes no row."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.kit.api import Api, assert_problem, order_body, row_counts
from tests.kit.words import Order

#: Fixed, for the processes of a parallel run must collect the same tests.
SOME = uuid.UUID("01890000-0000-7000-8000-000000000001")
ITEM = {"sku": "s", "name": "n", "quantity": 1, "unit_amount": 1}
CONTROLS = ["\x00", "\r", "\n", "\t", "\x1b", "\x7f", "\x85", "\u2028", "\ud800", "a\r\nBcc: x@example.com"]


def values(*cases: Any) -> tuple[Any, ...]:
    """Return the values, of whatever types."""
    return cases


def each(name: str, *cases: Any) -> list[tuple[str, Any]]:
    """Return a case of `name` for each value."""
    return [(name, value) for value in cases]


FIELDS = [
    *each("user_id", 0, None, True, "", "0", "x", [], {}, str(uuid.UUID(int=0)), SOME.hex),
    ("user_id", f"{{{SOME}}}"),
    ("user_id", f"urn:uuid:{SOME}"),
    ("user_id", f" {SOME}"),
    *each("email", None, 1, True, "", "x", "@", "a@", "@b.example", "a@b", "a b@example.com", []),
    *each("email", " a@example.com", "a@example.com ", "a@exa mple.com", "a@example.com,b@example.com"),
    *each("email", "Alice <a@example.com>", '"a b"@example.com', "a@[127.0.0.1]", "a@localhost"),
    *each("email", "zoë@example.com", "a@i❤.example", "a@1.2.3.4", "a" * 65 + "@example.com"),
    ("email", "a@" + "b." * 123 + "example"),
    *each("total_amount", None, True, False, 1.0, 1.5, "1", "", [], {}, 0, -1, 10**12 + 1, 10**40),
    *each("name", None, 1, True, [], {}, " ", "\u3000", "x" * 201),
    *each("currency", None, 1, "", "usd", "US", "USDX", "XXX", "ZZZ", "U$D", " USD"),
    *each("locale", None, 1, "", "english", "../de", "de_" + "A" * 18, "en us"),
    *each("reference", None, 1, True, " ", "x" * 101),
    *each("items", None, 1, "x", {}, [1], [None], [[]], [{}], [ITEM] * 201),
    *each(
        "items", *([ITEM | {"quantity": value}] for value in values(0, -1, True, 1.0, "1", None, 10**6 + 1))
    ),
    *each(
        "items", *([ITEM | {"unit_amount": value}] for value in values(-1, True, 0.5, "1", None, 10**12 + 1))
    ),
    *each("items", *([ITEM | {"sku": value}] for value in values("", " ", None, 1, "x" * 101, "\n"))),
    *each("items", *([ITEM | {"name": value}] for value in values("", " ", None, 1, "x" * 201, "\r\n"))),
    ("items", [ITEM | {"colour": "red"}]),
    *[(name, control) for name in ("name", "reference", "email", "locale") for control in CONTROLS],
    ("status", "paid"),
    ("id", str(SOME)),
    ("refunded_amount", 0),
    ("a/b~c", 1),
    ("\x00", 1),
    ("\ud800", 1),
]


@pytest.mark.parametrize(("name", "value"), FIELDS)
def test_a_new_order_with_a_bad_value_is_refused_naming_it(api, name, value):
    before = row_counts()
    problem = assert_problem(
        api.post("/api/v1/orders", order_body(**{name: value}), key="k"), 400, "validation"
    )
    if name.isalpha() or name.isidentifier():
        assert problem["errors"][0]["pointer"].startswith(f"#/{name}")
    assert row_counts() == before


@pytest.mark.parametrize("name", ["user_id", "email", "total_amount"])
def test_a_new_order_without_a_needed_value_is_refused_naming_it(api, name):
    body = order_body()
    del body[name]
    problem = assert_problem(api.post("/api/v1/orders", body), 400, "validation")
    assert [error["pointer"] for error in problem["errors"]] == [f"#/{name}"]


def test_all_faults_are_told_at_once_with_pointers_into_the_body(api):
    items = [ITEM, ITEM | {"quantity": 0, "x/y~ z": 1}]
    body = order_body(total_amount="1", items=items)
    problem = assert_problem(api.post("/api/v1/orders", body), 400, "validation")
    pointers = {error["pointer"] for error in problem["errors"]}
    assert pointers == {"#/total_amount", "#/items/1/quantity", "#/items/1/x~1y~0%20z"}


def test_a_body_with_thousands_of_faults_gets_a_short_answer(api):
    response = api.post("/api/v1/orders", {f"field{n}": 1 for n in range(20_000)})
    assert len(assert_problem(response, 400, "validation")["errors"]) == 100


RAW = [
    (b"{", "malformed"),
    (b"{'a': 1}", "malformed"),
    (b"", "validation"),
    (b" ", "malformed"),
    (b"null", "validation"),
    (b"[]", "validation"),
    (b"1", "validation"),
    (b'"x"', "validation"),
    (b"{}{}", "malformed"),
    (b'{"name": "\xff"}', "malformed"),
    (b'{"name": "\xed\xa0\x80"}', "malformed"),
    ('{"name": "x"}'.encode("utf-16"), "malformed"),
    (b"\xef\xbb\xbf{}", "malformed"),
    (b"\x00", "malformed"),
    (b'{"name": "\x00"}', "malformed"),
    (b'{"name": "a\nb"}', "malformed"),
    (b'{"total_amount": NaN}', "malformed"),
    (b'{"total_amount": -Infinity}', "malformed"),
    (b'{"total_amount": 1e999}', "malformed"),
    (b'{"total_amount": ' + b"9" * 5000 + b"}", "malformed"),
    (b'{"name": "a", "name": "b"}', "malformed"),
    (b'{"items": [{"sku": "a", "sku": "a"}]}', "malformed"),
    (b'{"\\ud800": 1, "\\ud800": 2}', "malformed"),
    (b'{"a":' * 100_000, "malformed"),
    (b"[" * 100_000 + b"]" * 100_000, "malformed"),
    (b'{"a":' + b"[" * 20 + b"]" * 20 + b"}", "malformed"),
]


@pytest.mark.parametrize(("raw", "slug"), RAW, ids=range(len(RAW)))
@pytest.mark.parametrize("path", ["", "/pay", "/refund", "/cancel"])
def test_a_body_that_is_no_proper_json_object_is_refused(api, raw, slug, path):
    order = api.place()
    if raw == b"" and path:
        return  # an empty body is fine where nothing is needed
    before = row_counts()
    assert_problem(api.post(f"{order}{path}" if path else "/api/v1/orders", raw, key="k"), 400, slug)
    assert row_counts() == before


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"name":\n   x}', "line 2, column 4"),
        (b'{"name": "\xff"}', "must be UTF-8, and byte 10"),
        (b'{"total_amount": NaN}', "NaN"),
        (b'{"total_amount": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"name": "a", "name": "b"}', '"name"'),
        (b"[" * 100_000, "Use at most 8 levels"),
    ],
    ids=range(6),
)
def test_a_body_that_cannot_be_read_is_told_why(api, raw, words):
    assert words in assert_problem(api.post("/api/v1/orders", raw), 400, "malformed")["detail"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("user_id", "x", "UUID"),
        ("user_id", None, "null"),
        ("email", "x", "There is no @ in it."),
        ("email", "", "This is empty. Use an e-mail address"),
        ("email", 1, "string"),
        ("total_amount", 49.9, "whole number of minor units, such as cents: 4990 for 49.90"),
        ("total_amount", 0, "1"),
        ("total_amount", 10**12 + 1, f"{10**12}"),
        ("name", "x" * 201, "200"),
        ("name", "a\nb", "line breaks"),
        ("currency", "XXX", "ISO 4217"),
        ("currency", "eur", "Write EUR in capitals."),
        ("locale", "english", "language tag"),
        ("items", {}, "list"),
        ("items", [1], "object"),
        ("colour", 1, "Unknown field. Use user_id, email, "),
    ],
)
def test_a_bad_value_is_told_what_would_be_right(api, field, value, words):
    problem = assert_problem(api.post("/api/v1/orders", order_body(**{field: value})), 400, "validation")
    assert words in problem["detail"] and words in problem["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("orders?status=payed", "Unknown status. Use pending, paid, confirmed, completed, "),
        ("notifications?status=x", "Unknown status. Use pending, processing, sent, failed, "),
        (
            "notifications?event_type=order.payed",
            "Unknown event type. Use order.cancelled, ",
        ),
        (
            "orders?state=paid",
            "Unknown field. Use cursor, page_size, created_after, ",
        ),
        (f"orders/{SOME}?x=1", "Unknown field. Remove it"),
        ("orders?page_size=1&page_size=2", "Give this once."),
    ],
)
def test_a_bad_query_is_told_what_would_be_right_without_its_own_words(api, query, words):
    problem = assert_problem(api.get(f"/api/v1/{query}"), 400, "validation")
    (error,) = problem["errors"]
    assert error["detail"].startswith(words) and problem["detail"] == error["detail"]
    assert not {"payed", "state=", "x="} & set(problem["detail"].split())


def test_every_word_that_is_allowed_is_named(api):
    (error,) = assert_problem(api.get("/api/v1/orders?status=x"), 400, "validation")["errors"]
    named = error["detail"].removeprefix("Unknown status. Use ").removesuffix(".").replace(" or ", ", ")
    assert set(named.split(", ")) == set(Order.Status.values)


@pytest.mark.parametrize(
    ("method", "path", "status", "slug", "words"),
    [
        ("GET", "/api/v1/nothing", 404, "not-found", "/api/docs"),
        ("GET", f"/api/v1/orders/{SOME}", 404, "not-found", "Use the id of a stored row"),
        ("PUT", "/api/v1/orders", 405, "method-not-allowed", "Use one of the methods in the header Allow"),
        ("GET", "/api/problems/x", 404, "not-found", "/api/problems"),
        ("GET", "/api/schemas/in/x.json", 404, "not-found", "/api"),
    ],
)
def test_a_bad_address_is_told_where_the_right_ones_are(api, method, path, status, slug, words):
    response = api.request(method, path)
    assert words in assert_problem(response, status, slug)["detail"]
    if status == 405:
        assert response.headers["Allow"]


def test_a_request_without_a_token_is_told_how_to_send_one(db):
    detail = assert_problem(Api().get("/api/v1/orders"), 401, "unauthenticated")["detail"]
    assert detail == "Send a token as Authorization: Bearer <token>."


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "application/jsonx",
    ],
)
def test_a_body_of_another_type_is_415_and_an_empty_body_has_none(api, content_type):
    order = api.place()
    before = row_counts()
    raw = json.dumps(order_body()).encode()
    response = api.request("POST", "/api/v1/orders", raw, **{"Content-Type": content_type})
    assert_problem(response, 415, "unsupported-media-type")
    response = api.request("POST", f"{order}/cancel", b"x=1", **{"Content-Type": content_type})
    assert_problem(response, 415, "unsupported-media-type")
    assert row_counts() == before
    assert api.request("POST", f"{order}/pay", b"", **{"Content-Type": content_type}).status_code == 200


def test_json_with_parameters_in_its_type_is_taken(api):
    raw = json.dumps(order_body()).encode()
    response = api.request(
        "POST", "/api/v1/orders", raw, **{"Content-Type": "Application/JSON; charset=utf-8"}
    )
    assert response.status_code == 201


def test_a_body_of_more_than_a_megabyte_is_413_and_one_just_below_is_read(api):
    assert_problem(api.post("/api/v1/orders", b" " * 1_000_001), 413, "too-large")
    body = json.dumps(order_body()).encode()
    assert api.post("/api/v1/orders", body.ljust(1_000_000)).status_code == 201


def test_a_body_in_chunks_is_refused_for_it_would_read_as_none(api):
    order = api.place()
    api.post(f"{order}/pay")
    response = api.post(f"{order}/refund", b"", Transfer_Encoding="chunked")
    assert_problem(response, 411, "length-required")
    assert api.get(order).json()["refunded_amount"] == 0


CHANGES = [
    *each("pay", {"x": 1}, {"amount": 1}, []),
    *each("confirm", {"x": 1}, [1]),
    *each(
        "refund",
        *({"amount": value} for value in values(None, True, 1.0, "1", "", 0, -1, 10**12 + 1, 10**30, [], {})),
    ),
    ("refund", {"amount": 1, "currency": "USD"}),
    *each(
        "cancel",
        *({"reason": value} for value in values(None, 1, True, " ", "x" * 501, "a\nb", "\x00", "\udfff")),
    ),
    *each(
        "complete",
        *(
            {"tracking_url": value}
            for value in values(None, 1, "", " ", "x", "/x", "//example.com/x", "http://")
        ),
    ),
    *each(
        "complete",
        *(
            {"tracking_url": value}
            for value in values(
                "javascript:alert(1)",
                "https://www.dhl.com@evil.example/x",
                "https://user:pw@example.com/x",
                "ftp://example.com/x",
                "data:text/html,x",
                "https://example.com/a b",
                "https://example.com/\n",
                "https://example.com/\u202e",
                "https://example.com/" + "x" * 2000,
            )
        ),
    ),
]


@pytest.mark.parametrize(("action", "body"), CHANGES)
def test_a_change_with_a_bad_body_is_refused_and_changes_nothing(api, action, body):
    order = api.place()
    if action != "pay":
        api.post(f"{order}/pay")
    before = row_counts()
    assert_problem(api.post(f"{order}/{action}", body, key="k"), 400, "validation")
    assert row_counts() == before


QUERIES = [
    *[
        f"/api/v1/orders?{query}"
        for query in ("x=1", "offset=1", "page=2", "user_id=1", "user_id=", "user_id=%00")
    ],
    *[
        f"/api/v1/orders?{query}"
        for query in ("status=gone", "status=", "status=PAID", "status=paid&status=paid")
    ],
    *[
        f"/api/v1/orders?{query}"
        for query in ("reference=", "reference=%00", "reference=%0d%0a", "reference=%ff")
    ],
    "/api/v1/orders?reference=" + "x" * 101,
    *[
        f"/api/v1/orders?page_size={size}"
        for size in ("0", "-1", "201", "1.5", "x", "", "1e1", "%D9%A1", "9" * 5000)
    ],
    *[f"/api/v1/orders?cursor={cursor}" for cursor in ("", "x", "n", "n1", "%00", "n" + "z" * 36, "x" * 200)],
    f"/api/v1/orders?cursor=x{SOME}",
    f"/api/v1/orders?cursor={SOME}",
    *[
        f"/api/v1/notifications?{query}"
        for query in ("status=paid", "recipient_email=x", "recipient_email=%00")
    ],
    *[f"/api/v1/notifications?{query}" for query in ("order_id=1", "order_id=%00", "id=1", "cursor=n1")],
    "/api/v1/notifications?page_size=201",
    "/api/v1/notifications?status=sent&status=sent",
    "/api/v1/orders?a%0ab=1",
    "/api/v1/orders?" + "&".join(f"a{n}=1" for n in range(2000)),
]


@pytest.mark.parametrize("address", QUERIES)
def test_a_bad_query_string_is_400_saying_where(api, address):
    response = api.get(address)
    assert response.status_code == 400
    problem = json.loads(response.content)
    assert problem["errors"]
    if problem["type"].endswith("validation"):
        assert problem["errors"][0]["in"] == "query"


@pytest.mark.parametrize("tail", ["", "/events", "/notifications"])
def test_a_query_string_where_none_is_known_is_400(api, tail):
    order = api.place()
    assert_problem(api.get(f"{order}{tail}?x=1"), 400, "validation")
    assert_problem(api.post(f"{order}/pay?x=1"), 400, "validation")
    assert_problem(api.post("/api/v1/orders?status=paid", order_body()), 400, "validation")
    for query in ("cursor=nx", "cursor=", "page_size=0", "page_size=201", "status=paid"):
        assert_problem(api.get(f"{order}/events?{query}"), 400, "validation")


def test_what_looks_like_markup_or_templates_is_only_text(api):
    name = "<script>alert(1)</script> {{ 7*7 }} {% debug %} ${7} %s"
    order = api.place(name=name, reference="'; DROP TABLE orders; --")
    assert api.get(order).json()["name"] == name


def test_a_path_with_an_own_number_says_how_to_find_the_order(api):
    detail = assert_problem(api.get("/api/v1/orders/A-1001"), 404, "not-found")["detail"]
    assert "GET /api/v1/orders?reference=" in detail
