"""Slots are given in turn. A queue that has not been empty for a while is kept short by refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from runtime.process.slots import Overloaded, RequestSlots
from tests.kit.waiting import until

#: Real seconds that no test reaches; the clock of a test is its own.
PATIENCE = 600.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Office:
    """Slots, and threads that ask for them. `answers` are in the order in which they were given."""

    def __init__(self, *values: str, most_waiting: int = 9) -> None:
        self.clock = Clock()
        self.slots = RequestSlots(
            [*values], most_waiting=most_waiting, patience_seconds=PATIENCE, clock=self.clock
        )
        self.answers: list[tuple[str, str | int]] = []

    def ask(self, name: str, *, is_refusable: bool = True) -> None:
        """Start a request, and return when it waits or has its answer."""
        self._start(name, lambda: self.slots.take(is_refusable=is_refusable))

    def ask_as_other(self, name: str, *, most_waiting: int = 9) -> None:
        self._start(name, lambda: self.slots.take_as_other(most_waiting=most_waiting))

    def _start(self, name: str, take: Callable[[], str]) -> None:
        def state() -> tuple[int, int, int]:
            return len(self.slots), self.slots.others_waiting, len(self.answers)

        def ask() -> None:
            try:
                self.answers.append((name, take()))
            except Overloaded as refusal:
                self.answers.append((name, refusal.retry_seconds))

        before = state()
        threading.Thread(target=ask, daemon=True).start()
        until(lambda: before != state())

    def give(self, value: str, *, answers: int) -> None:
        """Give a slot, and return when `answers` requests have got their answers from it."""
        expected = len(self.answers) + answers
        self.slots.give(value)
        until(lambda: len(self.answers) == expected)


def test_a_free_slot_is_given_at_once_and_the_one_that_was_used_last_comes_first():
    slots = RequestSlots(["a", "b", "c"], most_waiting=9)
    taken = [slots.take(is_refusable=True) for _ in range(3)]
    assert sorted(taken) == ["a", "b", "c"]
    for value in ("b", "c", "a"):
        slots.give(value)
    assert slots.take(is_refusable=True) == "a"


def test_requests_get_the_slots_in_the_order_in_which_they_came():
    office = Office("slot")
    for name in ("1", "2", "3"):
        office.ask(name)
    for _ in range(2):
        office.give("slot", answers=1)
    assert office.answers == [("1", "slot"), ("2", "slot"), ("3", "slot")]
    office.give("slot", answers=0)
    office.ask("4")
    assert office.answers[-1] == ("4", "slot")


def test_a_burst_waits_up_to_its_limit():
    office = Office("slot", most_waiting=3)
    for name in ("1", "2", "3", "4"):
        office.ask(name)
    office.ask("5")
    assert office.answers == [("1", "slot"), ("5", 1)] and len(office.slots) == 3


def test_a_queue_that_lasts_is_shortened_to_two_for_each_slot_and_the_oldest_are_refused():
    office = Office("a", "b")
    for number in range(2 + 7):
        office.ask(str(number))
    office.clock.now += PATIENCE
    office.ask("new")
    assert office.answers[2:] == [("new", 30)]
    office.give("a", answers=4)  # of seven, three are refused, one is served, and three wait
    served, refused = dict(office.answers[3:]), [name for name, got in office.answers[3:] if got == 30]
    assert sorted(refused) == ["2", "3", "4"] and served["5"] == "a"
    assert len(office.slots) == 3
    office.ask("next")
    assert len(office.slots) == 4
    office.ask("too many")
    assert office.answers[-1] == ("too many", 30)


def test_a_queue_that_was_empty_for_a_moment_is_a_burst_again():
    office = Office("slot", most_waiting=3)
    office.ask("1")
    office.ask("2")
    office.clock.now += PATIENCE
    office.give("slot", answers=1)  # to the second, and nobody waits
    for name in ("3", "4", "5"):
        office.ask(name)
    assert len(office.slots) == 3
    office.clock.now += PATIENCE - 1
    office.give("slot", answers=1)
    assert office.answers[-1] == ("3", "slot")


def test_a_request_that_may_not_be_refused_waits_however_many_and_however_long():
    office = Office("slot", most_waiting=1)
    for number in range(6):
        office.ask(str(number), is_refusable=False)
    office.clock.now += 100 * PATIENCE
    for _ in range(5):
        office.give("slot", answers=1)
    assert office.answers == [(str(number), "slot") for number in range(6)]


@pytest.mark.parametrize(("lasted", "retry"), [(0, 1), (1.9, 1), (7.5, 7), (29, 29), (3600, 30)])
def test_a_refused_request_comes_again_after_as_long_as_the_queue_has_lasted(lasted, retry):
    office = Office("slot", most_waiting=1)
    office.ask("1")
    office.ask("2")
    office.clock.now += lasted
    office.ask("3")
    assert office.answers[-1] == ("3", retry)


def test_nobody_waits_longer_than_the_patience_for_a_slot_that_is_not_given_back():
    slots = RequestSlots(["slot"], most_waiting=9, patience_seconds=0.001)
    held = slots.take(is_refusable=True)
    for _ in range(3):
        with pytest.raises(Overloaded):
            slots.take(is_refusable=True)
    assert len(slots) == 0
    slots.give(held)
    assert slots.take(is_refusable=True) == "slot"


def test_no_slot_has_two_holders_and_none_is_lost():
    slots = RequestSlots(["a", "b", "c"], most_waiting=4, patience_seconds=0.0005)
    holders, mistakes, outcomes = {"a": 0, "b": 0, "c": 0}, [], []

    def work(take: Callable[[], str]) -> None:
        for _ in range(300):
            try:
                held = take()
            except Overloaded:
                outcomes.append("refused")
                continue
            holders[held] += 1
            if holders[held] != 1:
                mistakes.append(held)
            holders[held] -= 1
            slots.give(held)
            outcomes.append("done")

    threads = [
        threading.Thread(target=work, args=[lambda n=n: slots.take(is_refusable=n % 4 != 0)])
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mistakes and len(outcomes) == 12 * 300 and len(slots) == 0
    assert sorted(slots.take(is_refusable=True) for _ in range(3)) == ["a", "b", "c"]


def test_others_leave_a_slot_to_the_first_queue_and_never_wait_in_it():
    slots = RequestSlots(["a", "b", "c"], most_waiting=0)
    for _ in range(2):
        slots.take_as_other(most_waiting=0)
    with pytest.raises(Overloaded):
        slots.take_as_other(most_waiting=0)
    assert slots.take(is_refusable=True)
    assert (len(slots), slots.others_waiting) == (0, 0)


def test_so_many_others_wait_as_their_caller_says_and_the_next_is_refused_at_once():
    office = Office("slot")
    office.slots.take(is_refusable=True)
    office.ask_as_other("1", most_waiting=1)
    office.ask_as_other("2", most_waiting=1)
    assert office.answers == [("2", 1)] and office.slots.others_waiting == 1
    office.ask_as_other("3", most_waiting=2)
    assert office.slots.others_waiting == 2 and not len(office.slots)


def test_a_slot_goes_to_the_first_queue_before_the_others_if_an_other_works():
    office = Office("a", "b", "c")
    for _ in range(2):
        office.slots.take_as_other(most_waiting=0)
    office.slots.take(is_refusable=True)
    office.ask_as_other("other")
    office.ask("order")
    office.slots.give("a", is_other=True)
    until(lambda: len(office.answers) == 1)
    assert office.answers == [("order", "a")]
    office.give("a", answers=1)
    assert office.answers[1:] == [("other", "a")]


def test_a_slot_goes_to_an_other_first_if_none_works_so_that_an_overload_cannot_stop_them():
    office = Office("a", "b")
    for _ in range(2):
        office.slots.take(is_refusable=True)
    office.ask("order")
    office.ask_as_other("other")
    office.give("a", answers=1)
    office.give("b", answers=1)
    assert office.answers == [("other", "a"), ("order", "b")]


def test_a_slot_that_others_may_not_have_stays_free_for_the_first_queue():
    office = Office("a", "b")
    taken = office.slots.take_as_other(most_waiting=0)
    office.ask_as_other("other")
    assert office.slots.others_waiting == 1
    free = office.slots.take(is_refusable=True)
    office.slots.give(free)
    assert office.slots.others_waiting == 1
    office.slots.give(taken, is_other=True)
    until(lambda: bool(office.answers))
    assert [name for name, _ in office.answers] == ["other"]
