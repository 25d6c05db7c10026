"""The requests that are recorded and replayed, section by section. Names are unique within a section."""

from __future__ import annotations

import json
from typing import Any

from tests.golden.recorder import Recorder

ORDERS = "/api/v1/orders"
NOBODY = "00000000-0000-4000-8000-000000000001"
USER = "6f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11"
LEAST = {"user_id": USER, "email": "alice@example.com", "total_amount": 4990}
ITEMS = [
    {"sku": "TEA-1", "name": "Green tea & <honey>", "quantity": 2, "unit_amount": 1995},
    {"sku": "CUP", "name": "Tasse 😀", "quantity": 1, "unit_amount": 0},
]
FULL = LEAST | {
    "name": "Zoë O'Hara",
    "currency": "EUR",
    "locale": "de",
    "reference": "A-1001/é",
    "items": ITEMS,
    "total_amount": 1_234_567,
}
LANGUAGES = ("en", "de", "es", "fr")
LOCALES = (*LANGUAGES, "de-AT", "fr_CA", "nl", "EN")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def place(api: Recorder, label: str, /, **fields: Any) -> str:
    """Place an order and return its path."""
    return api.send(label, "POST", ORDERS, LEAST | fields).path


def placing(api: Recorder) -> None:
    """Place orders: the least, the most, each language, with and without a key."""
    api.send("the least", "POST", ORDERS, LEAST)
    api.send("everything", "POST", ORDERS, FULL, key="place-1")
    for locale in LOCALES:
        api.send(f"in {locale}", "POST", ORDERS, FULL | {"locale": locale, "currency": "JPY"})
    api.send("empty texts", "POST", ORDERS, LEAST | {"name": "", "reference": "", "items": []})
    api.send("the largest amount", "POST", ORDERS, LEAST | {"total_amount": 10**12, "currency": "KWD"})
    api.send("the longest texts", "POST", ORDERS, LEAST | {"name": "n" * 200, "reference": "r" * 100})
    api.send("200 items", "POST", ORDERS, LEAST | {"items": ITEMS * 100})
    api.send("white space", "POST", ORDERS, json.dumps(LEAST, indent=3).encode())
    api.send("a charset", "POST", ORDERS, LEAST, Content_Type="application/json; charset=utf-8")
    api.send("any Accept", "POST", ORDERS, LEAST, Accept="text/html")
    api.send("a token that writes only", "POST", ORDERS, LEAST, token="writer")
    api.send("upper case ids", "POST", ORDERS, LEAST | {"user_id": USER.upper()})


def mails(api: Recorder) -> None:
    """Every e-mail in every language; NOTIFY_ON lists all."""
    for locale in LANGUAGES:
        path = place(api, f"{locale}: placed", **FULL | {"locale": locale})
        api.send(f"{locale}: paid", "POST", f"{path}/pay")
        api.send(f"{locale}: confirmed", "POST", f"{path}/confirm")
        tracking = {"tracking_url": "https://parcels.example.com/42?a=1&b=<2>"}
        api.send(f"{locale}: part refunded", "POST", f"{path}/refund", {"amount": 7})
        api.send(f"{locale}: completed", "POST", f"{path}/complete", tracking)
        api.send(f"{locale}: refunded", "POST", f"{path}/refund")
        other = place(api, f"{locale}: placed for cancelling", locale=locale)
        api.send(f"{locale}: cancelled", "POST", f"{other}/cancel", {"reason": "Out of <stock> & time"})


def changes(api: Recorder) -> None:
    """Each change, in each order that is allowed."""
    path = place(api, "placed")
    api.send("paid", "POST", f"{path}/pay")
    api.send("confirmed", "POST", f"{path}/confirm", {})
    api.send("completed", "POST", f"{path}/complete", {"tracking_url": "https://parcels.example.com/1"})
    api.send("got", "GET", path)

    path = place(api, "placed 2")
    api.send("confirmed before paid", "POST", f"{path}/confirm")
    api.send("confirmed before paid again", "POST", f"{path}/confirm")
    api.send("paid after confirmed", "POST", f"{path}/pay", key="pay-2")
    api.send("completed without tracking", "POST", f"{path}/complete", {})

    path = place(api, "placed 3", **FULL)
    api.send("paid 3", "POST", f"{path}/pay", key='"quoted \\" key"')
    api.send("completed from paid", "POST", f"{path}/complete")
    api.send("a part refunded", "POST", f"{path}/refund", {"amount": 1000}, key="refund-3")
    api.send("more refunded", "POST", f"{path}/refund", {"amount": 1})
    api.send("the rest refunded", "POST", f"{path}/refund")

    path = place(api, "placed 4")
    api.send("cancelled unpaid", "POST", f"{path}/cancel", {"reason": ""})

    path = place(api, "placed 5")
    api.send("paid 5", "POST", f"{path}/pay")
    api.send("cancelled paid", "POST", f"{path}/cancel", {"reason": "r" * 500})
    api.send("a part refunded after cancelling", "POST", f"{path}/refund", {"amount": 90})
    api.send("the rest refunded after cancelling", "POST", f"{path}/refund", {"amount": 4900})

    path = place(api, "placed 6")
    api.send("paid 6", "POST", f"{path}/pay", token="writer")
    api.send("all refunded at once", "POST", f"{path}/refund", {"amount": 4990})


