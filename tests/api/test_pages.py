"""Lists in pages: walked by their own links, whole, also while rows come."""

from __future__ import annotations

import uuid
from itertools import chain
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.kit.orders import make_order


def _walk(api, address: str, link: str = "next", between=lambda: None) -> list[list[str]]:
    pages = []
    while address:
        parts = urlsplit(address)
        page = api.get(f"{parts.path}?{parts.query}").json()
        pages.append([row["id"] for row in page["results"]])
        address = page[link]
        between()
        assert len(pages) < 50
    return pages


def _flat(pages: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(pages))


def test_the_pages_hold_every_row_once_newest_first(api):
    ids = [str(make_order().id) for _ in range(7)][::-1]
    assert _walk(api, "/api/v1/orders?page_size=3") == [ids[:3], ids[3:6], ids[6:]]


def test_a_full_last_page_has_no_next(api):
    ids = [str(make_order().id) for _ in range(4)][::-1]
    assert _walk(api, "/api/v1/orders?page_size=2") == [ids[:2], ids[2:]]


def test_an_empty_list_is_one_page_without_links(api):
    assert api.get("/api/v1/orders").json() == {"next": None, "previous": None, "results": []}


def test_from_a_previous_page_next_leads_forward_again(api):
    ids = [str(make_order().id) for _ in range(4)][::-1]
    second = api.get("/api/v1/orders?page_size=2").json()["next"]
    parts = urlsplit(second)
    back = urlsplit(api.get(f"{parts.path}?{parts.query}").json()["previous"])
    page = api.get(f"{back.path}?{back.query}").json()
    assert [row["id"] for row in page["results"]] == ids[:2]
    assert page["previous"] is None
    assert page["next"] == second


def test_rows_that_come_are_found_by_previous(api):
    for _ in range(3):
        make_order()
    second = urlsplit(api.get("/api/v1/orders?page_size=2").json()["next"])
    new = str(make_order().id)
    pages = _walk(api, f"{second.path}?{second.query}", "previous")
    assert _flat(pages).count(new) == 1


def test_the_links_are_absolute_and_keep_the_filters(api):
    user = uuid.uuid4()
    for _ in range(3):
        make_order(user_id=user)
        make_order()
    page = api.get(f"/api/v1/orders?user_id={user}&page_size=2").json()
    link = urlsplit(page["next"])
    assert (link.scheme, link.netloc, link.path) == ("http", "testserver", "/api/v1/orders")
    query = parse_qs(link.query)
    assert query["user_id"] == [str(user)] and query["page_size"] == ["2"]
    rest = api.get(f"{link.path}?{link.query}").json()
    assert [row["user_id"] for row in rest["results"]] == [str(user)]


def test_a_page_has_fifty_rows_unless_asked_and_at_most_two_hundred(api):
    for _ in range(51):
        make_order()
    assert len(api.get("/api/v1/orders").json()["results"]) == 50
    assert len(api.get("/api/v1/orders?page_size=200").json()["results"]) == 51


@pytest.mark.parametrize("direction", "np")
def test_a_cursor_of_a_row_that_is_not_there_still_has_its_place(api, direction):
    make_order()
    # The cursor's time is in the year 2099.
    page = api.get(f"/api/v1/orders?cursor={direction}{4_070_908_800_000_000}.{uuid.uuid4()}").json()
    assert len(page["results"]) == (1 if direction == "n" else 0)


def test_an_orders_events_and_notifications_are_walked_oldest_first(api):
    path = api.place()
    for action in ("pay", "confirm", "complete", "refund"):
        api.post(f"{path}/{action}")
    pages = _walk(api, f"{path}/events?page_size=2")
    assert [len(page) for page in pages] == [2, 2, 1]
    assert _flat(pages) == [row["id"] for row in api.get(f"{path}/events").json()["results"]]
    mails = _flat(_walk(api, f"{path}/notifications?page_size=1"))
    assert mails == sorted(mails) and len(mails) == 3
