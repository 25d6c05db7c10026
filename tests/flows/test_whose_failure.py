"""Recipients that a provider never takes, brown-outs and long outages, with real processes: drills."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest

from tests.kit.customers import Payments
from tests.kit.shop import Shop

pytestmark = [pytest.mark.flow, pytest.mark.drill]

POISON = "poison"
#: What the issue of a good mail may take behind poisonous ones, and what a loaded machine may add to it.
PROMISED, GRACE = 10.0, 5.0
RETRIES = 3


def buy(shop: Shop, email: str) -> str:
    """Place and pay an order. Its e-mail's id."""
    order = shop.place(email)
    shop.pay(order)
    ((id,),) = shop.query(f"SELECT id::text FROM email_notifications WHERE order_id = '{order}'")
    return str(id)


def poison(shop: Shop) -> None:
    shop.sandbox.fail(kind="status", status=503, to=POISON, message="no such luck")


def letters(shop: Shop) -> dict[str, tuple[str, int, list[dict[str, Any]]]]:
    """Each poisonous mail's state, retries and errors, by its id."""
    rows = shop.rows("id::text, recipient_email, status, retry_count, errors::text")
    return {
        id: (status, retries, json.loads(errors))
        for id, email, status, retries, errors in rows
        if POISON in email
    }


def requests_for(shop: Shop, id: str) -> int:
    asked, _ = shop.sandbox.mailbox.counts().get(id, (0, 0))
    return asked


@pytest.mark.parametrize(
    ("poisonous", "seconds", "probes", "backoff"),
    [
        (8, 2.0, 2, ("1", "10")),
        pytest.param(8, 15.0, 30, ("30", "3600"), id="defaults"),
        (16, 15.0, 30, ("1", "10")),
    ],
)
def test_good_mails_pass_poisonous_ones_in_a_quiet_shop_and_these_become_dead_letters(
    poisonous, seconds, probes, backoff
):
    base, cap = backoff
    with Shop(
        MAX_RETRIES=str(RETRIES),
        RETRY_BACKOFF_BASE=base,
        RETRY_BACKOFF_CAP=cap,
        BREAKER_OPEN_SECONDS=str(probes),
    ) as shop:
        poison(shop)
        shop.start("web", "worker", "beat")
        bad = [buy(shop, f"{POISON}{n}@example.com") for n in range(poisonous)]
        shop.until(lambda: all(requests_for(shop, id) for id in bad[:5]), "the breaker had reason to open")
        waits: list[float] = []

        def all_dead() -> bool:
            return {status for status, _, _ in letters(shop).values()} == {"dead_lettered"}

        # An open breaker tries one waiting mail in `probes` seconds, and each failure may open it.
        deadline = time.monotonic() + 600 + 2 * probes * poisonous * (1 + RETRIES)
        while not all_dead() or len(waits) < 8:
            assert time.monotonic() < deadline, (letters(shop), waits)
            began = time.monotonic()
            good = buy(shop, f"good{len(waits)}@example.com")
            shop.until(lambda id=good: shop.accepted().get(id), "the good mail is accepted")
            waits.append(time.monotonic() - began)
            time.sleep(max(0.0, seconds - waits[-1]))
        assert max(waits) < PROMISED + GRACE, waits
        for _, retries, errors in letters(shop).values():
            assert retries == len(errors) > RETRIES
            assert {(error["code"], "no such luck" in error["text"]) for error in errors} == {("503", True)}
        assert shop.statuses() == Counter(sent=len(waits), dead_lettered=poisonous)
        assert shop.doubled() == []


def test_one_poisonous_mail_among_others_is_a_dead_letter_after_its_retries():
    with Shop(MAX_RETRIES=str(RETRIES), RETRY_BACKOFF_BASE="1", EMAIL_RATE_LIMIT="0") as shop:
        poison(shop)
        shop.start("web", "worker", "beat")
        with Payments(shop, rate=3, most=150) as payments:
            shop.until(lambda: payments.paid >= 5, "others buy")
            bad = buy(shop, f"{POISON}@example.com")
            shop.until(lambda: letters(shop)[bad][0] == "dead_lettered", "it is a dead letter")
        assert 1 + RETRIES <= requests_for(shop, bad) <= 8
        shop.until(
            lambda: shop.statuses() == Counter(sent=payments.paid, dead_lettered=1), "the others are sent"
        )
        assert shop.doubled() == []


@pytest.mark.parametrize(
    ("share", "seconds"),
    [
        (0.35, 10),
        (0.5, 60),
    ],
)
def test_a_brown_out_dead_letters_nothing(share, seconds):
    with Shop(MAX_RETRIES=str(RETRIES), RETRY_BACKOFF_BASE="1", RETRY_BACKOFF_CAP="8") as shop:
        shop.sandbox.fail(kind="status", status=500, probability=share)
        shop.start("web", "worker", "beat")
        with Payments(shop, rate=20, most=20 * seconds) as payments:
            shop.until(lambda: payments.paid == 20 * seconds, "all is paid", seconds=10 * seconds)
        assert shop.statuses()["dead_lettered"] == 0
        shop.sandbox.heal()
        shop.until(lambda: shop.all_sent(payments.paid), "all is sent")
        assert shop.doubled() == []


@pytest.mark.parametrize(
    ("seconds", "probes"),
    [(20, 4), (240, 30)],
)
def test_an_outage_costs_no_mail_few_requests_and_ends_within_35_seconds_of_recovery(seconds, probes):
    """Compressed fifteenfold: one mail a minute through an hour is here one every four seconds.

    `probes`: BREAKER_OPEN_SECONDS, 30 by default.
    """
    with Shop(
        MAX_RETRIES=str(RETRIES),
        RETRY_BACKOFF_BASE="1",
        RETRY_BACKOFF_CAP="30",
        BREAKER_OPEN_SECONDS=str(probes),
    ) as shop:
        shop.sandbox.fail(kind="status", status=503)
        shop.start("web", "worker", "beat")
        for n in range(5):  # so many it takes to know
            buy(shop, f"first{n}@example.com")
        shop.until(lambda: "circuit opened" in shop.log("worker"), "the breaker opened")
        began, asked = time.monotonic(), shop.sandbox.stats()["requests"]
        bought = 5
        while time.monotonic() - began < seconds:
            buy(shop, f"u{bought}@example.com")
            bought += 1
            time.sleep(4)
        lasted = time.monotonic() - began
        # One mail that was never tried every five seconds, one that was every 30: 14 a minute.
        allowed = (1 / min(5, probes) + 1 / probes) * lasted
        assert shop.sandbox.stats()["requests"] - asked <= allowed + 2
        assert shop.statuses()["dead_lettered"] == 0
        shop.sandbox.heal()
        recovered = time.monotonic()
        shop.until(lambda: any(shop.accepted().values()), "the provider is asked again")
        assert time.monotonic() - recovered < probes + 5 + GRACE
        shop.until(lambda: shop.all_sent(bought), "all is sent")
        assert shop.doubled() == []
