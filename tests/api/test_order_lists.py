"""Lists of orders: newest first whoever owns them, walked while orders arrive, and read by an index."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.kit.api import Api, assert_problem, make_token
from tests.kit.events import SHOP, tell
from tests.kit.mails import make_mail
from tests.kit.orders import make_order, make_orders
from tests.kit.plans import Plan, emptied, plan_of
from tests.kit.words import Order

URL = "/api/v1/orders"
NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
ID = "01a20c8d-f8ff-748a-b3a8-7f3857def3dd"
UNKNOWN = "Unknown cursor. Start again without it."


def external(**fields: Any) -> Order:
    """Insert an order of another system, whose id contains no time."""
    return make_order(**{"id": uuid.uuid4(), "source": SHOP, "currency": "EUR"} | fields)


def walk(
    api: Api, address: str, link: str = "next", between: Callable[[], object] = lambda: None
) -> list[str]:
    """Return the ids of all pages. Call `between` after each page."""
    ids: list[str] = []
    for _ in range(100):
        page = api.get(address).json()
        ids += [row["id"] for row in page["results"]]
        if not page[link]:
            return ids
        address = relative(page[link])
        between()
    raise AssertionError("The walk has no end.")


def relative(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def newest_first(orders: list[Order]) -> list[str]:
    ordered = sorted(orders, key=lambda order: (order.created_at, order.id), reverse=True)
    return [str(order.id) for order in ordered]


@pytest.fixture
def mixed(db: None) -> list[Order]:
    """Return 60 orders of this system and of another, newest last."""
    return [(external if n % 2 else make_order)(created_at=NOON + n * SECOND) for n in range(60)]


def test_orders_of_every_owner_are_newest_first(api, mixed):
    assert walk(api, f"{URL}?page_size=7") == newest_first(mixed)


def test_the_way_back_is_the_reverse(api, mixed):
    pages = [api.get(f"{URL}?page_size=7").json()]
    while pages[-1]["next"]:
        pages.append(api.get(relative(pages[-1]["next"])).json())
    back = [pages[-1]]
    while back[-1]["previous"]:
        back.append(api.get(relative(back[-1]["previous"])).json())
    assert [page["results"] for page in reversed(back)] == [page["results"] for page in pages]


@pytest.mark.parametrize("arrives", [make_order, external], ids=["own", "external"])
def test_an_order_that_arrives_during_a_walk_is_not_in_it_and_moves_no_other(api, mixed, arrives):
    assert walk(api, f"{URL}?page_size=7", between=arrives) == newest_first(mixed)


def test_an_imported_order_takes_its_place_by_the_time_at_which_it_was_placed(api, mixed, settings):
    settings.ORDER_SOURCES = [SHOP]
    ahead, behind = str(uuid.uuid4()), str(uuid.uuid4())

    def place(id: str, at: dt.datetime) -> None:
        assert tell("placed", id, 1, placedAt=at.isoformat(), notify=False) == "done"

    arrivals = iter([(ahead, NOON + 30.5 * SECOND), (behind, NOON + 58.5 * SECOND)])
    ids = walk(api, f"{URL}?page_size=7", between=lambda: [place(*arrival) for arrival in arrivals])
    assert [id for id in ids if id != ahead] == newest_first(mixed)
    assert ids[29] == ahead and behind not in ids
    assert walk(api, URL) == newest_first(list(Order.objects.all()))


def test_only_an_order_whose_time_moves_during_a_walk_is_repeated(api, mixed, settings):
    settings.ORDER_SOURCES = [SHOP]
    moved = mixed[59]

    def move() -> None:
        earlier = (NOON + 10.5 * SECOND).isoformat()
        assert tell("placed", str(moved.id), 1, placedAt=earlier) == "done"

    ids = walk(api, f"{URL}?page_size=7", between=move)
    assert ids.count(str(moved.id)) == 2
    ids.reverse()
    ids.remove(str(moved.id))
    assert ids[::-1] == newest_first(mixed)


def test_orders_of_the_same_moment_are_each_on_one_page(api, db):
    orders = [external(created_at=NOON) for _ in range(30)] + [make_order(created_at=NOON) for _ in range(5)]
    assert walk(api, f"{URL}?page_size=4") == newest_first(orders)
    last = api.get(f"{URL}?page_size=34").json()["next"]
    back = walk(api, relative(last).replace("page_size=34", "page_size=4"), "previous")
    assert sorted(back) == sorted(newest_first(orders))


@pytest.mark.parametrize("year", [1, 1969, 1970, 9999])
def test_a_page_may_end_at_any_time_that_an_order_can_have(api, db, year):
    orders = [external(created_at=dt.datetime(year, 1, 1, microsecond=n, tzinfo=dt.UTC)) for n in (0, 1, 999)]
    assert walk(api, f"{URL}?page_size=1") == newest_first(orders)


@pytest.mark.parametrize(
    "cursor",
    [
        *("x", "n", "p", "n.", "n0", "n0.", "n.5", f"n{ID}", f"x0.{ID}", f"n0.{ID}.1", f"n1e3.{ID}"),
        *(f"n%2B1.{ID}", f"n--1.{ID}", f"n1.{'0' * 32}", f"n\u0661.{ID}", f"n{9 * 10**17}.{ID}"),
        *(f"n{10**18}.{ID}", f"n-{10**18}.{ID}"),
    ],
)
def test_an_unknown_cursor_is_a_400_that_says_what_to_do(api, cursor):
    make_order()
    problem = assert_problem(api.get(f"{URL}?cursor={cursor}"), 400, "validation")
    assert problem["errors"] == [{"pointer": "#/cursor", "detail": UNKNOWN, "in": "query"}]


@pytest.mark.parametrize("path", ["notifications", "orders/{id}/events", "orders/{id}/notifications"])
def test_every_list_refuses_an_orders_cursor(api, path):
    order = make_order()
    url = f"/api/v1/{path.format(id=order.id)}?cursor=n0.{ID}"
    assert assert_problem(api.get(url), 400, "validation")["detail"] == UNKNOWN


class TestEmail:
    @pytest.fixture
    def ann(self, db: None) -> list[Order]:
        """Return four orders of one person, oldest first."""
        made = [
            make_order(email="ann@example.com"),
            external(email="Ann@Example.com", status="paid"),
            external(email="ANN@EXAMPLE.COM", source="shop-b"),
            make_order(email="ann@example.com", reference="A-7"),
        ]
        for other in ("ann@example.co", "joann@example.com", "ann@example.com.org", "a_n@example.com"):
            make_order(email=other)
        return made

    @pytest.mark.parametrize("email", ["ann@example.com", "aNN@eXample.COM"])
    def test_finds_the_exact_address_in_any_case(self, api, ann, email):
        assert walk(api, f"{URL}?email={email}&page_size=2") == newest_first(ann)

    @pytest.mark.parametrize("email", ["a%25@example.com", "a_n@example.co", "nobody@example.com"])
    def test_finds_nothing_else(self, api, ann, email):
        assert walk(api, f"{URL}?email={email}") == []

    @pytest.mark.parametrize(
        "email", ["", "%20", "ann", "@example.com", "a@b@example.com", "ann@[127.0.0.1]"]
    )
    def test_of_no_address_is_a_400_before_a_row_is_read(self, api, ann, email):
        with CaptureQueriesContext(connection) as queries:
            problem = assert_problem(api.get(f"{URL}?email={email}"), 400, "validation")
        assert problem["errors"][0]["pointer"] == "#/email" and problem["errors"][0]["in"] == "query"
        assert not any('FROM "orders"' in query["sql"] for query in queries.captured_queries)

    def test_narrows_with_the_other_filters(self, api, ann):
        first, second, third, fourth = (str(order.id) for order in ann)
        assert walk(api, f"{URL}?email=ann@example.com&status=paid") == [second]
        assert walk(api, f"{URL}?email=ann@example.com&reference=A-7") == [fourth]
        assert walk(api, f"{URL}?email=ann@example.com&user_id={ann[0].user_id}") == [first]
        since = ann[2].created_at.isoformat().replace("+", "%2B")
        assert walk(api, f"{URL}?email=ann@example.com&created_after={since}") == [fourth, third]
        assert walk(api, f"{URL}?email=ann@example.com&created_before={since}") == [second, first]

    def test_shows_a_bound_token_only_the_orders_of_its_source(self, ann):
        bound = Api(make_token(source=SHOP))
        assert walk(bound, f"{URL}?email=ann@example.com") == [str(ann[1].id)]

    def test_stays_in_the_links(self, api, ann):
        link = urlsplit(api.get(f"{URL}?email=Ann@example.com&page_size=3").json()["next"])
        assert parse_qs(link.query)["email"] == ["Ann@example.com"]

    def test_is_in_the_schema(self, api):
        schema = api.get("/api/schema?format=json").json()
        parameters = {parameter["name"]: parameter for parameter in schema["paths"][URL]["get"]["parameters"]}
        assert parameters["email"]["description"] == "The whole address, in any case"


#: The parameters of a list, and the index that must find its rows.
LISTS = {
    "": "orders_newest",
    "user_id=00000000-0000-0000-0000-000000000007": "orders_user_newest",
    "status=refunded": "orders_status_newest",
    "reference=R-7": "orders_reference_newest",
    "email=user7@EXAMPLE.com": "orders_email",
    "created_after={old}": "orders_newest",
    "created_before={young}": "orders_newest",
    "created_after={old}&created_before={young}": "orders_newest",
    "created_after={old}&created_before={young}&status=refunded": "orders_status_newest",
    "created_after={old}&created_before={young}&email=user7@EXAMPLE.com": "orders_email",
    "status=completed&email=user7@EXAMPLE.com": "orders_email",
}
COUNT = 8000


def visits(api: Api, address: str) -> tuple[dict[str, Any], Plan]:
    """Return a page, and the plans of the statements that read it, added up.

    Any index may find the few orders of the moment at which the page before ends, so leave out its name.
    """
    with CaptureQueriesContext(connection) as queries:
        page = api.get(address).json()
    plans = [plan_of(query["sql"]) for query in queries.captured_queries if 'FROM "orders"' in query["sql"]]
    return page, Plan(
        indexes=plans[-1].indexes,
        visited=sum(plan.visited for plan in plans),
        buffers=sum(plan.buffers for plan in plans),
        kinds=set().union(*(plan.kinds for plan in plans)),
    )


def pages_of(api: Api, filters: str) -> Iterator[tuple[str, Plan]]:
    """Yield the plans of the first page, of one in the middle, and of the one before it."""
    address = f"{URL}?page_size=10&{filters}"
    page, plan = visits(api, address)
    yield "first", plan
    assert len(page["results"]) == 10, address
    middle = api.get(f"{URL}?page_size=10&created_before={of(COUNT // 2)}").json()
    cursor = parse_qs(urlsplit(middle["next"]).query)["cursor"][0]
    page, plan = visits(api, f"{address}&cursor={cursor}")
    yield "middle", plan
    assert page["results"], address
    page, plan = visits(api, relative(page["previous"]))
    yield "backwards", plan
    assert page["results"], address


def of(number: int) -> str:
    """Return a time `number` seconds ago."""
    return (dt.datetime.now(dt.UTC) - number * SECOND).isoformat().replace("+", "%2B")


@pytest.mark.parametrize("owner", ["own", "external", "mixed"])
def test_every_list_reads_only_its_page_from_an_index_in_its_order(api, owner):
    emptied("orders")
    make_orders(COUNT, owner=owner)
    for filters, index in LISTS.items():
        filters = filters.format(old=of(COUNT - 100), young=of(100))
        for name, plan in pages_of(api, filters):
            assert plan.indexes == {index}, (filters, name, plan)
            assert not plan.kinds & {"Sort", "Incremental Sort", "Seq Scan"}, (filters, name, plan)
            assert plan.visited <= 11 and plan.buffers <= 11 + 6, (filters, name, plan)


@pytest.mark.parametrize("owner", ["external", "mixed"])
def test_a_bound_tokens_lists_are_read_like_the_others(db, owner):
    bound = Api(make_token(source=SHOP))
    emptied("orders")
    make_orders(COUNT, owner=owner)
    make_order(source="shop-b")
    for filters in ("", f"created_after={of(COUNT - 100)}&created_before={of(100)}"):
        for name, plan in pages_of(bound, filters):
            # If every second order is the token's, the index of all orders may be as good.
            assert plan.indexes <= {"orders_source_newest", "orders_newest"}, (filters, name, plan)
            assert not plan.kinds & {"Sort", "Incremental Sort", "Seq Scan"}, (filters, name, plan)
            assert plan.visited <= 30 and plan.buffers <= 30 + 6, (filters, name, plan)


def test_a_bound_tokens_list_of_a_status_reads_no_order_of_another_source(db):
    emptied("orders")
    make_orders(COUNT, owner="external")
    Order.objects.filter(status="refunded").update(source="shop-b")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE orders")
    page, plan = visits(Api(make_token(source=SHOP)), f"{URL}?status=refunded")
    assert page["results"] == [] and plan.visited == 0, plan


def test_emails_are_sorted_by_their_id_which_this_system_makes(api, settings, db):
    settings.ORDER_SOURCES, settings.NOTIFY_ON = [SHOP], ["order.placed", "order.paid"]
    mails = [make_mail() for _ in range(2)]
    for change, number in (("placed", 1), ("paid", 2)):
        assert tell(change, str(uuid.UUID(int=7)), number) == "done"
    ids = walk(api, "/api/v1/notifications?page_size=1")
    assert ids == sorted(ids, reverse=True) and ids[2:] == [str(mail.id) for mail in mails[::-1]]
    assert all(uuid.UUID(id).version == 7 for id in ids) and len(ids) == 4
