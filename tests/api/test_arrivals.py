"""An order and its parcel by calls in every order, and by events over HTTP in every order of arrival."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from django.db import connection, transaction

from tests.kit.api import Api, assert_problem, row_counts
from tests.kit.arrivals import ITEMS, LINES, STEPS, Expected, event_of, read_facts
from tests.kit.words import EMAILS

pytestmark = pytest.mark.django_db

#: The actions that each status allows.
ALLOWED = {
    "pending": ["pay", "confirm", "cancel"],
    "paid": ["confirm", "complete", "cancel", "refund"],
    "cancelled": [],
    "completed": ["refund"],
}


class Caller:
    """A shop that makes each call once, at any moment, and knows what must be answered."""

    def __init__(self, api: Api) -> None:
        self.api, self.seen = api, set[Any]()
        self.path = api.place(items=ITEMS, total_amount=1000)

    def call(self, step: str, parcel: str) -> Any:
        if step == "created":
            return self.api.post(f"{self.path}/shipments", {"reference": "P-1", "lines": LINES})
        if step in ("delivered", "returned"):
            return self.api.post(f"{self.path}/shipments/{parcel or uuid.uuid4()}/{step}")
        action = {"paid": "pay", "cancelled": "cancel", "completed": "complete"}[step]
        return self.api.post(f"{self.path}/{action}")

    def walk(self, status: str, done: frozenset[str], parcel: str) -> None:
        """Make each call that is left in a state, check its answer, and go on from there. Then undo it."""
        if (status, done) in self.seen:
            return
        self.seen.add((status, done))
        for step in STEPS:
            if step in done:
                continue
            before, rows = transaction.savepoint(), row_counts()
            answer = self.call(step, parcel)
            if self.check(answer, step, status, parcel):
                after = step if step in ALLOWED else status
                name = answer.json()["id"] if step == "created" else parcel
                self.walk(after, done | {step}, name)
            else:
                assert row_counts() == rows, (step, status)
            transaction.savepoint_rollback(before)

    def check(self, answer: Any, step: str, status: str, parcel: str) -> bool:
        """Check the answer. Return whether the call was right."""
        if step in ("delivered", "returned"):
            if not parcel:
                assert_problem(answer, 404, "not-found")
            else:
                assert answer.status_code == 200, answer.content
            return bool(parcel)
        action = {"paid": "pay", "created": "shipments", "cancelled": "cancel", "completed": "complete"}[step]
        right = ["paid", "completed"] if step == "created" else [s for s in ALLOWED if action in ALLOWED[s]]
        if status in right:
            assert answer.status_code == (201 if step == "created" else 200), answer.content
            return True
        problem = assert_problem(answer, 409, "invalid-transition")
        # A paid order that was cancelled can be refunded.
        actions = ["refund"] if status == "cancelled" and problem["allowed_actions"] else ALLOWED[status]
        assert (problem["current_status"], problem["allowed_actions"]) == (status, actions)
        listed = ", ".join(actions) or "none"
        assert problem["detail"] == (
            f"An order that is {status} cannot be changed by '{action}'. Allowed actions: {listed}."
        )
        return False


def test_each_call_in_a_wrong_order_is_the_409_of_its_status_and_changes_nothing(api: Api):
    caller = Caller(api)
    caller.walk("pending", frozenset(), "")
    assert len(caller.seen) == 17


def query(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def test_events_over_http_end_alike_in_each_order_of_arrival(api: Api, settings: Any):
    settings.FAST_PATH, settings.NOTIFY_ON = False, EMAILS
    expected = {}
    events = [step for step in STEPS if step != "completed"]
    for number, arrival in enumerate(itertools.permutations(events)):
        place = number % len(STEPS)  # where the completion comes in, which is no event over HTTP
        parts = (arrival[:place], ("completed",), arrival[place:])
        path = api.place(items=ITEMS, total_amount=1000)
        id = path.rpartition("/")[2]
        after = Expected.after(tuple(itertools.chain(*parts)))
        for part in parts:
            if part == ("completed",):
                refused = ["completed"] if api.post(f"{path}/complete").status_code == 409 else []
            elif part:
                answer = api.post("/api/v1/events", [event_of(step, id) for step in part])
                results = zip(part, answer.json()["results"], strict=True)
                refused = [step for step, result in results if result["result"] == "refused"]
            assert refused == [step for step in part if step in after.refused] if part else True, arrival
        expected[id] = after.facts()
    assert read_facts(query) == expected
