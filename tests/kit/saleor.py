"""A scripted Saleor shop: its orders, the events that it posts to an app, its GraphQL API and its keys.

    shop = FakeSaleor()
    with shop.serve() as address:
        shop.install(Client(), manifest_path)
        order = shop.place()
        shop.fulfill(order)
        for headers, body in shop.deliveries(): ...

As in Saleor 3.24, one request causes several events, and one key signs the posts of all apps. A worker makes
most bodies, so these have the order as it is when they are sent; those that say whether the customer is to
hear of a parcel are made at once. `issuedAt` is when the body was made. `truth` says what the order is, and
which e-mails its customer must have.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import datetime as dt
import functools
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from tests.kit.http import serve
from tests.kit.woocommerce import Truth

Post = tuple[dict[str, str], bytes]
Json = dict[str, Any]


@functools.cache
def private_key(number: int = 0) -> rsa.RSAPrivateKey:
    """Return a key of Saleor's, or another one."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def jwk(number: int = 0) -> Json:
    numbers = private_key(number).public_key().public_numbers()
    n, e = (encode(part.to_bytes((part.bit_length() + 7) // 8)) for part in (numbers.n, numbers.e))
    return {
        "kty": "RSA",
        "key_ops": ["verify"],
        "n": n,
        "e": e,
        "use": "sig",
        "kid": f"key-{number}",
        "alg": "RS256",
    }


def sign(body: bytes, *, key: int = 0, **header: Any) -> str:
    """Return the value of Saleor-Signature: a detached JWS. `header` has other members than Saleor's."""
    values = {"alg": "RS256", "typ": "JWT", "kid": f"key-{key}", "crit": ["b64"], "b64": False} | header
    head = encode(json.dumps(values, separators=(",", ":")).encode())
    signature = private_key(key).sign(head.encode() + b"." + body, padding.PKCS1v15(), SHA256())
    return f"{head}..{encode(signature)}"


def global_id(kind: str, number: int) -> str:
    return base64.b64encode(f"{kind}:{number}".encode()).decode()


def money(amount: float) -> Json:
    return {"amount": round(amount, 2)}


def taxed(gross: float, *, rate: float = 0.0) -> Json:
    return {"gross": money(gross), "net": money(gross / (1 + rate))}


class FakeSaleor:
    def __init__(self, *, seed: int = 0, source: str = "tea-shop") -> None:
        self.app, self.identifier, self.token = global_id("App", 1), f"orderpost.{source}", "t" * 30
        self.permissions, self.keys = ["MANAGE_ORDERS"], [jwk()]
        self.address = ""
        self.orders: dict[str, Json] = {}
        self.emails: dict[str, list[str]] = {}
        self.silenced: dict[str, list[str]] = {}  # those that only a lost event would send
        self.optional: dict[str, list[str]] = {}  # of `emails`, those that a lost post takes away
        self.waiting: list[Json] = []  # the bodies of posts to send, some without their order
        self.manifest: Json = {}
        self.requests: list[Json] = []  # GraphQL
        self.answers: list[tuple[int, Any, dict[str, str]]] = []  # before the API's own
        self.changed_at: dict[str, dt.datetime] = {}  # of the last event of an order
        self._ids, self._numbers = itertools.count(1), itertools.count(1001)
        self._random = random.Random(seed)
        self.now, self.longest_pause = dt.datetime.now(dt.UTC) - dt.timedelta(hours=6), 60.0  # s
        self.parcel = ""  # the id of a fulfilment that a test goes on with

    # Actions of people in the shop

    def place(
        self,
        *,
        status: str = "UNFULFILLED",
        is_paid: bool = True,
        email: str = "ann@example.com",
        **fields: Any,
    ) -> str:
        """Place an order of two lines. Saleor confirms it at once, unless it is UNCONFIRMED."""
        self._tick()
        number = next(self._numbers)
        id = global_id("Order", number)
        self.orders[id] = {
            "id": id,
            "number": str(number),
            "created": self._now(),
            "updatedAt": self._now(),
            "status": status,
            "origin": "CHECKOUT",
            "chargeStatus": "NONE",
            "displayGrossPrices": True,
            "languageCodeEnum": "EN",
            "userEmail": email,
            "customerNote": "",
            "shippingMethodName": "DHL",
            "collectionPointName": None,
            "voucherCode": None,
            "channel": {"slug": "default-channel"},
            "user": None,
            "billingAddress": self._place(),
            "shippingAddress": self._place(),
            "total": {"currency": "EUR", **taxed(49.90, rate=0.19)},
            "shippingPrice": taxed(4.90, rate=0.19),
            "totalCharged": money(0),
            "discounts": [],
            "giftCards": [],
            "lines": [self._line("TEA", "Green tea", 2, 15.0), self._line("CUP", "Cup", 1, 15.0)],
            "fulfillments": [],
            "transactions": [],
            "payments": [],
            **fields,
        }
        self.emails[id], self.optional[id], self.silenced[id] = [], [], []
        self._post("OrderConfirmed", id)
        self._post("OrderCreated", id)
        if is_paid:
            self._charge(id)
            self._post("OrderUpdated", id)
        self._tell(id, "paid" if is_paid else "placed" if status == "UNCONFIRMED" else "confirmed")
        return id

    def confirm(self, id: str) -> None:
        self._tick()
        self.orders[id]["status"] = "UNFULFILLED"
        if not self._charged(id):
            self._tell(id, "confirmed")
        self.orders[id]["updatedAt"] = self._now()
        self._post("OrderConfirmed", id)

    def pay(self, id: str, amount: float | None = None) -> None:
        self._tick()
        self._charge(id, amount)
        if self.orders[id]["chargeStatus"] == "FULL":
            self._tell(id, "paid")
        self._updated(id)

    def fulfill(
        self, id: str, *quantities: int, number: str = "", notify: bool = True, is_approved: bool = True
    ) -> str:
        """Send so many of each line, or all that is left."""
        self._tick()
        order = self.orders[id]
        lines = order["lines"]
        counts = quantities or [line["quantity"] - line["quantityFulfilled"] for line in lines]
        for line, count in zip(lines, counts, strict=True):
            line["quantityFulfilled"] += count
        fulfillment = self._add_fulfillment(
            id, "FULFILLED" if is_approved else "WAITING_FOR_APPROVAL", counts, number=number
        )
        if number:
            self._post("FulfillmentTrackingNumberUpdated", id, fulfillment=fulfillment)
        if is_approved:
            self._fulfilled(id, fulfillment, notify=notify)
        else:
            self._updated(id, moves=False)
        return fulfillment

    def approve(self, id: str, fulfillment: str, *, notify: bool = True) -> None:
        self._tick()
        self._fulfillment(id, fulfillment)["status"] = "FULFILLED"
        self._fulfilled(id, fulfillment, notify=notify)

    def track(self, id: str, fulfillment: str, number: str) -> None:
        """Give a parcel a number, or another one. `updatedAt` stays, as in Saleor."""
        self._tick()
        self._fulfillment(id, fulfillment)["trackingNumber"] = number
        self._post("FulfillmentTrackingNumberUpdated", id, fulfillment=fulfillment)
        self._tell(id, "shipped", is_optional=True)
        self._updated(id, moves=False)

    def cancel_fulfillment(self, id: str, fulfillment: str) -> None:
        self._tick()
        each = self._fulfillment(id, fulfillment)
        each["status"] = "CANCELED"
        for line in self.orders[id]["lines"]:
            for sent in each["lines"]:
                if sent["orderLine"]["id"] == line["id"]:
                    line["quantityFulfilled"] -= sent["quantity"]
        self._set_status(id)
        self._updated(id)

    def return_all(self, id: str, fulfillment: str) -> None:
        """Take a parcel back. Saleor moves its lines to another fulfilment, and deletes the empty one."""
        self._tick()
        order = self.orders[id]
        back = self._fulfillment(id, fulfillment)
        order["fulfillments"].remove(back)
        order["fulfillments"].append({**back, "id": self._id("Fulfillment"), "status": "RETURNED"})
        order["status"] = "RETURNED" if order["status"] == "FULFILLED" else order["status"]
        self._updated(id)

    def refund(self, id: str, amount: float | None = None) -> None:
        """Refund an amount, or all that is left. The order keeps its status, as in Saleor."""
        self._tick()
        order = self.orders[id]
        left = self._charged(id) - self._refunded(id)
        amount = left if amount is None else amount
        self._event(id, "REFUND_SUCCESS", amount)
        order["totalCharged"] = money(left - amount)
        order["chargeStatus"] = "PARTIAL" if left - amount > 0.001 else "NONE"
        self._tell(id, "part_refunded" if left - amount > 0.001 else "refunded")
        self._updated(id)

    def cancel(self, id: str) -> None:
        self._tick()
        self.orders[id]["status"] = "CANCELED"
        self._tell(id, "cancelled")
        self._updated(id)

    def expire(self, id: str) -> None:
        self._tick()
        self.orders[id]["status"] = "EXPIRED"
        self._updated(id)

    def edit(self, id: str, **fields: Any) -> None:
        """Save an order with other members, or as it is."""
        self._tick()
        self.orders[id].update(fields)
        self._updated(id)

    def place_any(self) -> str:
        """Place an order in one of the ways in which customers pay."""
        status, is_paid = self._random.choice(
            [("UNCONFIRMED", False), ("UNCONFIRMED", True), ("UNFULFILLED", False), ("UNFULFILLED", True)]
        )
        return self.place(status=status, is_paid=is_paid)

    def live(self, id: str) -> Iterator[str]:
        """Change an order in some of the ways in which people do. Yield the name of each change."""
        order = self.orders[id]
        for number in range(self._random.randint(1, 8)):
            status, charged = order["status"], self._charged(id)
            left = charged - self._refunded(id)
            can = ["edit"]
            if not charged and status in ("UNCONFIRMED", "UNFULFILLED"):
                can += ["pay", "pay", "cancel"]
            if status == "UNCONFIRMED":
                can += ["confirm"]
            if charged and left > 2 and status in ("UNFULFILLED", "PARTIALLY_FULFILLED"):
                can += ["send_a_part", "fulfill", "fulfill"]
            if charged and status == "UNFULFILLED":
                can += ["cancel"]
            if left > 2 and status in ("PARTIALLY_FULFILLED", "FULFILLED"):
                can += ["track", "refund_a_part", "refund"]
            match change := self._random.choice(can):
                case "send_a_part":
                    if self._left_to_send(id) < 2:
                        continue
                    line = next(
                        line for line in order["lines"] if line["quantity"] > line["quantityFulfilled"]
                    )
                    counts = [int(each is line) for each in order["lines"]]
                    self.fulfill(id, *counts, notify=self._random.random() < 0.7)
                case "fulfill":
                    self.fulfill(id, number=f"P{number}", notify=self._random.random() < 0.7)
                case "track":
                    parcel = self._random.choice(order["fulfillments"])
                    self.track(id, parcel["id"], f"{parcel['trackingNumber']}-{number}")
                case "refund_a_part":
                    self.refund(id, 1.0)
                case _:
                    getattr(self, change)(id)
            yield change

    # Posts to orderpost

    def deliveries(self) -> list[Post]:
        """Return the posts that wait, and forget them."""
        posts = [self.signed(body if "order" in body else self._made(body)) for body in self.waiting]
        self.waiting.clear()
        return posts

    def signed(self, document: Json) -> Post:
        body = json.dumps(document).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Saleor/3.24",
            "Saleor-Event": "order_updated",
            "Saleor-Domain": "shop.example",
            "Saleor-Api-Url": f"{self.address}/graphql/",
            "Saleor-Signature": sign(body),
        }
        return headers, body

    def truth(self, id: str) -> Truth:
        """Return what the order is, and its e-mails. Fewer are owed if posts were lost."""
        order, emails = self.orders[id], (*self.emails[id], *self.silenced[id])
        refunded = round(self._refunded(id) * 100)
        total = round(order["total"]["gross"]["amount"] * 100)
        unpaid = "pending" if order["status"] == "UNCONFIRMED" else "confirmed"
        ours = "paid" if self._charged(id) else unpaid
        if order["status"] == "FULFILLED":
            ours = "completed"
        if refunded:
            ours = "refunded" if refunded == total else "part_refunded"
        if order["status"] == "CANCELED":
            ours = "cancelled"
        no_news = {"order.shipped", *(("order.placed", "order.confirmed") if len(emails) > 1 else ())}
        no_news |= {"order.part_refunded"} if "order.paid" in emails else set()
        no_news |= {"order.paid"} if refunded == total else set()
        no_news |= {*self.optional[id], *self.silenced[id]}
        return Truth(ours, refunded, emails, tuple(email for email in emails if email not in no_news))

    # The API

    def install(self, client: Any, path: str) -> Any:
        """Install the app by its manifest's path, and return the answer to the token."""
        self.manifest = client.get(path).json()
        self.identifier = self.manifest["id"]
        return self.register(client)

    def register(self, client: Any, **values: Any) -> Any:
        path = "/" + self.manifest["tokenTargetUrl"].split("/", 3)[3]
        body = json.dumps({"auth_token": self.token} | values)
        return client.post(path, body, content_type="application/json")

    @contextlib.contextmanager
    def serve(self, **options: Any) -> Iterator[str]:
        """Serve the API and the keys, and yield the shop's address."""
        with serve(self.answer, **options) as self.address:
            yield self.address

    def answer(self, path: str, headers: Any, body: Any) -> tuple[int, Any, dict[str, str]]:
        if self.answers:
            return self.answers.pop(0)
        if path == "/.well-known/jwks.json":
            return 200, {"keys": self.keys}, {}
        if path != "/graphql/" or body is None:
            return 404, {}, {}
        self.requests.append(body)
        has_token = headers.get("Authorization") == f"Bearer {self.token}"
        query, variables = body["query"], body.get("variables") or {}
        if query.startswith("{ app"):
            codes = [{"code": code} for code in self.permissions]
            app = {"id": self.app, "identifier": self.identifier, "permissions": codes}
            return 200, {"data": {"app": app if has_token else None}}, {}
        if not has_token:
            said = "To access this path, you need one of the following permissions: MANAGE_ORDERS"
            error = {"message": said, "extensions": {"exception": {"code": "PermissionDenied"}}}
            return 200, {"data": None, "errors": [error]}, {}
        if "order(id: $id)" in query:
            return 200, {"data": {"order": self.orders.get(variables["id"])}}, {}
        return 200, {"data": {"orders": self._list(variables)}}, {}

    def _list(self, variables: Json) -> Json:
        where = variables["where"]
        chosen = [order for order in self.orders.values() if self._matches(order, where)]
        begin, first = int(variables.get("after") or 0), variables["first"]
        page = chosen[begin : begin + first]
        info = {
            "hasNextPage": begin + first < len(chosen),
            "endCursor": str(begin + len(page)) if page else None,
        }
        return {"pageInfo": info, "edges": [{"node": order} for order in page]}

    def _matches(self, order: Json, where: Json) -> bool:
        def lies(time: str, bounds: Json) -> bool:
            at = dt.datetime.fromisoformat(time)
            after, before = (bounds.get(name) for name in ("gte", "lte"))
            is_after = after is None or at >= dt.datetime.fromisoformat(after)
            return is_after and (before is None or at <= dt.datetime.fromisoformat(before))

        names = {"updatedAt": "updatedAt", "createdAt": "created"}
        if not all(lies(order[names[name]], where[name]) for name in names if name in where):
            return False
        at = self.changed_at[order["id"]].isoformat()
        return all(lies(at, event["date"]) for event in where.get("events", []))

    # Parts of an order

    def _fulfilled(self, id: str, fulfillment: str, *, notify: bool) -> None:
        order = self.orders[id]
        was_whole = order["status"] == "FULFILLED"
        self._set_status(id)
        is_whole = order["status"] == "FULFILLED"
        for event in ("FulfillmentCreated", *(("FulfillmentApproved",) if is_whole else ())):
            self._post(event, id, fulfillment=fulfillment, notify=notify)
        told = self.emails if notify else self.silenced
        told[id].append(f"order.{'completed' if is_whole and not was_whole else 'shipped'}")
        self._updated(id)

    def _set_status(self, id: str) -> None:
        order = self.orders[id]
        waits = any(each["status"] == "WAITING_FOR_APPROVAL" for each in order["fulfillments"])
        sent = sum(line["quantityFulfilled"] for line in order["lines"])
        whole = not self._left_to_send(id) and not waits
        order["status"] = "FULFILLED" if whole else "PARTIALLY_FULFILLED" if sent else "UNFULFILLED"

    def _left_to_send(self, id: str) -> int:
        lines = self.orders[id]["lines"]
        return sum(line["quantity"] - line["quantityFulfilled"] for line in lines)

    def _add_fulfillment(self, id: str, status: str, counts: Any, *, number: str) -> str:
        order = self.orders[id]
        fulfillment: Json = {
            "id": self._id("Fulfillment"),
            "status": status,
            "created": (self.now + dt.timedelta(milliseconds=50)).isoformat(),
            "trackingNumber": number,
            "lines": [
                {"quantity": count, "orderLine": {"id": line["id"]}}
                for line, count in zip(order["lines"], counts, strict=True)
                if count
            ],
        }
        order["fulfillments"].append(fulfillment)
        return str(fulfillment["id"])

    def _fulfillment(self, id: str, fulfillment: str) -> Json:
        return next(each for each in self.orders[id]["fulfillments"] if each["id"] == fulfillment)

    def _charge(self, id: str, amount: float | None = None) -> None:
        order = self.orders[id]
        total = order["total"]["gross"]["amount"]
        self._event(id, "CHARGE_SUCCESS", total - self._charged(id) if amount is None else amount)
        order["totalCharged"] = money(self._charged(id))
        order["chargeStatus"] = "FULL" if self._charged(id) >= total else "PARTIAL"

    def _event(self, id: str, type: str, amount: float) -> None:
        order = self.orders[id]
        if not order["transactions"]:
            order["transactions"].append({"events": []})
        order["transactions"][0]["events"].append(
            {
                "id": self._id("TransactionEvent"),
                "createdAt": (self.now + dt.timedelta(milliseconds=20)).isoformat(),
                "type": type,
                "pspReference": "",
                "amount": money(amount),
            }
        )

    def _charged(self, id: str) -> float:
        return self._sum(id, "CHARGE_SUCCESS")

    def _refunded(self, id: str) -> float:
        return self._sum(id, "REFUND_SUCCESS")

    def _sum(self, id: str, type: str) -> float:
        events = (event for each in self.orders[id]["transactions"] for event in each["events"])
        return float(round(sum(event["amount"]["amount"] for event in events if event["type"] == type), 2))

    def _line(self, sku: str, name: str, quantity: int, price: float) -> Json:
        return {
            "id": self._id("OrderLine"),
            "productSku": sku,
            "productName": name,
            "variantName": sku,
            "translatedProductName": "",
            "translatedVariantName": "",
            "quantity": quantity,
            "quantityFulfilled": 0,
            "totalPrice": taxed(price * quantity, rate=0.19),
            "undiscountedTotalPrice": taxed(price * quantity, rate=0.19),
        }

    def _place(self) -> Json:
        names = {"firstName": "Ann", "lastName": "Lee", "companyName": "", "cityArea": "", "countryArea": ""}
        street = {
            "streetAddress1": "Hauptstr. 1",
            "streetAddress2": "",
            "city": "BERLIN",
            "postalCode": "10115",
        }
        return {**names, **street, "country": {"code": "DE"}}

    def _tell(self, id: str, event: str, *, is_optional: bool = False) -> None:
        """Note an e-mail. One that `is_optional` is not owed if a post was lost."""
        if is_optional:
            self.optional[id].append(f"order.{event}")
        self.emails[id].append(f"order.{event}")

    def _updated(self, id: str, *, moves: bool = True) -> None:
        if moves:
            self.orders[id]["updatedAt"] = self._now()
        self._post("OrderUpdated", id)

    def _post(self, event: str, id: str, *, fulfillment: str = "", notify: bool | None = None) -> None:
        self.changed_at[id] = self.now
        body: Json = {"__typename": event, "recipient": {"id": self.app}}
        body["about"] = {"id": id, "channel": self.orders[id]["channel"]}
        if fulfillment:
            body["fulfillment"] = {"id": fulfillment}
        self.waiting.append(body if notify is None else self._made(body | {"notifyCustomer": notify}))

    def made(self, event: str, id: str) -> Json:
        """Return the body of an event about an order as it is now."""
        self._post(event, id)
        return self._made(self.waiting.pop())

    def _made(self, body: Json) -> Json:
        self.now += dt.timedelta(milliseconds=1)
        return {**body, "issuedAt": self._now(), "order": copy.deepcopy(self.orders[body["about"]["id"]])}

    def _id(self, kind: str) -> str:
        return global_id(kind, next(self._ids))

    def _tick(self) -> None:
        self.now += dt.timedelta(seconds=self._random.uniform(0.1, 1.0) * self.longest_pause, milliseconds=10)

    def _now(self) -> str:
        return self.now.isoformat()
