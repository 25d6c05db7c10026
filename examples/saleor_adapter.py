"""A program between Saleor and orderpost: it turns Saleor's webhooks into events of your shop.

    .venv/bin/python examples/saleor_adapter.py --query   # prints the webhook's subscription query
    SALEOR_URL=https://saleor.example.com ORDERPOST_TOKEN=... .venv/bin/python examples/saleor_adapter.py

SALEOR_URL is the address of Saleor's API without /graphql/, and ORDERPOST_TOKEN a token with the scope
events:write. ORDERPOST_URL (http://127.0.0.1:8000), SOURCE (saleor, as in ORDER_SOURCES) and PORT (8090) have
defaults.

In Saleor, make an app with the permission MANAGE_ORDERS and a webhook without a secret key, so that Saleor
signs with its private key (JWS, RS256). Subscribe to the asynchronous events ORDER_CREATED, ORDER_FULLY_PAID,
ORDER_CONFIRMED, ORDER_FULFILLED, ORDER_CANCELLED and ORDER_REFUNDED, with the query below. Other events are
answered 200 and ignored: ORDER_PAID may be about a part of the total, ORDER_FULLY_REFUNDED always comes with
ORDER_REFUNDED, and ORDER_UPDATED does not say what changed.

The answers: 200 if orderpost has the event. 401 or 422 for a wrong signature or a refused event, which Saleor
does not send again. 503 if orderpost or Saleor's keys cannot be reached, because Saleor repeats 5xx five
times within 310 s. Later, Saleor's mutation eventDeliveryRetry sends a failed delivery again.
"""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import http.server
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from decimal import Decimal
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

