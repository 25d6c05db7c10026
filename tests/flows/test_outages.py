"""The providers' bad days, with real processes: nothing lost, nothing doubled, nothing dead-lettered.

Time is compressed by settings: an outage of ten minutes at 20 changes a second is here one of a few seconds
with a breaker that looks again after one, not thirty.
"""

from __future__ import annotations

import datetime as dt
import time

import pytest

from local.sandbox import WebhookSettings
from tests.kit.customers import Payments
from tests.kit.shop import KEYS, PATIENT, Shop

pytestmark = pytest.mark.flow
BREAKER = {"BREAKER_OPEN_SECONDS": "1"}
HOLD_SECONDS = 10
HOLD = {"AMBIGUOUS_HOLD_SECONDS": str(HOLD_SECONDS)}


@pytest.mark.drill
def test_an_outage_of_503_dead_letters_nothing_asks_a_handful_of_times_and_fresh_mail_overtakes_the_backlog():
    with Shop(EMAIL_RATE_LIMIT="100", **BREAKER) as shop:
        shop.start("web", "worker", "beat")
        shop.sandbox.fail(kind="status", status=503)
        with Payments(shop, rate=20, most=200) as payments:
            shop.until(lambda: shop.sandbox.stats()["requests"] >= 5, "the provider was asked")
            shop.until(lambda: "circuit opened" in shop.log("worker"), "the breaker opened")
            after_opening = shop.sandbox.stats()["requests"]
            shop.insert_mails(400)
            shop.until(lambda: payments.paid == 200, "all is paid")
        assert shop.sandbox.stats()["requests"] - after_opening < 100
        assert shop.statuses()["dead_lettered"] == 0
        shop.sandbox.heal()
        shop.until(lambda: shop.statuses()["sent"] > 0, "the provider is used again")
        fresh = shop.place("fresh@example.com")
        shop.pay(fresh)

        def fresh_is_sent() -> bool:
            return ("sent", fresh) in shop.rows("status, order_id::text")

        shop.until(fresh_is_sent, "the fresh mail is out")
        overtook = shop.statuses()["pending"]
        shop.until(lambda: shop.all_sent(601), "the backlog is out")
        assert overtook > 0, "the backlog was gone already: no test of overtaking"
        assert shop.doubled() == []
        busiest = max(shop.sandbox.stats()["requests_per_second"].values())
        assert busiest <= 100 + 10


@pytest.mark.parametrize(
    "fault", ["accept_then_reset", pytest.param("accept_then_hang", marks=pytest.mark.drill)]
)
def test_lost_answers_with_webhooks_within_the_hold_double_nothing(polling_shop, fault):
    shop = polling_shop
    shop.kill("worker")
    shop.sandbox.webhooks.settings = WebhookSettings(url=shop.webhooks, keys=KEYS)
    # Only a webhook ends a hold, however late it is, and a fault alone loses an answer.
    times = {"LEASE_SECONDS": PATIENT["LEASE_SECONDS"]} if "hang" in fault else PATIENT
    shop.sandbox.fail(kind=fault, probability=0.05, seconds=4)
    shop.start("worker", AMBIGUOUS_HOLD_SECONDS="3600", EMAIL_RATE_LIMIT="0", **BREAKER, **times)
    shop.insert_mails(300)
    shop.until(lambda: shop.all_sent(300), "all is sent")
    assert shop.doubled() == []
    assert sum(shop.accepted().values()) == 300
    assert shop.sandbox.stats()["answers"].get(fault, 0) > 0


def test_lost_answers_without_webhooks_double_at_most_those_and_lose_nothing(polling_shop):
    shop = polling_shop
    shop.kill("worker")
    shop.sandbox.fail(kind="accept_then_reset", probability=0.05, times=15)
    shop.start("worker", AMBIGUOUS_HOLD_SECONDS="1", EMAIL_RATE_LIMIT="0", **BREAKER, **PATIENT)
    shop.insert_mails(300)
    shop.until(lambda: shop.all_sent(300), "all is sent")
    lost = shop.sandbox.stats()["answers"].get("accept_then_reset", 0)
    assert min(shop.accepted().values()) == 1 and 0 < len(shop.doubled()) <= lost


