"""Going live while the shop sends its own e-mails until that moment: each customer gets each e-mail once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from shop_connections.encryption import encrypt
from shop_connections.models import ShopConnection
from shop_connections.process import process_waiting
from tests.kit.plain_shop import KEY, SOURCE, connect
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, our_id
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL, send

pytestmark = pytest.mark.django_db
Sent = Counter[tuple[int, str]]


@pytest.fixture
def shop(settings: Any, monkeypatch: pytest.MonkeyPatch) -> FakeShop:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.NOTIFY_ON = [KEY], False, EVERY_EMAIL
    settings.EMAIL_MAX_AGE_HOURS = 1000
    shop = FakeShop(seed=11)
    connect(secret=encrypt(shop.secret), state="waiting")
    return shop


def lives(shop: FakeShop, *, count: int, chance: random.Random) -> Iterator[tuple[int, list[str]]]:
    """Place orders and change them, all mixed. Yield each change's order and the e-mails that it owes."""
    running: dict[int, Iterator[str]] = {}
    for _ in range(count):
        id = shop.place_any()
        running[id] = shop.live(id)
        yield id, list(shop.emails[id])
        for id in chance.sample(sorted(running), k=min(3, len(running))):
            before = len(shop.emails[id])
            if next(running[id], None) is None:
                del running[id]
            else:
                yield id, shop.emails[id][before:]


def ours(ids: set[int], **fields: Any) -> Sent:
    by_order = {our_id(source=SOURCE, id=str(id)): id for id in ids}
    rows = EmailNotification.objects.filter(**fields).values_list("order_id", "event_type")
    return Counter((by_order[order_id], event) for order_id, event in rows)


@pytest.mark.parametrize(
    ("count", "late"), [(50, 0), (25, 25)], ids=["announced", "announced while posts wait"]
)
def test_no_customer_gets_an_email_twice_and_none_gets_none(shop, count, late):
    chance = random.Random(5)
    of_shop: Sent = Counter()
    owed: Sent = Counter()
    live_at = None
    for number, (id, emails) in enumerate(lives(shop, count=count, chance=chance)):
        changed_at = shop.now
        if number == count:
            # A moment in the future by the shop's clock, too: changes until then are still the shop's.
            for _ in range(3):
                shop._tick()
            live_at = shop.now
            ShopConnection.objects.update(state="live", live_at=live_at)
        owed.update((id, email) for email in emails)
        if live_at is None or changed_at < live_at:
            of_shop.update((id, email) for email in emails)
        for post in shop.deliveries():
            assert send(*post) == 202
        if not late or number % late == 0:
            process_waiting(seconds=60)
    process_waiting(seconds=60)
    ids = set(shop.orders)
    sent = ours(ids, status="pending")
    twice, missing = (of_shop + sent) - owed, owed - (of_shop + sent)
    assert not twice
    if late:  # of several saves that wait, one e-mail may tell what another would have told
        told = {id for id, _ in of_shop + sent}
        missing = Counter({key: count for key, count in missing.items() if key[0] not in told})
    assert not missing
    assert sent and of_shop
    # The first post of an older order, if it comes after that moment, is history and sends no e-mail.
    discarded = ours(ids, status="discarded")
    assert discarded == of_shop if not late else not discarded - of_shop
