"""An e-mail that stays on in the shop silences ours in its place, and only that."""

from __future__ import annotations

import datetime as dt

import pytest

from shop_connections.changes import Change
from shop_connections.models import ShopConnection
from shop_connections.shop_emails import find_unmailed, list_choices, stay_on
from shop_connections.woocommerce.setup import EMAILS
from tests.kit.seen_orders import Seen
from tests.kit.woocommerce import FakeShop
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def live(**fields: object) -> Seen:
    seen = Seen()
    seen.connection = ShopConnection(
        source="tea-shop", state="live", live_at=LONG_AGO, going_live={"done_at": "then"}, **fields
    )
    return seen


def names(*stay: str) -> dict[str, str]:
    return stay_on(ShopConnection(), stay)


@pytest.mark.parametrize(
    ("stay", "emails", "lines"),
    [
        ((), ["order.paid", "order.completed", "order.part_refunded"], []),
        (("Processing order",), ["order.completed", "order.part_refunded"], ["order.paid"]),
        (("Refunded order",), ["order.paid", "order.completed"], ["order.part_refunded"]),
        # Without our completion, its parcel is told by itself.
        (
            ("Completed order",),
            ["order.paid", "order.shipped", "order.part_refunded"],
            ["order.completed"],
        ),
        (
            ("Completed order", "E-mail of the tracking plug-in"),
            ["order.paid", "order.part_refunded"],
            ["order.completed", "order.shipped"],
        ),
    ],
)
def test_it_silences_ours_in_its_place_and_says_so(settings, stay, emails, lines):
    settings.NOTIFY_ON = EVERY_EMAIL
    shop, seen = FakeShop(), live(left_on=names(*stay))
    id = shop.place()
    told = list(seen.take(next(body for _, body in shop.deliveries())))
    shop.waiting.clear()
    shop.ship(id, "JD1")
    shop.complete(id)
    *_, (_, body) = shop.deliveries()
    told += seen.take(body)
    shop.refund(id, "1.00")
    *_, (_, body) = shop.deliveries()
    told += seen.take(body)
    assert [event for event in told if not event.startswith("(")] == emails
    own = {event: name for event, name in names(*stay).items() if event in lines}
    assert sorted(seen.doubts) == sorted(
        f"{event}: The shop sends its own e-mail, {name}, so ours is not sent." for event, name in own.items()
    )
    assert seen.order.status == "part_refunded"


@pytest.mark.parametrize(
    ("notify_on", "seen", "off"),
    [
        (["order.paid"], (), ["Processing order"]),
        (["order.paid"], ("order.confirmed",), []),
        (["order.paid", "order.confirmed"], ("order.confirmed",), ["Processing order"]),
        (["order.confirmed"], (), []),
        (["order.refunded"], (), []),
        (["order.refunded", "order.part_refunded"], (), ["Refunded order"]),
        (["order.shipped"], (), ["E-mail of the tracking plug-in"]),
        ([], (), []),
    ],
)
def test_one_may_be_turned_off_if_each_of_its_changes_has_one_of_ours(settings, notify_on, seen, off):
    settings.NOTIFY_ON = notify_on
    choices = list_choices(ShopConnection(), seen=seen)
    assert [choice.email.name for choice in choices if choice.may_be_turned_off] == off
    assert [choice.email.name for choice in choices] == [email.name for email in EMAILS if email.all_events]


@pytest.mark.parametrize(
    ("fields", "notify_on", "event"),
    [
        ({"left_on": {}}, ["order.paid"], "order.confirmed"),
        ({"left_on": {}}, ["order.confirmed"], ""),
        ({"left_on": {"order.confirmed": "Processing order"}}, ["order.paid"], ""),
        ({"left_on": None}, ["order.paid"], "order.confirmed"),  # the page asked for it to be turned off
        ({"left_on": None}, [], ""),
        ({"left_on": {}, "state": "trial"}, ["order.paid"], ""),
        ({"left_on": {}, "live_at": dt.datetime(2999, 1, 1, tzinfo=dt.UTC)}, ["order.paid"], ""),
    ],
)
def test_what_neither_sends_is_found(settings, fields, notify_on, event):
    settings.NOTIFY_ON = notify_on
    shop = live().connection
    for name, value in fields.items():
        setattr(shop, name, value)
    now = dt.datetime.now(dt.UTC)
    changes = [
        Change("order.delivered", "confirmed", 0, now),  # the shop has none about it
        Change("order.confirmed", "confirmed", 0, now, notify=False),
        Change("order.confirmed", "confirmed", 0, now),
    ]
    assert find_unmailed(shop, changes[:2]) == ""
    assert find_unmailed(shop, changes) == event


def test_no_two_emails_of_the_shop_have_one_event_of_ours():
    events = [event for email in EMAILS for event in email.all_events]
    assert len(events) == len(set(events))