@pytest.mark.drill
def test_429_keeps_every_worker_away_for_as_long_as_it_says():
    with Shop(EMAIL_RATE_LIMIT="0", EMAIL_CONCURRENCY="4") as shop:
        shop.sandbox.latency_seconds = 0.02
        shop.start("web", "worker", "worker:2", "standby", "beat")
        shop.insert_mails(2000)
        shop.until(lambda: sum(shop.accepted().values()) > 50, "mails go out")
        shop.sandbox.fail(kind="status", status=429, headers={"Retry-After": "5"}, times=1)
        shop.until(lambda: shop.sandbox.stats()["answers"].get("429"), "the provider said later")
        time.sleep(0.3)  # what was in flight
        asked = shop.sandbox.stats()["requests"]
        time.sleep(4.0)
        assert shop.sandbox.stats()["requests"] == asked
        shop.until(lambda: shop.all_sent(2000), "all is sent")
        assert shop.doubled() == []


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 500},
        pytest.param({"kind": "status", "status": 504}, marks=pytest.mark.drill),
        pytest.param({"kind": "hang", "seconds": 5}, marks=pytest.mark.drill),
    ],
)
def test_with_two_providers_mails_go_over_to_the_second_and_none_to_both(fault):
    """An e-mail is doubled only if the healthy provider's own answer was lost, as on a busy machine."""
    with Shop(EMAIL_PROVIDERS="sendgrid,resend", EMAIL_RATE_LIMIT="0", **BREAKER, **HOLD) as shop:
        shop.start("web", "worker", "beat", RESEND_API_KEY="test", RESEND_API_URL=f"{shop.sandbox.url}/")
        shop.sandbox.fail(provider="sendgrid", **fault)
        orders = [shop.place(f"f{n}@example.com") for n in range(60)]
        for order in orders:
            shop.pay(order)
        shop.until(lambda: sum(shop.accepted().values()) >= 20, "the second has taken over")
        assert {mail.provider for mail in shop.sandbox.mails} == {"resend"}
        shop.sandbox.heal()
        shop.until(lambda: shop.all_sent(60), "all is sent")
        doubts = [
            (id, entry["provider"], sent_at - dt.datetime.fromisoformat(entry["at"]))
            for id, sent_at, errors in shop.rows("id::text, sent_at, errors")
            for entry in errors
            if entry["outcome"] == "ambiguous"
        ]
        assert fault.get("status") == 500 or "sendgrid" in {provider for _, provider, _ in doubts}
        assert all(waited >= dt.timedelta(seconds=HOLD_SECONDS) for _, _, waited in doubts)
        twice = {id for id, count in shop.accepted().items() if count > 1}
        assert twice <= {id for id, provider, _ in doubts if provider == "resend"}


#: As in production, except that beat polls as often as in every flow.
REAL_TIMES = {
    "AMBIGUOUS_HOLD_SECONDS": "120",
    "BREAKER_OPEN_SECONDS": "30",
    "LEASE_SECONDS": "300",
    "EMAIL_CONNECT_TIMEOUT": "3",
    "EMAIL_READ_TIMEOUT": "10",
    "RETRY_BACKOFF_BASE": "30",
    "EMAIL_RATE_LIMIT": "100",
}


@pytest.mark.drill
@pytest.mark.parametrize("providers", ["sendgrid,resend", "resend,sendgrid"])
def test_ten_minutes_of_504_from_the_first_of_two_delay_only_what_it_was_asked_for(providers):
    """Only the e-mails that open the breaker, those in flight and the tests of the open breaker wait."""
    first, second = providers.split(",")
    seconds, rate = 600, 4
    with Shop(EMAIL_PROVIDERS=providers, **REAL_TIMES) as shop:
        more = {"RESEND_API_KEY": "test", "RESEND_API_URL": f"{shop.sandbox.url}/"}
        shop.start("web", "worker", "beat", **more)
        shop.pay(shop.place("before@example.com"))
        shop.until(lambda: shop.all_sent(1), "the first provider works")
        payments = Payments(shop, rate=rate, most=seconds * rate)
        shop.sandbox.fail(kind="status", status=504, provider=first)
        began = time.monotonic()
        with payments:
            shop.until(lambda: payments.paid == seconds * rate, "all is paid", seconds=3 * seconds)
            lasted = time.monotonic() - began
        shop.until(lambda: shop.all_sent(payments.paid + 1), "all is sent")
        columns = "errors <> '[]', extract(epoch FROM sent_at - created_at)::float8, provider"
        mails = [(asked, took) for asked, took, provider in shop.rows(columns) if provider == second]
        waited = [took for asked, took in mails if asked]
        at_once = [took for asked, took in mails if not asked]
        print(
            f"{providers}: {len(at_once)} at once ({max(at_once):.2f} s at most),"
            f" {len(waited)} waited ({max(waited):.1f} s at most)"
        )
        assert lasted > seconds and len(mails) == payments.paid
        assert max(at_once) < 5
        assert max(waited) < 150
        in_flight = rate  # a second of them: the breaker opens when nothing was accepted for a second
        assert len(waited) <= 5 + in_flight + lasted / 5 + 1
        assert shop.doubled() == [] and sum(shop.accepted().values()) == payments.paid + 1