QUERY = """
fragment Sum on Money { amount currency }
fragment Whole on Order {
  id number created languageCodeEnum userEmail status
  user { id }
  billingAddress { firstName lastName }
  total { gross { ...Sum } }
  totalCharged { ...Sum }
  totalRefunded { ...Sum }
  lines { id productSku productName variantName quantity unitPrice { gross { ...Sum } } }
  fulfillments { trackingNumber }
  transactions { events { type createdAt amount { ...Sum } } }
}
subscription {
  event {
    __typename
    issuedAt
    ... on OrderCreated { order { ...Whole } }
    ... on OrderFullyPaid { order { ...Whole } }
    ... on OrderConfirmed { order { ...Whole } }
    ... on OrderFulfilled { order { ...Whole } }
    ... on OrderCancelled { order { ...Whole } }
    ... on OrderRefunded { order { ...Whole } }
  }
}
"""
#: Saleor's event -> our change. The name is read from the body, because the signature covers no header.
CHANGES = {
    "OrderCreated": "placed",
    "OrderFullyPaid": "paid",
    "OrderConfirmed": "confirmed",
    "OrderFulfilled": "completed",
    "OrderCancelled": "cancelled",
    "OrderRefunded": "refunded",
}
RANKS = list(CHANGES)
#: Digits of the minor unit if not 2 (ISO 4217).
DIGITS = {
    code: digits
    for digits, codes in (
        (0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"),
        (3, "BHD IQD JOD KWD LYD OMR TND"),
        (4, "CLF UYW"),
    )
    for code in codes.split()
}
LARGEST_SEQUENCE = 2**31 - 1
LARGEST_BODY = 10**6
Json = dict[str, Any]


def count_minor_units(money: Json, *, currency: str) -> int:
    """Return the exact amount in minor units of the order's currency.

    Raise `ValueError` if it has a fraction of one, or is in another currency.
    """
    if money["currency"] != currency:
        raise ValueError(f"{money['amount']} {money['currency']} is not in the order's currency, {currency}")
    units = Decimal(money["amount"]).scaleb(DIGITS.get(currency, 2))
    if units != int(units):
        raise ValueError(f"{money['amount']} {currency} has a fraction of a minor unit")
    return int(units)


def make_sequence(event: Json) -> int:
    """Return eight times the seconds from the order's creation to the event, plus the event's rank.

    Saleor has no version of an order. It makes the payload some time after the event, so `updatedAt` can
    belong to a later change, but `issuedAt` is the time of the request that caused the event. One request
    causes several events, such as created, paid and confirmed, so the rank puts them in that order. Limits:
    two changes of the same second in another order end in the order of their ranks, and from 8.5 years after
    its creation an order no longer changes here, because the number stays at the largest possible.
    """
    issued, created = (dt.datetime.fromisoformat(at) for at in (event["issuedAt"], event["order"]["created"]))
    seconds = max(0, int((issued - created).total_seconds()))
    return min(1 + 8 * seconds + RANKS.index(event["__typename"]), LARGEST_SEQUENCE)


def describe_change(change: str, order: Json, *, total: int, refunded: int) -> tuple[str, Json]:
    """Return the last word of the topic, and the fields of `data` that depend on the change."""
    is_part, is_cancelled = 0 < refunded < total, order["status"] == "CANCELED"
    currency = order["total"]["gross"]["currency"]
    match change:
        case "placed":
            return change, {"status": "pending"}
        case "completed":
            tracked = [each["trackingNumber"] for each in order["fulfillments"]]
            links = [number for number in tracked if number.startswith(("https://", "http://"))]
            more = {"trackingUrl": links[-1]} if links else {}
            return change, {"status": "part_refunded" if is_part else "completed", **more}
        case "cancelled":
            is_paid = refunded > 0 or count_minor_units(order["totalCharged"], currency=currency) > 0
            return change, {"status": "cancelled", "wasPaid": is_paid}
        case "refunded":
            events = [event for each in order["transactions"] for event in each["events"]]
            successes = [event for event in events if event["type"] == "REFUND_SUCCESS"]
            successes.sort(key=lambda event: dt.datetime.fromisoformat(event["createdAt"]))
            # Saleor's deprecated payments API has no transactions. Then only the sum of all refunds is known.
            last = successes[-1]["amount"] if successes else None
            # Saleor can refund more than the total, which orderpost refuses.
            amount = min(count_minor_units(last, currency=currency), refunded) if last else refunded
            topic = "part_refunded" if is_part else "refunded"
            return topic, {"status": "cancelled" if is_cancelled else topic, "amount": amount}
    return change, {"status": change}


def translate(event: Json, *, source: str) -> Json | None:
    """Return orderpost's event for Saleor's, or None if orderpost need not know.

    The result is the same for the same payload, so a repeated delivery is a repeated event.
    """
    name = event.get("__typename")
    if name not in CHANGES:
        return None
    order = event["order"]
    currency = order["total"]["gross"]["currency"]
    total = count_minor_units(order["total"]["gross"], currency=currency)
    refunded = min(count_minor_units(order["totalRefunded"], currency=currency), total)
    topic, more = describe_change(CHANGES[name], order, total=total, refunded=refunded)
    email, address = order["userEmail"], order["billingAddress"] or {}
    if not email:
        raise ValueError("the order has no e-mail address")
    guest = str(uuid.uuid5(uuid.NAMESPACE_URL, f"mailto:{email.lower()}"))
    data = {
        "orderId": order["id"],
        "userId": order["user"]["id"] if order["user"] else guest,
        "placedAt": order["created"],
        "email": email,
        "name": f"{address.get('firstName', '')} {address.get('lastName', '')}".strip()[:200],
        "locale": order["languageCodeEnum"].lower().replace("_", "-"),
        "reference": order["number"],
        "totalAmount": total,
        "refundedAmount": refunded,
        "currency": currency,
        "items": [
            {
                "sku": (line["productSku"] or line["id"])[:100],
                "name": f"{line['productName']} {line['variantName']}".strip()[:200],
                "quantity": line["quantity"],
                "unitAmount": count_minor_units(line["unitPrice"]["gross"], currency=currency),
            }
            for line in order["lines"][:200]
        ],
    }
    return {
        "eventId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{source}/{order['id']}/{name}/{event['issuedAt']}")),
        "timestamp": event["issuedAt"],
        "eventType": f"order.order.{topic}.v1",
        "version": 1,
        "source": source,
        "data": data | more,
        "metadata": {"sequence": make_sequence(event)},
    }


