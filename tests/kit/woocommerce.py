"""A scripted WooCommerce shop: its orders, its webhooks and its orders API, by its documentation and source.

    shop = FakeShop()
    order = shop.place()
    shop.complete(order)
    for headers, body in shop.deliveries(): ...
    with shop.serve() as address: ...

As in WooCommerce, a post has the order as it is when it is sent, each is sent once, and more than five
failures in a row disable the webhook. The shop's clock is its own: it begins six hours ago, and each change
takes it some seconds on. `truth` says what the order is, and which e-mails its customer must have.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import itertools
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from shop_connections.woocommerce.signature import sign
from tests.kit.http import serve

_ZONE = dt.timedelta(hours=1)  # of the shop, which dates without dates_are_gmt have
_AT_CHECKOUT = ("pending", "failed")
Post = tuple[dict[str, str], bytes]


class Truth(NamedTuple):
    """The order in our words. A status of None means that it is not an order yet."""

    status: str | None
    refunded: int
    emails: tuple[str, ...]  # in the order of their changes
    #: The e-mails that a later post still sends if the first one was lost. An order that was paid, completed
    #: or cancelled meanwhile gets none about its arrival or confirmation, and a delivered parcel none about
    #: its way. What was refunded before the payment was told is in its e-mail, or is all that is told.
    owed: tuple[str, ...]


class FakeShop:
    def __init__(self, *, seed: int = 0, currency: str = "EUR", decimals: int = 2) -> None:
        self.secret, self.key, self.key_secret = "s&cret of the webhook", "ck_fake", "cs_fake"
        self.address = ""
        self.currency, self.decimals = currency, decimals
        self.orders: dict[int, dict[str, Any]] = {}
        self.emails: dict[int, list[str]] = {}
        self.waiting: list[tuple[str, int]] = []  # topics and orders of posts to send
        self.is_active, self.failures = True, 0
        self.most_listed = 100  # orders of a page, whatever a request asks for
        self.api_answers: list[tuple[int, dict[str, str]]] = []  # statuses and headers before the next list
        self.requests: list[str] = []
        self._ids = itertools.count(1001)
        self._random = random.Random(seed)
        self.now = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(hours=6)

    # Actions of people in the shop

    def place(
        self,
        *,
        status: str = "processing",
        email: str = "ann@example.com",
        total: str = "49.90",
        method: str = "",
        **fields: Any,
    ) -> int:
        """Place an order. `status` is pending, on-hold or processing; cash on delivery is not paid then."""
        method = method or ("bacs" if status == "on-hold" else "stripe")
        id = next(self._ids)
        self._tick()
        unit = self._money(Decimal(total) / 2)
        self.orders[id] = {
            "id": id,
            "parent_id": 0,
            "number": str(id),
            "order_key": f"wc_order_{id}",
            "created_via": "checkout",
            "version": "10.4.0",
            "status": status,
            "currency": self.currency,
            "date_created_gmt": self._now(),
            "date_modified_gmt": self._now(),
            "date_paid_gmt": self._now() if status == "processing" and method != "cod" else None,
            "date_completed_gmt": None,
            "discount_total": self._money(0),
            "shipping_total": self._money(0),
            "total": self._money(Decimal(total)),
            "total_tax": self._money(0),
            "prices_include_tax": False,
            "customer_id": 0,
            "customer_ip_address": "203.0.113.7",
            "customer_note": "",
            "billing": {"first_name": "Ann", "last_name": "Lee", "company": "", "email": email, "phone": ""},
            "shipping": {"first_name": "Ann", "last_name": "Lee"},
            "payment_method": method,
            "transaction_id": "",
            "meta_data": [{"id": 1, "key": "is_vat_exempt", "value": "no"}],
            "line_items": [
                {
                    "id": id * 10,
                    "name": "Green tea",
                    "product_id": 93,
                    "variation_id": 0,
                    "quantity": 2,
                    "subtotal": self._money(Decimal(total)),
                    "total": self._money(Decimal(total)),
                    "total_tax": self._money(0),
                    "meta_data": [],
                    "sku": "TEA-1",
                    "price": float(unit),
                }
            ],
            "refunds": [],
            **fields,
        }
        events = {"on-hold": "placed", "processing": "confirmed" if method == "cod" else "paid"}
        self.emails[id] = [f"order.{events[status]}"] if status in events else []
        self.waiting.append(("order.created", id))
        return id

    def pay(self, id: int) -> None:
        self._tick()
        self.orders[id].update(status="processing", date_paid_gmt=self._now())
        self._saved(id, "order.paid")

    def complete(self, id: int) -> None:
        """Complete an order. One that was not paid is paid by it, and only the completion is told."""
        self._tick()
        order = self.orders[id]
        was_completed = order["date_completed_gmt"] is not None
        order.update(status="completed", date_completed_gmt=self._now())
        order["date_paid_gmt"] = order["date_paid_gmt"] or self._now()
        self._saved(id, *(() if was_completed else ("order.completed",)))

    def refund(self, id: int, amount: str, *, reason: str = "") -> int:
        """Refund an amount. The status changes only once nothing is left, as in WooCommerce."""
        self._tick()
        order, refund_id = self.orders[id], next(self._ids)
        order["refunds"].insert(
            0, {"id": refund_id, "reason": reason, "total": f"-{self._money(Decimal(amount))}"}
        )
        is_all = self._refunded(order) == Decimal(order["total"])
        if is_all:
            order["status"] = "refunded"
        self._saved(id, "order.refunded" if is_all else "order.part_refunded")
        return refund_id

    def delete_refund(self, id: int, refund_id: int) -> None:
        self._tick()
        order = self.orders[id]
        order["refunds"] = [refund for refund in order["refunds"] if refund["id"] != refund_id]
        if order["status"] == "refunded":
            order["status"] = "completed" if order["date_completed_gmt"] else "processing"
        self._saved(id)

    def cancel(self, id: int) -> None:
        self._tick()
        order = self.orders[id]
        told = order["status"] not in ("cancelled", *_AT_CHECKOUT) or self.emails[id]
        order["status"] = "cancelled"
        self._saved(id, *(["order.cancelled"] if told else []))

    def ship(self, id: int, number: str, *, carrier: str = "dhl", link: str = "") -> None:
        """Add a parcel, as Shipment Tracking and Advanced Shipment Tracking do."""
        self._tick()
        seconds = str(int(self.now.timestamp()))
        entry = {
            "tracking_provider": carrier,
            "custom_tracking_provider": "",
            "custom_tracking_link": link,
            "tracking_number": number,
            "date_shipped": seconds,
            "tracking_id": f"{self._random.getrandbits(128):032x}",
        }
        self._meta(id, "_wc_shipment_tracking_items").append(entry)
        self._saved(id, "order.shipped")

    def deliver_parcels(self, id: int) -> None:
        self._tick()
        entries, statuses = (
            self._meta(id, "_wc_shipment_tracking_items"),
            self._meta(id, "ts_shipment_status"),
        )
        told = ["order.delivered"] * (len(entries) - len(statuses))
        statuses[:] = [{"status": "delivered"} for _ in entries]
        self._saved(id, *told)

    def edit(self, id: int, **fields: Any) -> None:
        """Save an order with other members, or as it is."""
        self._tick()
        self.orders[id].update(fields)
        self._saved(id)

    def trash(self, id: int) -> None:
        self._tick()
        self.orders[id].update(status="trash", _before=self.orders[id]["status"])
        self.orders[id]["date_modified_gmt"] = self._now()
        self.waiting.append(("order.deleted", id))

    def restore(self, id: int) -> None:
        self._tick()
        self.orders[id]["status"] = self.orders[id].pop("_before")
        self.orders[id]["date_modified_gmt"] = self._now()
        self.waiting += [("order.restored", id), ("order.updated", id)]

    def place_any(self) -> int:
        """Place an order in one of the ways in which customers pay."""
        method = self._random.choice(["stripe", "bacs", "cod"])
        at_once = self._random.choice(["pending", "processing"])
        return self.place(
            status={"stripe": at_once, "bacs": "on-hold"}.get(method, "processing"), method=method
        )

    def live(self, id: int) -> Iterator[str]:
        """Change an order in some of the ways in which people do. Yield the name of each change."""
        order = self.orders[id]
        for number in range(self._random.randint(1, 8)):
            left = self._minor(Decimal(order["total"]) - self._refunded(order))
            can = ["edit"]
            if order["status"] in ("pending", "on-hold"):
                can += ["pay", "pay", "cancel"]
            if order["status"] == "processing":
                can += ["ship", "complete", "complete", "cancel"]
            if order["status"] == "completed":
                can += ["ship", "deliver_parcels"]
            if order["status"] in ("processing", "completed") and order["date_paid_gmt"] and left > 100:
                can += ["refund_a_part", "refund_the_rest"]
            match change := self._random.choice(can):
                case "ship":
                    self.ship(id, f"P{id}-{number}")
                case "refund_a_part":
                    self.refund(id, "1.00")
                case "refund_the_rest":
                    self.refund(id, self._money(Decimal(left) / 100))
                case _:
                    getattr(self, change)(id)
            yield change

    # Posts to orderpost

    def deliveries(self) -> list[Post]:
        """Return the posts that wait, each with its order as it is now, and forget them."""
        posts = [self.post(topic, id) for topic, id in self.waiting] if self.is_active else []
        self.waiting.clear()
        return posts

    def post(self, topic: str, id: int) -> Post:
        """Return a post of an order as it is now."""
        document = {"id": id} if topic == "order.deleted" else self.document(id)
        body = json.dumps(document, separators=(",", ":")).replace("/", "\\/").encode()  # as wp_json_encode
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "WooCommerce/10.4.0 Hookshot (WordPress/6.9)",
            "X-WC-Webhook-Source": "https://shop.example/",
            "X-WC-Webhook-Topic": topic,
            "X-WC-Webhook-Resource": "order",
            "X-WC-Webhook-Event": topic.partition(".")[2],
            "X-WC-Webhook-Signature": sign(body=body, secret=self.secret),
            "X-WC-Webhook-ID": "7",
            "X-WC-Webhook-Delivery-ID": f"{self._random.getrandbits(128):032x}",
        }
        return headers, body

    def ping(self) -> Post:
        """Return the unsigned post by which WooCommerce tries the address of a new webhook."""
        return {"Content-Type": "application/x-www-form-urlencoded"}, b"webhook_id=7"

    def deliver(self, send: Callable[[dict[str, str], bytes], int]) -> None:
        """Send the posts that wait, each once. `send` returns the status of the answer."""
        for headers, body in self.deliveries():
            if not self.is_active:
                return
            if 200 <= send(headers, body) < 303:
                self.failures = 0
            elif self.failures > 5:
                self.is_active = False
            else:
                self.failures += 1

    def document(self, id: int) -> dict[str, Any]:
        """Return an order as the API shows it."""
        order = {name: value for name, value in self.orders[id].items() if name != "_before"}
        dates = [name for name in order if name.startswith("date_")]
        local = {name.removesuffix("_gmt"): self._local(order[name]) for name in dates}
        return {**order, **local}

    # The truth about its orders

    def truth(self, id: int) -> Truth:
        order = self.orders[id]
        status, refunded = order.get("_before", order["status"]), self._minor(self._refunded(order))
        emails = tuple(self.emails[id])
        if status in _AT_CHECKOUT or (status == "cancelled" and not emails):
            return Truth("pending" if emails else None, 0, emails, emails)
        no_news = {"order.delivered", *(("order.placed", "order.confirmed") if len(emails) > 1 else ())}
        if status == "cancelled" and not order["date_paid_gmt"]:
            no_news.add("order.shipped")
        if "order.paid" in emails:
            no_news.add("order.part_refunded")
        if status == "refunded":
            no_news |= {"order.paid", "order.part_refunded"}
        owed = tuple(email for email in emails if email not in no_news)
        ours = {"on-hold": "pending", "processing": "paid" if order["date_paid_gmt"] else "confirmed"}
        ours_now = ours.get(status, status)
        if 0 < refunded < self._minor(Decimal(order["total"])) and ours_now not in ("cancelled", "refunded"):
            ours_now = "part_refunded"
        return Truth(ours_now, refunded, emails, owed)

    # The API

    @contextlib.contextmanager
    def serve(self, **options: Any) -> Iterator[str]:
        """Serve the orders API, and yield the shop's address."""
        with serve(self.answer, **options) as self.address:
            yield self.address

    def answer(self, path: str, headers: Any, _: Any) -> tuple[int, Any, dict[str, str]]:
        self.requests.append(path)
        parts = urlsplit(path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if self.api_answers:
            status, more = self.api_answers.pop(0)
            return status, {"code": "busy", "message": "Later", "data": {"status": status}}, more
        authorization = headers.get("Authorization", "")
        if authorization != f"Basic {base64.b64encode(f'{self.key}:{self.key_secret}'.encode()).decode()}":
            code = "authentication_error" if authorization else "cannot_view"
            refusal = {"code": f"woocommerce_rest_{code}", "message": "Sorry", "data": {"status": 401}}
            return 401, refusal, {}
        if parts.path != "/wp-json/wc/v3/orders":
            return 404, {"code": "rest_no_route", "message": "No route", "data": {"status": 404}}, {}
        zone = dt.timedelta() if query.get("dates_are_gmt") in ("true", "1") else _ZONE
        after = dt.datetime.fromisoformat(query.get("modified_after", "1970-01-01T00:00:00")) - zone
        before = dt.datetime.fromisoformat(query.get("modified_before", "2999-01-01T00:00:00")) - zone
        chosen = [
            self.document(id)
            for id, order in sorted(self.orders.items(), reverse=query.get("order", "desc") == "desc")
            if order["status"] != "trash"  # "any" leaves it out
            and after < dt.datetime.fromisoformat(order["date_modified_gmt"]) < before
        ]
        size, page = min(int(query.get("per_page", "10")), self.most_listed), int(query.get("page", "1"))
        pages = -(-len(chosen) // size)
        more = {"X-WP-Total": str(len(chosen)), "X-WP-TotalPages": str(pages)}
        if page < pages:
            more["Link"] = f'<https://shop.example{parts.path}?page={page + 1}>; rel="next"'
        fields = query["_fields"].split(",") if "_fields" in query else None
        listed = chosen[(page - 1) * size : page * size]
        if fields is not None:
            listed = [{name: order[name] for name in fields if name in order} for order in listed]
        return 200, listed, more

    def _tick(self) -> None:
        self.now += dt.timedelta(seconds=self._random.randint(5, 60))

    def _now(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%S")

    def _local(self, date: str | None) -> str | None:
        return date and (dt.datetime.fromisoformat(date) + _ZONE).isoformat()

    def _saved(self, id: int, *emails: str) -> None:
        self.orders[id]["date_modified_gmt"] = self._now()
        self.emails[id] += emails
        self.waiting.append(("order.updated", id))

    def _meta(self, id: int, key: str) -> list[Any]:
        entries: list[dict[str, Any]] = self.orders[id]["meta_data"]
        entry = next((entry for entry in entries if entry["key"] == key), None)
        if entry is None:
            entry = {"id": len(entries) + 1, "key": key, "value": []}
            entries.append(entry)
        value: list[Any] = entry["value"]
        return value

    def _refunded(self, order: dict[str, Any]) -> Decimal:
        return -sum((Decimal(refund["total"]) for refund in order["refunds"]), Decimal(0))

    def _money(self, amount: Decimal | int) -> str:
        return f"{Decimal(amount):.{self.decimals}f}"

    def _minor(self, amount: Decimal) -> int:
        digits = {"JPY": 0, "KWD": 3}.get(self.currency, 2)
        return int(amount.scaleb(digits))
