"""One chaos run: start everything, let customers buy, break things, heal, wait, audit."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

import psycopg

from config.local.machine import HOST
from config.local.sandbox import WebhookSettings
from tests.chaos.auditor import Findings, audit
from tests.chaos.customers import Customers
from tests.chaos.faults import FAULTS, FULL_DISK, PROCESSES, Fault, World
from tests.chaos.listener import Listener
from tests.flows.shop import KEYS, Shop
from tests.smtp import SmtpServer

SETTLE_SECONDS = 180.0
SETTINGS = {
    "POLL_INTERVAL": "2",
    "AMBIGUOUS_HOLD_SECONDS": "15",
    "EMAIL_RATE_LIMIT": "100",
    "BREAKER_OPEN_SECONDS": "1",
    "BREAKER_OPEN_CAP": "4",
    "RETRY_BACKOFF_BASE": "1",
    "LOG_LEVEL": "INFO",
    "DATABASE_TIMEOUT": "4",
    "LEASE_SECONDS": "20",  # long enough for a slow SMTP server
    "EMAIL_PROVIDERS": "sendgrid,smtp",
}
#: Seconds before each reply of a slow SMTP server: less than EMAIL_READ_TIMEOUT, and a mail's together more
#: than both time-outs (in production: 4 s with time-outs of 3 and 10).
SMTP_DELAY = 0.65

#: What the admin's action does.
REPUBLISH = """
    UPDATE outbox_events SET dead_lettered_at = NULL, retry_count = 0, next_attempt_at = now()
    WHERE dead_lettered_at IS NOT NULL AND published_at IS NULL AND discarded_at IS NULL RETURNING id
"""


@dataclasses.dataclass
class Report:
    """What a run did, and what the auditor found."""

    seed: int
    seconds: float
    webhooks: bool
    faults: Counter[str]
    changes: int
    mails: int
    events: int
    retries: int
    dead_lettered: int
    dead_events: int
    slowest_answer: float
    slowest_stop: float
    sends_at_kills: int
    findings: Findings

    @property
    def passed(self) -> bool:
        """Nothing lost, stuck, out of order or wrong; doubled only what a kill can double."""
        counts = self.findings.counts()
        allowed = 0 if self.webhooks else self.sends_at_kills
        return counts.pop("doubled") <= allowed and not any(counts.values())

    def text(self) -> str:
        """Return the report as text."""
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, webhooks {'on' if self.webhooks else 'off'}",
            "faults: " + ", ".join(f"{name} {count}" for name, count in self.faults.most_common()),
            f"{self.changes} changes acknowledged ({self.retries} asked again), {self.mails} e-mails,"
            f" {self.events} events; by hand: {self.dead_lettered} dead e-mails resent,"
            f" {self.dead_events} dead events republished",
            f"slowest answer to a customer {self.slowest_answer:.1f} s,"
            f" slowest end after SIGTERM {self.slowest_stop:.1f} s",
            f"events repeated {self.findings.events_repeated},"
            f" gone with the broker's data {self.findings.events_gone_with_the_broker}",
            "  ".join(f"{kind}: {count}" for kind, count in self.findings.counts().items()),
        ]
        for kind in self.findings.counts():
            lines += [f"  {kind}: {sentence}" for sentence in getattr(self.findings, kind)[:20]]
        return "\n".join(lines)


def run(
    *,
    seed: int,
    seconds: float,
    webhooks: bool = True,
    rate: float = 12.0,
    faults: Sequence[Fault] | None = None,
    say: Callable[[str], None] = print,
) -> Report:
    """Do one run. With `faults` just these, once each in that order, else random ones."""
    chance = random.Random(seed)
    with Shop(durable_valkey=True, proxied=True, **SETTINGS) as shop:
        smtp = SmtpServer(sandbox=shop.sandbox, delay=SMTP_DELAY)
        shop.settings |= {"EMAIL_HOST": HOST, "EMAIL_PORT": str(smtp.port)}
        if webhooks:
            shop.sandbox.webhooks.settings = WebhookSettings(url=shop.webhooks, keys=KEYS)
        with psycopg.connect(shop.postgres.url, autocommit=True) as connection:
            connection.execute(FULL_DISK.encode())
        shop.start(*PROCESSES)
        token = str(shop.session.headers["Authorization"]).partition(" ")[2]
        url = f"http://127.0.0.1:{shop.port}"
        customers = Customers(urls=[url], token=token, redis_url=shop.valkey.url, rate=rate, seed=seed)
        listener = Listener(url=shop.valkey.url)
        world = World(shop, chance, smtp)
        happened: Counter[str] = Counter()
        listener.start()
        customers.start()
        began = time.monotonic()
        planned = iter(faults) if faults is not None else None
        while time.monotonic() - began < seconds or planned is not None:
            world.some(1.0, 4.0)
            if planned is not None:
                fault = next(planned, None)
                if fault is None:
                    break
            else:
                (fault,) = chance.choices(list(FAULTS), weights=list(FAULTS.values()))
            at = time.monotonic() - began
            what = fault(world)
            happened[fault.__name__] += 1
            say(f"{at:7.1f} s  {fault.__name__}: {what}")
        lasted = time.monotonic() - began
        shop.sandbox.heal()
        customers.stop(seconds=60)
        dead, dead_events = settle(shop)
        wait_for_listener(listener, shop)
        listener.stop()
        findings = audit(
            database=shop.postgres.url,
            acknowledged=customers.acknowledged,
            accepted=shop.accepted(),
            seen=listener.seen,
            losses=world.losses,
            held=world.held,
        )
        findings.wrong += customers.wrong + world.wrong
        report = Report(
            seed=seed,
            seconds=lasted,
            webhooks=webhooks,
            faults=happened,
            changes=len(customers.acknowledged),
            mails=len(shop.rows()),
            events=len(listener.seen),
            retries=customers.retries,
            dead_lettered=dead,
            dead_events=dead_events,
            slowest_answer=max(customers.slow_answers, default=0.0),
            slowest_stop=max((took for _, took in world.stops), default=0.0),
            sends_at_kills=(happened["kill"] + 2 * happened["kill_both_workers"] + happened["freeze"]) * 32,
            findings=findings,
        )
        if not report.passed:
            say(f"the logs of all processes are in {shop.keep_logs()}")
        return report


def settle(shop: Shop) -> tuple[int, int]:
    """Wait until nothing is due any more. Resend dead e-mails and republish dead events, as a person would.

    Returns how many of each there were.
    """
    dead = dead_events = 0
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        left = shop.rows("id::text, status")
        letters = [id for id, status in left if status == "dead_lettered"]
        for id in letters:
            if shop.call("POST", f"/notifications/{id}/resend").status_code == 202:
                dead += 1
        dead_events += len(shop.query(REPUBLISH))
        unpublished = shop.query("SELECT count(*) FROM outbox_events WHERE published_at IS NULL")
        if all(status == "sent" for _, status in left) and unpublished == [(0,)]:
            break
        time.sleep(0.5)
    return dead, dead_events


def wait_for_listener(listener: Listener, shop: Shop, *, seconds: float = 5.0) -> None:
    """Wait until the listener has seen what the relay has just published."""
    with psycopg.connect(shop.postgres.url, autocommit=True) as connection:
        answer = connection.execute(
            "SELECT count(*) FROM outbox_events WHERE aggregate_type = 'order'"
        ).fetchone()
    assert answer is not None
    deadline = time.monotonic() + seconds
    while len({one.event for one in listener.seen}) < answer[0] and time.monotonic() < deadline:
        time.sleep(0.1)