def decode(text: str) -> bytes:
    """Decode base64url without padding."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def make_key(fields: Json) -> rsa.RSAPublicKey:
    """Return the public key of a JSON Web Key (RFC 7517)."""
    exponent, modulus = (int.from_bytes(decode(fields[name]), "big") for name in ("e", "n"))
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


class Adapter:
    """Checks, translates and posts Saleor's webhooks."""

    def __init__(self, *, saleor_url: str, orderpost_url: str, token: str, source: str) -> None:
        self.keys_url = f"{saleor_url.rstrip('/')}/.well-known/jwks.json"
        self.events_url = f"{orderpost_url.rstrip('/')}/api/v1/events"
        self.token, self.source = token, source
        self.keys: dict[str, rsa.RSAPublicKey] = {}
        self.keys_read_at = float("-inf")

    def answer(self, body: bytes, *, signature: str) -> tuple[int, str]:
        """Return the status and the text with which to answer a webhook."""
        try:
            if not self.is_signed(body, signature):
                return 401, "The signature is missing or wrong."
        except (OSError, http.client.HTTPException) as error:
            return 503, f"Saleor's keys: {error}"
        try:
            event = translate(json.loads(body, parse_float=Decimal), source=self.source)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            return 422, f"This is not an order in the form of the query: {error!r}"
        return (200, "ignored") if event is None else self.post(event)

    def is_signed(self, body: bytes, signature: str) -> bool:
        """Check a detached JWS with an unencoded payload (RFC 7515, RFC 7797), made with RS256."""
        head, _, rest = signature.partition(".")
        try:
            header = json.loads(decode(head))
            expected = header["alg"] == "RS256" and header["b64"] is False and header["crit"] == ["b64"]
            key = self.find_key(header["kid"]) if expected else None
            if key is None or not rest.startswith("."):
                return False
            key.verify(decode(rest[1:]), head.encode() + b"." + body, padding.PKCS1v15(), SHA256())
        except (InvalidSignature, LookupError, TypeError, ValueError):
            return False
        return True

    def find_key(self, id: str) -> rsa.RSAPublicKey | None:
        """Return Saleor's public key. Read its keys again at most once a minute."""
        if id not in self.keys and time.monotonic() - self.keys_read_at > 60:
            try:
                with urllib.request.urlopen(self.keys_url, timeout=5) as answer:
                    text = answer.read()
            except urllib.error.HTTPError as error:
                error.close()
                raise
            try:
                self.keys = {key["kid"]: make_key(key) for key in json.loads(text)["keys"]}
            except (LookupError, TypeError, ValueError) as error:
                raise ConnectionError(f"they cannot be read: {error!r}") from None
            self.keys_read_at = time.monotonic()
        return self.keys.get(id)

    def post(self, event: Json) -> tuple[int, str]:
        """Post an event, and return the answer for Saleor."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.events_url, json.dumps(event).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return 200, json.load(answer)["result"]
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            # Nothing but a correction changes these answers. All others, such as 401 and 429, can pass.
            return (422 if error.code in (400, 413, 422) else 503), f"orderpost answered {error.code}: {text}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return 503, f"orderpost: {error}"


def make_server(adapter: Adapter, *, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server on the local address. Let a proxy with TLS pass Saleor's requests on to it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 20

        def do_POST(self) -> None:
            status, text = 413, f"Send a body of at most {LARGEST_BODY} bytes with its Content-Length."
            length = self.headers.get("Content-Length", "")
            if length.isdecimal() and int(length) <= LARGEST_BODY:
                body = self.rfile.read(int(length))
                status, text = adapter.answer(body, signature=self.headers.get("Saleor-Signature", ""))
            print(f"{self.headers.get('Saleor-Event')!r}: {status} {text}", file=sys.stderr, flush=True)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

    return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Serve until Ctrl-C, or print the query."""
    if "--query" in sys.argv[1:]:
        print(QUERY.strip())
        return
    environ = os.environ
    missing = [name for name in ("SALEOR_URL", "ORDERPOST_TOKEN") if not environ.get(name)]
    if missing:
        sys.exit(f"Set {' and '.join(missing)}.")
    adapter = Adapter(
        saleor_url=environ["SALEOR_URL"],
        orderpost_url=environ.get("ORDERPOST_URL", "http://127.0.0.1:8000"),
        token=environ["ORDERPOST_TOKEN"],
        source=environ.get("SOURCE", "saleor"),
    )
    with make_server(adapter, port=int(environ.get("PORT", "8090"))) as server:
        print(f"Point Saleor's webhook at port {server.server_port}.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
