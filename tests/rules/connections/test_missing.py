"""Lost posts: the comparison with the shop's API names them, and each is made up for once."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from shop_connections import compare, services
from shop_connections.admin.page import describe_comparison
from shop_connections.compare import compare_all, compare_shop, repair
from shop_connections.encryption import encrypt
from shop_connections.http import ShopUnreachable
from shop_connections.management.commands import connections as command
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.platforms import PLATFORMS
from shop_connections.process import process_waiting
from tests.kit.plain_shop import KEY, SOURCE, connect
from tests.kit.waiting import replace_time
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, Heartbeat, Order, conditions, our_id
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL, send, state_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeShop]:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.NOTIFY_ON = [KEY], False, EVERY_EMAIL
    settings.CONNECTIONS_PRIVATE = True
    shop = FakeShop(seed=7)
    with shop.serve() as address:
        connect(
            secret=encrypt(shop.secret),
            address=address,
            api_key=encrypt(shop.key),
            api_secret=encrypt(shop.key_secret),
            state="live",
            live_at=timezone.now() - dt.timedelta(days=1),
            last_post_at=timezone.now(),
            created_at=timezone.now() - dt.timedelta(days=3),
        )
        yield shop


def row() -> ShopConnection:
    return ShopConnection.objects.get(source=SOURCE)


def deliver(shop: FakeShop) -> None:
    for post in shop.deliveries():
        assert send(*post) == 202
    process_waiting(seconds=60)


def active_codes() -> dict[str, float]:
    facts = conditions.read_facts(now=timezone.now())
    return {active.code: active.number for active in conditions.decide(facts) if active.subject == SOURCE}


def test_a_shop_without_lost_posts_has_nothing_missing(shop):
    for _ in range(5):
        shop.complete(shop.place())
    deliver(shop)
    assert compare_shop(row()).missing == []
    assert row().checked_at is not None
    assert "ChangesMissed" not in active_codes()


def test_lost_posts_are_named_and_made_up_for_once(shop):
    lost, half, whole = (shop.place() for _ in range(3))
    shop.waiting = [(topic, id) for topic, id in shop.waiting if id != lost]
    deliver(shop)
    shop.complete(half)
    shop.ship(lost, "JD0001")
    shop.waiting.clear()
    compare_all()
    assert active_codes()["ChangesMissed"] == 2
    waiting = ConnectionPost.objects.missing()
    assert {post.reference for post in waiting} == {str(lost), str(half)}
    assert not Order.objects.filter(id=our_id(source=SOURCE, id=str(lost))).exists()
    assert repair(source=SOURCE) == 2
    process_waiting(seconds=60)
    for id in (lost, half, whole):
        assert state_of(id) == shop.truth(id)[:3]
    assert compare_shop(row()).missing == []
    assert repair(source=SOURCE) == 0
    assert "ChangesMissed" not in active_codes()
    assert set(EmailNotification.objects.values_list("status", flat=True)) == {"pending"}


def test_what_is_missing_stays_until_it_is_made_up_for(shop):
    id = shop.place()
    shop.waiting.clear()
    compare_shop(row())
    shop.orders[id]["date_modified_gmt"] = "2020-01-01T00:00:00"  # no later list has it
    assert len(compare_shop(row(), sleep=lambda _: None).missing) == 1
    assert ConnectionPost.objects.missing().count() == 1


def test_a_post_that_comes_late_makes_up_for_it(shop):
    id = shop.place()
    posts = shop.deliveries()
    assert len(compare_shop(row()).missing) == 1
    for post in posts:
        send(*post)
    process_waiting(seconds=60)
    assert compare_shop(row()).missing == []
    assert repair(source=SOURCE) == 0
    assert state_of(id) == ("paid", 0, ("order.paid",))


def test_an_email_that_is_too_old_becomes_a_dead_letter(shop, settings):
    settings.EMAIL_MAX_AGE_HOURS = 1
    shop.place()
    shop.waiting.clear()
    compare_shop(row())
    repair(source=SOURCE)
    process_waiting(seconds=60)
    email = EmailNotification.objects.get()
    assert email.status == "dead_lettered" and email.last_error.startswith("too old: its change came 5 hours")


def test_a_shop_that_refuses_our_key_is_named_and_keeps_what_was_missing(shop):
    shop.place()
    shop.waiting.clear()
    compare_shop(row())
    shop.key_secret = "cs_other"
    with pytest.raises(ShopUnreachable):
        compare_shop(row(), sleep=lambda _: None)
    assert row().check_problem
    assert ConnectionPost.objects.missing().count() == 1


def test_a_short_look_back_leaves_the_time_before_it_to_the_next_comparison(shop):
    ShopConnection.objects.update(checked_at=timezone.now() - dt.timedelta(hours=20))
    shop.place()  # six hours ago
    shop.waiting.clear()
    assert compare_shop(row(), since=timezone.now() - dt.timedelta(minutes=30)).missing == []
    assert len(compare_shop(row()).missing) == 1


def test_missing_orders_beyond_those_that_are_stored_come_with_the_next_comparisons(shop, monkeypatch):
    monkeypatch.setattr(compare, "MOST_MISSING", 2)
    ShopConnection.objects.update(checked_at=timezone.now() - dt.timedelta(hours=20))
    for _ in range(5):
        shop.place()
    shop.waiting.clear()
    repaired = []
    for _ in range(4):
        compare_shop(row())
        repaired.append(repair(source=SOURCE))
        process_waiting(seconds=60)
    assert repaired == [2, 2, 1, 0]
    assert Order.objects.count() == 5


@pytest.mark.parametrize("change", [{"state": "waiting"}, {"state": "done", "done_at": timezone.now()}])
def test_what_is_sent_on_or_erased_during_a_comparison_is_missing_no_more(shop, monkeypatch, change):
    id = shop.place()
    shop.waiting.clear()
    compare_shop(row())
    shop.orders[id]["date_modified_gmt"] = "2020-01-01T00:00:00"  # no later list has it
    whole = compare._find_missing

    def find(*arguments: Any) -> Any:
        ConnectionPost.objects.update(**change)
        return whole(*arguments)

    monkeypatch.setattr(compare, "_find_missing", find)
    compare_shop(row())
    assert not ConnectionPost.objects.missing().exists()


def test_an_order_that_nobody_foresaw_hides_no_other(shop, monkeypatch):
    odd, other = shop.place(), shop.place()
    shop.waiting.clear()
    whole = PLATFORMS["woocommerce"]

    def read_order(body: bytes, *, locale: str) -> Any:
        assert json.loads(body)["id"] != odd
        return whole.read(body, locale=locale)

    monkeypatch.setitem(PLATFORMS, "woocommerce", whole._replace(read=read_order))
    compare_all()
    reasons = dict(ConnectionPost.objects.missing().values_list("order_id", "reason"))
    assert reasons[our_id(source=SOURCE, id=str(odd))].startswith("AssertionError")
    assert reasons[our_id(source=SOURCE, id=str(other))] == ""


def test_orders_of_the_time_before_the_connection_are_no_loss(shop):
    id = shop.place()
    shop.waiting.clear()
    ShopConnection.objects.update(created_at=timezone.now(), checked_at=None)
    assert compare_shop(row()).missing == []
    process_waiting(seconds=60)
    assert state_of(id) == ("paid", 0, ())
    shop.cancel(id)
    deliver(shop)
    assert state_of(id) == ("cancelled", 0, ("order.cancelled",))
    assert compare_all() is False and row().checked_at is not None


def test_a_shop_that_has_not_posted_yet_is_not_compared(shop):
    ShopConnection.objects.update(last_post_at=None)
    compare_all()
    assert shop.requests == []


def result() -> dict[str, Any]:
    return row().comparison or {}


class TestAComparisonThatAPersonAskedFor:
    def ask(self) -> None:
        services.ask_comparison(id=row().id)

    def test_one_worker_does_it_at_once_and_says_how_far_it_is_and_what_differs(self, shop, monkeypatch):
        lost = [shop.place() for _ in range(3)]
        shop.waiting.clear()
        shop.place()
        deliver(shop)
        Heartbeat.beat(name=compare.COMPARED)  # all were compared just now
        assert not compare.is_due()
        monkeypatch.setattr(compare, "TELL_EVERY", 2)
        seen, judge = [], compare._judge

        def note(*args: Any, **kwargs: Any) -> bool:
            seen.append(result()["read"])
            compare_all()  # another worker has nothing to do
            return bool(judge(*args, **kwargs))

        monkeypatch.setattr(compare, "_judge", note)
        self.ask()
        assert compare.is_due()
        compare_all()
        assert seen == [0, 2, 2, 4] and not compare.is_due()
        comparison = result()
        assert (comparison["read"], comparison["missing"], comparison["is_whole"]) == (4, len(lost), True)
        assert "done_at" in comparison
        requests = len(shop.requests)
        compare_all()
        assert len(shop.requests) == requests

    @pytest.mark.parametrize("has_begun", [True, False], ids=["its worker died", "no worker began it"])
    def test_one_that_does_not_end_says_so(self, shop, has_begun):
        seconds = int(compare.MOST_SHOP_SECONDS) + 60
        told = []
        for age in (seconds - 9, seconds + 9):
            at = (timezone.now() - dt.timedelta(seconds=age)).isoformat()
            asked = {"asked_at": at} | ({"began_at": at, "read": 7} if has_begun else {})
            ShopConnection.objects.update(comparison=asked)
            told.append(describe_comparison(row()))
        assert [each["is_running"] for each in told] == [True, False]
        assert told[1]["problem"] == "It was not done in time." and told[1]["done_at"]

    def test_a_worker_that_comes_back_late_leaves_a_newer_one_alone(self, shop, monkeypatch):
        def ask_again(*_: Any, tell: Any, **__: Any) -> compare.Comparison:
            self.ask()
            tell(25)
            return compare.Comparison(25, [], True)

        self.ask()
        monkeypatch.setattr(compare, "compare_shop", ask_again)
        compare._compare_asked(row())
        assert [*result()] == ["asked_at"]

    def test_one_that_fails_says_why(self, shop):
        self.ask()
        shop.api_answers = [(500, {})]
        compare_all()
        assert result()["problem"] == "The shop answered with status 500."

    @pytest.mark.parametrize("fields", [{"state": "off"}, {"api_key": ""}, {"last_post_at": None}])
    def test_a_shop_that_cannot_be_compared_is_refused(self, shop, fields):
        ShopConnection.objects.update(**fields)
        with pytest.raises(services.ShopRefusal):
            self.ask()


class TestTheCommand:
    def run(self, *arguments: str) -> tuple[str, str]:
        out, err = io.StringIO(), io.StringIO()
        call_command("connections", *arguments, stdout=out, stderr=err)
        return out.getvalue(), err.getvalue()

    def test_it_lists_and_repairs(self, shop):
        id = shop.place()
        shop.waiting.clear()
        out, err = self.run("check", SOURCE, "--since", "1d")
        assert out == f"{id}  order.paid\n" and "1 orders read, 1 missing" in err
        assert "1 missing" in self.run("list")[0]
        self.run("check", SOURCE, "--repair")
        process_waiting(seconds=60)
        assert state_of(id) == ("paid", 0, ("order.paid",))

    def test_it_waits_for_a_post_and_says_what_it_was(self, shop, monkeypatch):
        id = shop.place()
        replace_time(monkeypatch, command, sleep=lambda _: deliver(shop))
        assert self.run("try", SOURCE)[0] == f"Connected: order {id}.\n"

    def test_it_sends_nothing_on_to_one_that_is_off(self, shop):
        shop.place()
        shop.waiting.clear()
        ShopConnection.objects.update(state="off")
        with pytest.raises(CommandError, match="shop-w is off, and nothing of it is processed"):
            self.run("check", SOURCE, "--repair")
        assert "1 orders read, 1 missing" in self.run("check", SOURCE)[1]
        assert not ConnectionPost.objects.waiting().exists()

    def test_it_does_not_wait_for_one_that_is_off(self, shop, monkeypatch):
        ShopConnection.objects.update(state="off")
        replace_time(monkeypatch, command, sleep=lambda _: pytest.fail("it waits"))
        with pytest.raises(CommandError, match="shop-w is off, and its posts are answered 404"):
            self.run("try", SOURCE)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("check", SOURCE, "--since", "soon"), "must be like"),
            (("check", "shop-x"), "no connection shop-x"),
            (("try", SOURCE, "--seconds", "0"), "No valid post came"),
        ],
    )
    def test_it_explains_what_is_wrong(self, shop, arguments, words):
        with pytest.raises(CommandError, match=words):
            self.run(*arguments)


def test_a_shop_whose_api_is_away_is_named_after_six_hours_with_the_reason(shop):
    for hours, is_named in ((5, False), (7, True)):
        problem, at = "The host of the shop was not found.", timezone.now() - dt.timedelta(hours=hours)
        ShopConnection.objects.update(checked_at=at, check_problem=problem)
        assert ("ShopNotCompared" in active_codes()) == is_named
    ShopConnection.objects.update(api_key="")  # nothing can be compared
    assert "ShopNotCompared" not in active_codes()


@pytest.mark.parametrize(("days", "usual_hours"), [(7, 24), (4, 42), (1, 168)])
def test_a_shop_that_stopped_posting_is_named_after_a_silence_that_is_not_usual(shop, days, usual_hours):
    for hours, is_named in ((usual_hours - 1, False), (usual_hours + 1, True)):
        last = timezone.now() - dt.timedelta(hours=hours)
        ShopConnection.objects.update(last_post_at=last)
        ConnectionPost.objects.all().delete()
        for day in range(days):
            at = last - dt.timedelta(days=day)
            ConnectionPost.objects.create(source=SOURCE, body="{}", received_at=at, state="done", done_at=at)
        assert ("ShopSilent" in active_codes()) == is_named
    ShopConnection.objects.update(state="off")
    assert active_codes() == {}


def test_a_post_with_a_wrong_signature_is_named_until_a_right_one_comes(shop, monkeypatch):
    ShopConnection.objects.update(last_post_at=timezone.now() - dt.timedelta(hours=1))
    monkeypatch.setattr("shop_connections.receive._noted_at", {})
    shop.place()
    (headers, body), *_ = shop.deliveries()
    wrong = {**headers, "X-WC-Webhook-Signature": "A" * 43 + "="}
    assert send(wrong, body) == 401
    refused_at = row().refused_at
    assert active_codes() == {"PostsRefused": 1}
    assert send(wrong, body) == 401
    assert row().refused_at == refused_at  # a stranger does not write at each post
    assert send(headers, body) == 202
    assert {code for code, number in active_codes().items() if code == "PostsRefused"} == set()
