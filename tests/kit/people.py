"""Users of the admin, and customers with rows everywhere, of whom an erasure must leave no trace."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Sequence
from typing import Any

import zstandard
from allauth.account.models import EmailAddress
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from runtime.database.ids import parse_uuid
from runtime.models import UserBinding
from tests.kit.months import Steps, age_records, fill, make_partition, roll, states
from tests.kit.orders import complete_order, pay_order, place_order
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    IdempotencyKey,
    InboundDeadLetter,
    Order,
    erasure,
    hashes_in,
    id_floor,
    key_hash,
    new_id,
    person_export,
    send_copy,
)

PAYMENT = "payment.payment.succeeded.v1"
ADDRESS = "Anna.Example+shop@example.com"
ANN, BOB = "ann@example.com", "bob@example.com"


def staff_client(*permissions: str, name: str = "staff", shops: Sequence[str] = ("*",)) -> Client:
    """Log in a staff user with only these permissions, bound to these shops."""
    user = make_user(name, shops=shops)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return client_of(user)


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def confirm_address(user: User, address: str) -> None:
    """Let an address count for a user's test e-mails, without a link."""
    EmailAddress.objects.create(user=user, email=address.lower(), verified=True)
    user.email = address
    user.save(update_fields=["email"])


def make_user(name: str, *, group: str = "", shops: Sequence[str] = ("*",)) -> User:
    """Make a member of the staff who may see these shops, and of a group."""
    user = User.objects.create_user(name, password="x", is_staff=True)
    UserBinding.objects.create(user=user, sources=list(shops))
    if group:
        user.groups.add(Group.objects.get(name=group))
    return user


def bought(email: str = ADDRESS, *, done: bool = True) -> Order:
    """Make a paid order with its e-mails, events and a stored answer."""
    order = place_order(user_id=uuid.uuid4(), email=email, name="Anna Example", total_amount=500)
    pay_order(order_id=order.id)
    complete_order(order_id=order.id, tracking_url=f"https://track.example/{email}")
    if done:
        EmailNotification.objects.filter(order_id=order.id).update(
            status="sent",
            sent_at=Now(),
            last_error=f"550 <{email}> unknown",
            errors=[{"at": "2026-01-01", "code": "550", "text": f"<{email.upper()}> is unknown"}],
        )
    keep_answer(
        key_hash(f"{email}-{order.id}"),
        order_id=order.id,
        body={"id": str(order.id), "email": email, "name": "Anna Example", "items": []},
    )
    return order


def keep_answer(key: str, *, body: dict[str, Any], order_id: uuid.UUID | None = None) -> None:
    """Store an answer about an order, as the API does."""
    text = json.dumps(body, ensure_ascii=False)
    IdempotencyKey.objects.create(
        scope="token:1",
        key=key,
        answer_status=200,
        answer_body=text,
        order_id=order_id,
        address_hashes=hashes_in(text),
    )


def keep_letter(text: str, *, key: str = "", error: str = "", **columns: Any) -> InboundDeadLetter:
    """Store a dead letter, as a consumer does that can read which order it is about."""
    order_id = parse_uuid(json.loads(text).get("data", {}).get("orderId", ""))
    columns = {"topic": PAYMENT, "event_id": new_id(), "consumer": "c", "order_id": order_id} | columns
    return InboundDeadLetter.objects.create(
        key=key, envelope=text, error=error, address_hashes=hashes_in(text, key, error), **columns
    )


def grep(text: str) -> list[str]:
    """Every table of the database that has `text` somewhere, in any case."""
    tables = []
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in cursor.fetchall():
            cursor.execute(
                f'SELECT count(*) FROM "{table}" AS t WHERE position(%s IN lower(t::text)) > 0',
                [text.lower()],
            )
            if cursor.fetchone()[0]:
                tables.append(table)
    return tables


def grep_cold_files(tmp_path, text: str) -> list[str]:
    """Every file of the archive that has `text` in it, unpacked."""
    names = []
    for path in (tmp_path / "archive").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".zst":
                data = zstandard.ZstdDecompressor().stream_reader(data).read()
            if text.lower().encode() in data.lower():
                names.append(path.name)
    return names


def old_mails(order: Order, *, back: int) -> str:
    """E-mails of that order in an old month, whose partition's name is returned."""
    old = make_partition(EmailNotification, back=back)
    fill(old, 3, order_id=order.id, recipient_email=order.email, to_name=order.name)
    fill(old, 4, recipient_email=BOB, subject="Bob's", to_name="Bob")
    return old.name


def everywhere() -> Order:
    """Give a person rows in live tables, in a detached table and in an archive alone."""
    order = bought()
    Order.objects.filter(id=order.id).update(created_at=Now())
    old_mails(order, back=5)
    roll()
    age_records()
    roll()
    old_mails(order, back=4)
    roll()
    assert sorted(set(states().values())) == ["attached", "detached"]
    return order


def dead_event(text: str, when: dt.datetime | None = None) -> None:
    """Write what a consumer keeps and publishes of an event that it cannot process."""
    when = when or dt.datetime.now(dt.UTC)
    event_id = keep_letter(text, key="k", error=f"no: {text}").event_id
    DomainEvent.objects.create(
        id=uuid.UUID(int=id_floor(when).int | (new_id().int & ((1 << 76) - 1))),
        created_at=when,
        aggregate_type="event",
        aggregate_id=event_id,
        event_type=f"{PAYMENT}.dlt",
        sequence=1,
        payload={"originalEvent": json.loads(text), "errorMessage": f"cannot: {text}"},
        shard=1,
    )


def send_all() -> None:
    EmailNotification.objects.filter(status="pending").update(status="sent", sent_at=Now())


def mails(address: str) -> list[EmailNotification]:
    return list(EmailNotification.objects.filter(recipient_email__iexact=address).order_by("id"))


def corrected() -> Order:
    """Place Ann's order with another person's address, pay it, correct the address, and complete it."""
    order = place_order(user_id=uuid.uuid4(), email=BOB, name="Ann Example", total_amount=500)
    pay_order(order_id=order.id)
    send_all()
    send_copy(notification_id=mails(BOB)[0].id, recipient_email=ANN, update_order=True)
    complete_order(order_id=order.id, tracking_url=f"https://track.example/{ANN}")
    send_all()
    order.refresh_from_db()
    assert order.email == ANN and len(mails(BOB)) == 1 and len(mails(ANN)) == 2
    return order


def export(email: str) -> dict[str, Any]:
    return person_export.export_person(email=email, report=Steps())


def erase(email: str, *, force: bool = False, cold_files_now: bool = False) -> erasure.ErasureResult:
    done = erasure.erase_person(email=email, report=Steps(), force=force)
    if cold_files_now:
        erasure.rewrite_cold_files(report=Steps())
    return done
