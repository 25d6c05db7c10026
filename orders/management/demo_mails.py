"""The e-mails of a demo's history: each in the state that it would have now."""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import random
import uuid
from collections.abc import Sequence
from typing import Any

from django.conf import settings

from notifications.rendering import RenderedEmail, render_email
from orders.emails import email_context
from orders.models import Order
from outbox.delivery.fingerprint import fingerprint_of

MARK = "demo-history"
#: Why e-mails become dead letters: by weight, the code and the provider's text.
CAUSES = (
    (6, "400", "Does not contain a valid address: {address}"),
    (3, "400", "The from address does not match a verified Sender Identity"),
    (2, "413", "The message of {size} bytes exceeds the limit of 31457280"),
    (1, "550", "5.7.1 Message rejected by policy, id {token}"),
)
#: Mail n gets the fate at n times this, modulo 1: any few hundred mails in a row have every share evenly.
GOLDEN = (math.sqrt(5) - 1) / 2
#: Hours ago at which an outage of the first provider began, and how long it lasted.
OUTAGES = ((7.0, 0.7), (52.0, 1.6), (211.0, 2.4))
Row = dict[str, Any]


def id_at(when: dt.datetime, chance: random.Random) -> uuid.UUID:
    """Return a UUIDv7 of a time in the past."""
    milliseconds = round(when.timestamp() * 1000)
    return uuid.UUID(
        int=milliseconds << 80
        | 0x7 << 76
        | chance.getrandbits(12) << 64
        | 0b10 << 62
        | chance.getrandbits(62)
    )


def outage_ends(when: dt.datetime, now: dt.datetime) -> dt.datetime | None:
    """Return the end of the outage that `when` falls into, or None."""
    for began, lasted in OUTAGES:
        start = now - dt.timedelta(hours=began)
        if start <= when < start + dt.timedelta(hours=lasted):
            return start + dt.timedelta(hours=lasted)
    return None


def make_mail(
    name: str,
    order: Order,
    at: dt.datetime,
    details: dict[str, Any],
    *,
    number: int,
    now: dt.datetime,
    chance: random.Random,
) -> Row:
    """Return e-mail `number` of the history in the state that it would have now."""
    text = _rendered(name, order, at, details)
    id = id_at(at, chance)
    row: Row = {
        "id": id,
        "order_id": order.id,
        "event_type": name,
        "recipient_email": order.email,
        "to_name": order.name,
        "locale": order.locale,
        "subject": text.subject.replace("DEMO-REFERENCE", order.reference),
        "body": text.body_html.replace("DEMO-REFERENCE", order.reference).replace("DEMO-NAME", order.name),
        "body_text": text.body_text.replace("DEMO-REFERENCE", order.reference).replace(
            "DEMO-NAME", order.name
        ),
        "idempotency_key": f"{order.id}:{name}:{order.version}",
        "correlation_id": MARK,
        "max_retries": settings.MAX_RETRIES,
        "created_at": at,
        "next_attempt_at": at,
        "provider": settings.EMAIL_PROVIDERS[0],
    }
    return row | _fate(row, at, luck=number * GOLDEN % 1, now=now, chance=chance)


@functools.cache
def _render(name: str, locale: str, day: dt.date, state: str) -> RenderedEmail:
    fields = json.loads(state)
    at = dt.datetime.combine(day, dt.time(12), dt.UTC)
    change = fields.pop("change")
    order = Order(
        name="DEMO-NAME", reference="DEMO-REFERENCE", locale=locale, created_at=at, updated_at=at, **fields
    )
    return render_email(event_type=name, locale=locale, context=email_context(order=order, change=change))


def _rendered(name: str, order: Order, at: dt.datetime, details: dict[str, Any]) -> RenderedEmail:
    """Render each e-mail once for a day, a language and a basket: the rest of them differ in two words."""
    fields = ("status", "total_amount", "refunded_amount", "currency", "items")
    change = {"amount": details.get("amount"), "was_paid": details.get("wasPaid", False)}
    state: dict[str, Any] = {field: getattr(order, field) for field in fields} | {"change": change}
    return _render(name, order.locale, at.date(), json.dumps(state, sort_keys=True))


def _fate(row: Row, at: dt.datetime, *, luck: float, now: dt.datetime, chance: random.Random) -> Row:
    """Return the columns of an e-mail's end, or of its present state, by its luck from 0 to 1."""
    age = now - at
    if luck < 0.004:
        return _refused(row, at, status="dead_lettered" if luck < 0.0032 else "discarded", chance=chance)
    if luck < 0.015 and dt.timedelta(hours=2) < age < dt.timedelta(days=1):
        return _failing(row, at, now=now)
    if luck < 0.009:
        return {"status": "suppressed", "last_error": "the address bounced", "updated_at": at, "provider": ""}
    sent = at + dt.timedelta(seconds=math.exp(chance.gauss(-2.6, 0.6)))
    errors: list[Row] = []
    if end := outage_ends(at, now):
        errors = [_error(row, at, "503", "Service Unavailable", "transient")]
        sent = min(end + dt.timedelta(seconds=60 * chance.random()), now)
    elif luck > 0.99:
        errors = [_error(row, at, "500", "Internal Server Error", "transient")]
        sent += dt.timedelta(seconds=30 + 60 * chance.random())
    end_row: Row = {
        "status": "sent",
        "sent_at": sent,
        "updated_at": sent,
        "errors": json.dumps(errors),
        "provider_message_id": f"demo.{row['id'].hex[-12:]}",
    }
    arrived = sent + dt.timedelta(seconds=math.exp(chance.gauss(1.2, 0.9)))
    if arrived < now:
        end_row["bounced_at" if chance.random() < 0.012 else "delivered_at"] = arrived
    return end_row


def _error(row: Row, at: dt.datetime, code: str, text: str, outcome: str) -> Row:
    return {"at": at.isoformat(), "provider": row["provider"], "outcome": outcome, "code": code, "text": text}


def _refused(row: Row, at: dt.datetime, *, status: str, chance: random.Random) -> Row:
    """Return the columns of a dead letter, or of one that somebody discarded."""
    (cause,) = chance.choices(CAUSES, [weight for weight, _, _ in CAUSES])
    text = cause[2].format(
        address=row["recipient_email"],
        size=chance.randrange(32_000_000, 60_000_000),
        token=row["id"].hex[:12],
    )
    error = f"{cause[1]}: {text}"
    return {
        "status": status,
        "last_error": error,
        "errors": json.dumps([_error(row, at, cause[1], error, "permanent")]),
        "error_fingerprint": fingerprint_of(provider=row["provider"], error=error),
        "updated_at": at,
    }


def _failing(row: Row, at: dt.datetime, *, now: dt.datetime) -> Row:
    """Return an e-mail that fails and is tried again within the next hours, after the demo was looked at."""
    error = "500: Internal Server Error"
    tries: Sequence[Row] = [
        _error(row, at + dt.timedelta(minutes=n * 20), "500", error, "transient") for n in range(3)
    ]
    return {
        "status": "failed",
        "last_error": error,
        "errors": json.dumps(tries),
        "retry_count": 0,
        "next_attempt_at": now + dt.timedelta(hours=3),
        "updated_at": at + dt.timedelta(minutes=40),
    }
