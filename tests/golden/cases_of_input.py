"""Bad input, callers without rights, lists and races: the second half of the cases."""

from __future__ import annotations

import json
from typing import Any

from django.db.models.functions import Now

from notifications.models import EmailNotification
from tests.golden.cases import FULL, ITEMS, LEAST, NOBODY, ORDERS, place
from tests.golden.recorder import Recorder

BAD_VALUES: dict[str, list[Any]] = {
    "user_id": [
        None,
        0,
        True,
        "",
        "0",
        "00000000-0000-0000-0000-000000000000",
        NOBODY.replace("-", ""),
        [NOBODY],
    ],
    "email": [
        None,
        1,
        "",
        " ",
        "a",
        "a@",
        "ä@example.com",
        '"a b"@example.com',
        "a@[127.0.0.1]",
        f"{'a' * 65}@b.example",
    ],
    "total_amount": [None, True, "1", 1.0, 0, -1, 10**12 + 1, 10**30, [], {}],
    "name": [None, 1, " ", "n" * 201, "a\nb", "a\u0000b", "\u2028", "\ud800"],
    "currency": [None, 1, "", "eur", "XXX", "EURO", "€"],
    "locale": [None, 1, "", "xx", "de_", "english", "d" * 21],
    "reference": [None, 1, " ", "r" * 101],
    "items": [
        None,
        {},
        "x",
        [1],
        [{}],
        [LEAST],
        [[]],
        [{"sku": "a", "name": "b", "quantity": 0, "unit_amount": -1}],
    ],
    "unknown": [None, 1],
    "a/b~c d": [1],
}
BAD_BODIES = {
    "empty": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "not UTF-8": b'{"name": "\xff"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"total_amount": NaN}',
    "Infinity": b'{"total_amount": -Infinity}',
    "many digits": b'{"total_amount": ' + b"1" * 5000 + b"}",
    "a name twice": b'{"email": "a@example.com", "email": "b@example.com"}',
    "deep": b'{"a":' + b"[" * 20 + b"]" * 20 + b"}",
    "very deep": b"[" * 100_000,
    "many unknown names": json.dumps({f"n{number}": 1 for number in range(90)}).encode(),
    "a megabyte": b'{"name": "' + b"x" * (1 << 20) + b'"}',
    "two bodies": b"{} {}",
}
BAD_CHANGES: dict[str, list[Any]] = {
    "pay": [{"amount": 1}, {"": 1}],
    "confirm": [{"x": None}],
    "complete": [
        {"tracking_url": value}
        for value in (
            None,
            1,
            "",
            "x",
            "ftp://example.com/",
            "javascript:alert(1)",
            "https://example.com/ a",
            "https://example.com/" + "a" * 2000,
        )
    ],
    "cancel": [{"reason": value} for value in (None, 1, " ", "r" * 501, "a\u0007")],
    "refund": [{"amount": value} for value in (None, True, "1", 1.5, 0, -1, 10**12 + 1)]
    + [{"amount": 1, "x": 2}],
}


def bad_bodies(api: Recorder) -> None:
    """Bodies that cannot be read, of another type or too large."""
    for name, body in BAD_BODIES.items():
        api.send(name, "POST", ORDERS, body)
    api.send("with a key", "POST", ORDERS, b"{", key="k")
    for content_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "x",
        "application/json5",
    ):
        api.send(f"a body of {content_type}", "POST", ORDERS, LEAST, Content_Type=content_type)
    path = place(api, "placed")
    api.send("no type", "POST", f"{path}/pay", b"", Content_Type="")
    api.send(
        "pay with another type",
        "POST",
        f"{path}/cancel",
        b"x=1",
        Content_Type="application/x-www-form-urlencoded",
    )
    api.send(
        "in chunks",
        "POST",
        f"{path}/refund",
        None,
        Transfer_Encoding="chunked",
        Content_Type="application/json",
    )
    api.send("a query", "POST", f"{ORDERS}?x=1", LEAST)
    api.send("a get with a body", "GET", path, {"a": 1})


