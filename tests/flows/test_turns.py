"""One order's e-mails reach the customer in the order of its changes, whatever providers and workers do."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterable, Iterator, Sequence

import pytest

from local.machine import HOST
from local.sandbox import WebhookSettings
from notifications.providers.registry import declarations
from tests.chaos.run import lead_to_sandbox
from tests.kit.shop import Shop
from tests.kit.smtp import SmtpServer
from tests.kit.words import EMAILS

pytestmark = pytest.mark.flow

Step = tuple[str, dict[str, int]]
REFUND: Step = ("refund", {"amount": 100})
#: The changes of an order after it was placed, within a second.
STORIES: Sequence[Sequence[Step]] = (
    [("pay", {}), ("confirm", {}), REFUND, ("complete", {})],
    [("pay", {}), REFUND, REFUND, ("refund", {})],
    [("confirm", {}), ("pay", {}), ("complete", {}), ("refund", {})],
    [("pay", {}), ("confirm", {}), ("cancel", {}), REFUND],
    [("pay", {}), ("complete", {})],
)
SETTINGS = {
    "NOTIFY_ON": ",".join(EMAILS),
    "EMAIL_RATE_LIMIT": "0",
    "EMAIL_CONCURRENCY": "8",
    "BREAKER_OPEN_SECONDS": "1",
    "RETRY_BACKOFF_CAP": "3",
    "AMBIGUOUS_HOLD_SECONDS": "3",
    "MAX_RETRIES": "50",
}
WORKERS = ("worker:1", "worker:2")
ROWS = (
    "id::text, order_id::text, order_version, status, last_error,"
    ' errors @> \'[{"outcome": "ambiguous"}]\' OR retry_count > 0'
)


def change_orders(shop: Shop, count: int, chance: random.Random) -> int:
    """Place orders and change each several times. Return how many e-mails they owe."""
    owed = 0
    for _ in range(count):
        order = shop.place()
        story = chance.choice(STORIES)
        for name, body in story:
            assert shop.call("POST", f"/orders/{order}/{name}", json=body).status_code == 200
        # The payment of an order whose stock is reserved is two changes, and that reservation is none.
        owed += 1 + len(story)
    return owed


def play(shop: Shop, *, orders: int, seconds: float, kill_every: float) -> None:
    """Change orders while the providers fail by chance and workers are killed, and check the mailbox."""
    chance = random.Random(74)
    shop.start("web", "standby", "beat", *WORKERS)
    for fault in (
        {"kind": "status", "status": 503, "probability": 0.2},
        {"kind": "status", "status": 429, "headers": {"Retry-After": "1"}, "probability": 0.05},
        {"kind": "hang", "seconds": 4.0, "probability": 0.03},
        {"kind": "accept_then_reset", "probability": 0.05},
        {"kind": "reset", "probability": 0.1},
    ):
        shop.sandbox.fail(**fault)
    began, kills, owed, left = time.monotonic(), 0, 0, orders
    while left or time.monotonic() - began < seconds:
        some = min(left, max(1, round(orders / (seconds / kill_every))))
        owed += change_orders(shop, some, chance)
        left -= some
        while time.monotonic() - began < (kills + 1) * kill_every:
            time.sleep(0.05)
        name = WORKERS[kills % 2]
        shop.kill(name)
        shop.start(name)
        kills += 1
    # On a slow machine the killed workers send little until here.
    failed = "SELECT count(*) FROM email_notifications WHERE errors <> '[]'"
    shop.until(lambda: shop.query(failed)[0][0] > orders / 10, "the faults did something")
    shop.sandbox.heal()
    shop.until(lambda: shop.all_sent_or_overtaken(owed), "each e-mail is sent or old news")
    assert find_disorder(shop) == []
    assert find_doubled(shop) == []


def find_disorder(shop: Shop) -> list[str]:
    """Return the sent e-mails that the customer got after a later one of the order. None waited too long."""
    versions = {id: (order, version) for id, order, version, *_ in shop.rows(ROWS)}
    newest: dict[str, int] = {}
    seen, disorder = set(), []
    for mail in sorted(shop.sandbox.mails, key=lambda mail: mail.received_epoch):
        id = mail.custom_args["notification_id"]
        order, version = versions[id]
        if id in seen:
            continue  # a doubled one; the first counts
        seen.add(id)
        if version < newest.get(order, 0):
            disorder.append(f"{order}: version {version} after {newest[order]}")
        newest[order] = max(version, newest.get(order, 0))
    sent = {id for id, _, _, status, *_ in shop.rows(ROWS) if status == "sent"}
    assert sent <= seen, "an e-mail is marked sent, and the provider has not got it"
    return disorder


def find_doubled(shop: Shop) -> list[str]:
    """Return the e-mails that the provider has twice though no answer and no worker was lost."""
    may = {id for id, *_, is_doubtful in shop.rows(ROWS) if is_doubtful}
    lost = shop.sandbox.mailbox.lost_answers()
    return [id for id, count in shop.accepted().items() if count > 1 and id not in may and id not in lost]


@contextlib.contextmanager
def shop_of(providers: Iterable[str]) -> Iterator[Shop]:
    names = list(providers)
    with Shop() as shop, contextlib.ExitStack() as stack:
        shop.settings |= SETTINGS | {"EMAIL_PROVIDERS": ",".join(names)}
        if "smtp" in names:
            server = stack.enter_context(SmtpServer(sandbox=shop.sandbox))
            shop.settings |= {"EMAIL_URL": f"smtp://{HOST}:{server.port}"}
        keys = lead_to_sandbox(shop, names)
        shop.sandbox.webhooks.settings = WebhookSettings(url=shop.webhooks, keys=keys)
        yield shop


def test_emails_arrive_in_the_order_of_the_changes_while_workers_are_killed():
    with shop_of(["sendgrid"]) as shop:
        play(shop, orders=20, seconds=15, kill_every=5)


@pytest.mark.drill
@pytest.mark.parametrize("which", ["every", "smtp"])
def test_two_hundred_orders_in_two_minutes_of_faults(which):
    with shop_of(declarations() if which == "every" else ["smtp"]) as shop:
        play(shop, orders=200, seconds=120, kill_every=10)
