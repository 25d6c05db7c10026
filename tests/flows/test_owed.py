"""Orders in which something is missing: a payment that failed or never came, stock that nobody answered.

Each is finished or counted where people look. And an e-mail that a template spoiled reaches its customer.
Time passes by moving the rows into the past, with the ids of orders, which contain their time.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orders.models import STUCK
from tests.kit.events import FAILED, INSUFFICIENT, PAID, REFUNDED, RESERVED, envelope
from tests.kit.shop import PATIENT, Shop
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.flow
NEW_ID = "overlay(uuidv7(-interval '25 hours')::text placing right(id::text, 23) from 14)::uuid"
PASS_A_DAY = f"""
    WITH moved AS (
        UPDATE orders SET id = {NEW_ID}, created_at = created_at - interval '25 hours',
            updated_at = updated_at - interval '25 hours', paid_at = paid_at - interval '25 hours'
        WHERE status IN ('pending', 'paid') RETURNING id
    )
    SELECT count(*) FROM moved
"""
RENDER_AGAIN = """
from django.contrib.auth.models import User
from orders.bulk_actions import RENDER_AGAIN
from runtime.audit import Actor
from runtime.jobs.start import start_job
wanted = {"status": "dead_lettered", "event_type": "order.paid"}
start_job(action=RENDER_AGAIN.name, filter=wanted, user=User.objects.create_superuser("ann"), by=Actor("ann"))
"""


def event(topic: str, order: str, **data: Any) -> dict[str, Any]:
    return envelope(topic, {"orderId": order} | data)


def orders_by_status(shop: Shop) -> dict[str, int]:
    return dict(shop.query("SELECT status, count(*) FROM orders GROUP BY 1"))


def stuck(shop: Shop) -> dict[str, int]:
    stuck = json.loads(shop.manage("status", "--json"))["stuck_orders"]
    return {state: group["orders"] for state, group in stuck.items()}


def run(*, orders: int) -> None:
    """Let one payment in ten fail or never come, and one stock answer in ten never come."""
    chance = random.Random(37)
    wanted = "order.paid,order.cancelled,order.payment_failed"
    with Shop(NOTIFY_ON=wanted, **PATIENT) as shop:
        shop.start("web", "worker", "beat")
        own = [shop.place(f"ann-{number}@example.com") for number in range(orders)]
        failed, never_paid, unanswered, rare = own[0::20], own[10::20], own[1::10], own[2::10]
        paid = [order for order in own if order not in {*failed, *never_paid}]
        reserved = [order for order in paid if order not in {*unanswered, *rare}]
        events = [event(FAILED, order, reasonCode="card_declined") for order in failed]
        events += [event(PAID, order) for order in paid]
        events += [event(RESERVED, order) for order in reserved]
        chance.shuffle(events)
        for start in range(0, len(events), 50):
            shop.send_events(events[start : start + 50])
        shop.send_events([event(INSUFFICIENT, order) for order in rare])
        shop.send_events([event(REFUNDED, order) for order in rare])
        assert stuck(shop) == dict.fromkeys(STUCK, 0)
        for order in reserved:
            assert shop.call("POST", f"/orders/{order}/complete").status_code == 200
        shop.query(PASS_A_DAY)
        unpaid = len(failed) + len(never_paid)
        assert orders_by_status(shop)["pending"] == unpaid
        for (id,) in shop.query("SELECT id FROM orders WHERE status = 'pending'"):
            assert shop.call("POST", f"/orders/{id}/cancel").status_code == 200
        ended = {"completed": len(reserved), "cancelled": len(rare) + unpaid, "paid": len(unanswered)}
        shop.until(lambda: orders_by_status(shop) == ended, f"every order is one of {ended}")
        assert stuck(shop) == dict.fromkeys(STUCK, 0) | {"unconfirmed": len(unanswered)}
        assert f'orderpost_stuck_orders{{state="unconfirmed"}} {len(unanswered)}.0' in metrics(shop)
        mails = Counter(name for (name,) in shop.rows("event_type"))
        owed = {"order.paid": len(paid), "order.payment_failed": len(failed)}
        assert mails == owed | {"order.cancelled": len(rare) + unpaid}
        shop.until(lambda: shop.all_sent_or_overtaken(mails.total()), "each is sent or old news")
        assert shop.doubled() == []


def metrics(shop: Shop) -> str:
    answer = shop.session.get(f"http://127.0.0.1:{shop.port}/metrics", timeout=PATIENCE)
    assert answer.status_code == 200
    return answer.text


def test_an_order_whose_payment_or_stock_is_missing_is_cancelled_or_counted():
    run(orders=40)


@pytest.mark.drill
def test_each_of_500_orders_is_finished_or_counted():
    run(orders=500)


def test_an_email_that_a_template_spoiled_reaches_the_customer_once(polling_shop: Shop, tmp_path: Path):
    broken = tmp_path / "order.paid"
    broken.mkdir()
    (broken / "subject.txt").write_text("Paid: {{ reference }} reference }}")
    shop = polling_shop
    shop.kill("worker")
    shop.sandbox.fail(kind="status", status=400, message="the subject is refused", times=3)
    shop.start("worker", EMAIL_TEMPLATES_DIR=str(tmp_path), **PATIENT)
    for _ in range(3):
        shop.pay(shop.place())
    shop.until(lambda: shop.rows() == [("dead_lettered",)] * 3, "the provider has refused all")
    shop.kill("worker")
    shop.start("worker", **PATIENT)  # without EMAIL_TEMPLATES_DIR, like the commands: the template is correct
    shop.manage("shell", "-c", RENDER_AGAIN)
    sent = "SELECT count(*) FROM email_notifications WHERE status = 'sent' AND resend_of IS NOT NULL"
    shop.until(lambda: shop.query(sent) == [(3,)], "each has a copy that is sent")
    subjects = [mail.payload["subject"] for mail in shop.sandbox.mails]
    assert len(subjects) == 3
    assert all(subject.startswith("Payment received for your order ") for subject in subjects)
    states = Counter(status for (status,) in shop.rows())
    assert states == {"sent": 3, "discarded": 3}