def bad_values(api: Recorder) -> None:
    """Wrong types, wrong values and unknown fields, one by one, then together."""
    for field, values in BAD_VALUES.items():
        for number, value in enumerate(values):
            api.send(f"{field}: {number}", "POST", ORDERS, LEAST | {field: value})
    for field in LEAST:
        api.send(
            f"without {field}", "POST", ORDERS, {key: value for key, value in LEAST.items() if key != field}
        )
    api.send("all at once", "POST", ORDERS, dict.fromkeys([*FULL, "x"], None), key="k")
    api.send("201 items", "POST", ORDERS, LEAST | {"items": ITEMS * 101})
    path = place(api, "placed")
    for action, bodies in BAD_CHANGES.items():
        for number, body in enumerate(bodies):
            api.send(f"{action}: {number}", "POST", f"{path}/{action}", body)
            api.send(f"{action} with a key: {number}", "POST", f"{path}/{action}", body, key="k")
    api.send("a bad body for no order", "POST", f"{ORDERS}/{NOBODY}/refund", {"amount": 0})
    api.send("a bad body for no id", "POST", f"{ORDERS}/1/refund", {"amount": 0})


def callers(api: Recorder) -> None:
    """No token, a bad one, an old one, one without the scope."""
    path = place(api, "placed")
    for name, token in [
        ("no", None),
        ("an unknown", "unknown"),
        ("an expired", "expired"),
        ("a revoked", "revoked"),
    ]:
        api.send(f"{name} token: place", "POST", ORDERS, LEAST, token=token, key="k")
        api.send(f"{name} token: a bad body", "POST", ORDERS, b"{", token=token)
        api.send(f"{name} token: pay", "POST", f"{path}/pay", token=token)
        api.send(f"{name} token: get", "GET", path, token=token)
        api.send(f"{name} token: list", "GET", ORDERS, token=token)
        api.send(f"{name} token: another method", "DELETE", path, token=token)
    for number, header in enumerate(("Bearer", "Bearer ", "Basic YTpi", "bearer x", "Token x", " ")):
        api.send(f"a header, {number}", "POST", f"{path}/pay", token=None, Authorization=header)
    api.send(
        "a scheme in other letters", "GET", path, token=None, Authorization=f"bEARER  {api.tokens['all']}"
    )
    for token in ("reader", "writer", "mailer"):
        api.send(f"{token}: place", "POST", ORDERS, LEAST | {"total_amount": 0}, token=token)
        api.send(f"{token}: pay", "POST", f"{path}/confirm", token=token)
        api.send(f"{token}: get", "GET", path, token=token)
        api.send(f"{token}: list", "GET", f"{ORDERS}?page_size=1", token=token)
        api.send(f"{token}: events", "GET", f"{path}/events", token=token)
        api.send(f"{token}: mails", "GET", "/api/v1/notifications", token=token)
        api.send(f"{token}: resend", "POST", f"/api/v1/notifications/{NOBODY}/resend", token=token)


def methods(api: Recorder) -> None:
    """HEAD, OPTIONS, methods that are not there, addresses that are not there."""
    path = place(api, "placed")
    for method in ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "FOO"):
        for name, address in [
            ("orders", ORDERS),
            ("order", path),
            ("pay", f"{path}/pay"),
            ("events", f"{path}/events"),
        ]:
            if method not in ("PUT", "FOO") or name == "order":
                api.send(f"{method} {name}", method, address)
    api.send("GET pay", "GET", f"{path}/pay")
    api.send("POST order", "POST", path, {})
    addresses = (
        "/api",
        "/api/",
        "/api/v1",
        "/api/v1/",
        "/api/v2/orders",
        f"{ORDERS}/",
        f"{path}/",
        f"{path}/ship",
        "/api/v1/Orders",
    )
    for address in addresses:
        api.send(f"GET {address.replace(path, 'order')}", "GET", address)
        api.send(f"POST {address.replace(path, 'order')}", "POST", address, {}, token=None)
    for number, id in enumerate(
        ("1", "x", NOBODY, NOBODY.replace("-", ""), "%00", "%2e%2e", f"{{{NOBODY}}}")
    ):
        for tail in ("", "/events", "/notifications"):
            api.send(f"get {number}{tail}", "GET", f"{ORDERS}/{id}{tail}")
    api.send("an id in upper case", "GET", path.replace(path[-36:], path[-36:].upper()))


