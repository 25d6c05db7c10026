"""Strangers have few places to send a body, and few of them wait for one."""

from __future__ import annotations

import pytest

from web.front.places import (
    MOST,
    MOST_OF_NAME,
    MOST_WAITING,
    MOST_WAITING_OF_NAME,
    WAIT_SECONDS,
    Answer,
    Places,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def places(clock: Clock) -> Places[str]:
    return Places(clock=clock)


def take(places: Places[str], name: str, count: int, *, may_wait: bool = True) -> list[Answer]:
    return [places.take(name, f"{name}{number}", may_wait=may_wait) for number in range(count)]


def test_a_name_has_at_most_four_of_the_eight_places_and_sixteen_of_the_thirty_two_that_wait(places):
    for name in ("a", "b"):
        expected = [Answer.PLACE] * MOST_OF_NAME + [Answer.WAITS] * MOST_WAITING_OF_NAME + [Answer.REFUSED]
        assert take(places, name, len(expected)) == expected
    assert (places.working, places.waiting) == (MOST, MOST_WAITING) == (8, 32)
    assert take(places, "c", 1) == [Answer.REFUSED]


def test_a_name_that_may_not_wait_is_refused_at_once(places):
    assert take(places, "/", 5, may_wait=False) == [Answer.PLACE] * 4 + [Answer.REFUSED]
    assert places.waiting == 0


def test_a_place_goes_to_the_request_that_has_waited_longest(places):
    take(places, "a", 6)
    take(places, "b", 5)
    assert [places.give("a"), places.give("a"), places.give("b")] == ["a4", "a5", "b4"]
    assert places.waiting == 0


def test_a_place_goes_past_those_whose_name_has_its_places(places):
    take(places, "a", 6)
    take(places, "b", 3)
    take(places, "c", 2)  # the first one has the last place
    assert places.give("b") == "c1"
    assert places.give("b") is None
    assert (places.working, places.waiting) == (7, 2)


def test_who_waits_too_long_leaves_without_a_place(places, clock):
    take(places, "a", 5)
    clock.now += WAIT_SECONDS / 2
    take(places, "a", 1)
    assert places.expire() == []
    clock.now += WAIT_SECONDS / 2
    assert places.expire() == ["a4"]
    assert places.give("a") == "a0"  # the second request of that name
    assert places.expire() == []


def test_a_stop_ends_each_wait_and_lets_nobody_wait(places):
    take(places, "a", 6)
    places.close()
    assert places.expire() == ["a4", "a5"]
    assert take(places, "a", 1) == [Answer.REFUSED]
    assert places.give("a") is None