def refusals(api: Recorder) -> None:
    """Wrong transitions and amounts, each with a key as well: nothing is stored."""
    states: dict[str, list[tuple[str, Any]]] = {
        "pending": [],
        "paid": [("pay", None)],
        "confirmed": [("pay", None), ("confirm", None)],
        "completed": [("pay", None), ("complete", None)],
        "cancelled": [("cancel", None)],
        "paid and cancelled": [("pay", None), ("cancel", None)],
        "part refunded": [("pay", None), ("refund", {"amount": 10})],
        "refunded": [("pay", None), ("refund", None)],
        "part refunded and completed": [("pay", None), ("refund", {"amount": 10}), ("complete", None)],
    }
    allowed = {
        "pending": "pay confirm cancel",
        "paid": "confirm complete cancel refund",
        "confirmed": "complete cancel refund",
        "completed": "refund",
        "cancelled": "",
        "paid and cancelled": "refund",
        "part refunded": "complete refund",
        "refunded": "",
        "part refunded and completed": "refund",
    }
    for state, steps in states.items():
        path = place(api, f"{state}: placed")
        for number, (action, body) in enumerate(steps):
            api.send(f"{state}: step {number}", "POST", f"{path}/{action}", body)
        for action in ("pay", "confirm", "complete", "cancel", "refund"):
            if action not in allowed[state].split():
                api.send(f"{state}: {action}", "POST", f"{path}/{action}")
                api.send(
                    f"{state}: {action} with a key", "POST", f"{path}/{action}", key=f"{state[:5]}-{action}"
                )
    path = place(api, "placed")
    api.send("paid", "POST", f"{path}/pay")
    api.send("too much", "POST", f"{path}/refund", {"amount": 4991}, key="much")
    api.send("refunded with the key of a refused one", "POST", f"{path}/refund", {"amount": 4990}, key="much")
    api.send("nothing left", "POST", f"{path}/refund", {"amount": 1})
    for action in ("pay", "confirm", "complete", "cancel", "refund"):
        api.send(f"no such order: {action}", "POST", f"{ORDERS}/{NOBODY}/{action}", key=f"none-{action}")
        api.send(f"no id: {action}", "POST", f"{ORDERS}/1/{action}")


def replays(api: Recorder) -> None:
    """Keys that come again: same request, other request, other token."""
    first = api.send("placed", "POST", ORDERS, FULL, key="k-1")
    api.send("placed again", "POST", ORDERS, FULL, key="k-1", X_Correlation_ID="again")
    reordered = json.dumps(dict(reversed(FULL.items())), indent=1).encode()
    api.send("placed again in other words", "POST", ORDERS, reordered, key="k-1")
    api.send("quoted, the same key", "POST", ORDERS, FULL, key='"k-1"')
    api.send("another body", "POST", ORDERS, LEAST, key="k-1")
    api.send("another path", "POST", f"{first.path}/pay", key="k-1")
    api.send("another token", "POST", ORDERS, FULL, key="k-1", token="other")
    api.send("a key and a body that is refused", "POST", ORDERS, LEAST | {"total_amount": 0}, key="k-1")
    api.send("paid", "POST", f"{first.path}/pay", key="k-2")
    api.send("paid again", "POST", f"{first.path}/pay", {}, key="k-2")
    api.send("paid again with a body", "POST", f"{first.path}/pay", {"a": 1}, key="k-2")
    api.send("completed", "POST", f"{first.path}/complete")
    api.send("paid again after another change", "POST", f"{first.path}/pay", key="k-2")
    api.send("paid with another key", "POST", f"{first.path}/pay", key="k-3")
    api.send("refunded", "POST", f"{first.path}/refund", {"amount": 5}, key="k-4")
    api.send("refunded again", "POST", f"{first.path}/refund", b'{ "amount" : 5 }', key="k-4")
    api.send("another amount", "POST", f"{first.path}/refund", {"amount": 6}, key="k-4")
    for action in ("pay", "refund"):
        for number, key in enumerate(("", " ", "k" * 256, "ä", "a b", '"open', '""')):
            api.send(
                f"{action}: a bad key, {number}", "POST", f"{first.path}/{action}", Idempotency_Key=key or " "
            )
    api.send("the longest key", "POST", ORDERS, LEAST, key="k" * 255)


def context(api: Recorder) -> None:
    """Correlation ids and traces: taken if they are well formed."""
    api.keep(TRACE[3:35])
    given = api.send("given", "POST", ORDERS, LEAST, X_Correlation_ID="Given.1_2-3")
    api.send("with a trace", "POST", f"{given.path}/pay", X_Correlation_ID="c" * 128, traceparent=TRACE)
    api.send("too long", "POST", f"{given.path}/complete", X_Correlation_ID="c" * 129)
    api.send("of other characters", "GET", given.path, X_Correlation_ID="a b")
    api.send(
        "a trace of zeros",
        "POST",
        f"{given.path}/refund",
        {"amount": 1},
        traceparent=f"00-{'0' * 32}-{'1' * 16}-01",
    )
    api.send("a trace with a key", "POST", f"{given.path}/refund", {"amount": 2}, traceparent=TRACE, key="t")
    api.send("on an error", "GET", "/api/v1/nothing", X_Correlation_ID="mine")
    api.send("events", "GET", f"{given.path}/events")
    api.send("notifications", "GET", f"{given.path}/notifications")


SECTIONS = (placing, mails, changes, refusals, replays, context)