def lists(api: Recorder) -> None:
    """Pages and cursors of orders, events and e-mails; filters; e-mails sent again."""
    paths = [
        place(
            api,
            f"placed {number}",
            reference=f"R-{number % 2}",
            user_id=(NOBODY, LEAST["user_id"])[number % 2],
        )
        for number in range(5)
    ]
    for action in ("pay", "confirm", "complete", "refund"):
        api.send(action, "POST", f"{paths[0]}/{action}")
    queries = [
        "",
        "?page_size=2",
        "?status=pending&page_size=1",
        f"?user_id={NOBODY}",
        "?reference=R-1&page_size=1",
        "?status=paid",
        "?reference=none",
    ]
    for query in queries:
        _walk(api, f"orders{query}", f"{ORDERS}{query}")
    for kind in ("events", "notifications"):
        _walk(api, kind, f"{paths[0]}/{kind}")
        _walk(api, f"{kind} in pages", f"{paths[0]}/{kind}?page_size=2")
        _walk(api, f"no {kind}", f"{paths[1]}/{kind}")
    bad = [
        "page_size=0",
        "page_size=201",
        "page_size=x",
        "cursor=x",
        "cursor=n1",
        "cursor=",
        "status=x",
        "status=",
        "user_id=1",
        "x=1",
        "status=paid&status=paid",
        "reference=%00",
        "reference=%ff",
        "a%0ab=1",
        f"reference={'r' * 101}",
    ]
    for query in bad:
        api.send(f"a bad query: {query[:20]}", "GET", f"{ORDERS}?{query}")
        api.send(f"a bad query of events: {query[:20]}", "GET", f"{paths[0]}/events?{query}")
        api.send(f"a bad query of e-mails: {query[:20]}", "GET", f"/api/v1/notifications?{query}")
    for query in (
        "",
        "?page_size=2",
        "?status=pending",
        "?recipient_email=alice@example.com&page_size=3",
        f"?order_id={paths[0][-36:]}",
        "?status=sent",
    ):
        _walk(api, f"e-mails{query.replace(paths[0][-36:], 'order')}", f"/api/v1/notifications{query}")
    _resend(api, paths[0])


def _resend(api: Recorder, order: str) -> None:
    rows = api.send("the order's e-mails", "GET", f"{order}/notifications").json["results"]
    pending, sent, dead = [row["id"] for row in rows]
    error = {"at": "2026-01-01T00:00:00Z", "provider": "sendgrid", "code": "400", "error": "gone"}
    mails = EmailNotification.objects
    mails.filter(id=sent).update(status="sent", sent_at=Now(), provider="sendgrid")
    mails.filter(id=dead).update(status="dead_lettered", retry_count=3, last_error="gone", errors=[error])
    api.record("made one sent and one dead", "by hand", None, {}, None)
    for name, id in [("pending", pending), ("sent", sent), ("none", NOBODY), ("no id", "1")]:
        api.send(f"get {name}", "GET", f"/api/v1/notifications/{id}")
        api.send(f"resend {name}", "POST", f"/api/v1/notifications/{id}/resend", key=f"resend-{name}")
    api.send("get dead", "GET", f"/api/v1/notifications/{dead}")
    api.send("resend dead with a body", "POST", f"/api/v1/notifications/{dead}/resend", {"x": 1})
    api.send("resend dead", "POST", f"/api/v1/notifications/{dead}/resend", key="resend-dead")
    api.send("resend dead again", "POST", f"/api/v1/notifications/{dead}/resend", key="resend-dead")
    api.send(
        "resend dead with another key", "POST", f"/api/v1/notifications/{dead}/resend", key="resend-dead-2"
    )
    api.send("options of an e-mail", "OPTIONS", f"/api/v1/notifications/{dead}")


def _walk(api: Recorder, name: str, url: str) -> None:
    """Read a list to its end, then one page back."""
    page, number = api.send(f"{name}, page 0", "GET", url).json, 0
    while page["next"]:
        number += 1
        page = api.send(f"{name}, page {number}", "GET", page["next"].removeprefix("http://localhost")).json
    if page["previous"]:
        api.send(f"{name}, back", "GET", page["previous"].removeprefix("http://localhost"))


SECTIONS = (bad_bodies, bad_values, callers, methods, lists)
