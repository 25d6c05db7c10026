"""Claim, send, settle, until nothing is due: the loop that every trigger ends in.

Knows neither what is sent nor how. Sends run in threads of `pool` and touch no database; claiming and
settling happen in the calling thread. A send that hangs holds back only itself. Called by an app's
delivery module, which brings the sender and sees to it that a process runs one drain at a time.
"""

from __future__ import annotations

import dataclasses
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from outbox.delivery.deliverable import Change, Deliverable, DeliverableQuerySet, Settlement
from outbox.delivery.outcomes import Outcome, Status, Verdict

log = structlog.get_logger(__name__)

SETTLE_ROWS = 20
SETTLE_SECONDS = 0.1
SHORT_PAUSE = 5.0  # what a drain waits out itself before it claims again; a longer one ends it

Row = TypeVar("Row", bound=Deliverable)


@dataclasses.dataclass(slots=True)
class Drained:
    """What a drain did. `pause`: seconds until somebody may be asked again; `more`: rows were left."""

    claimed: int = 0
    settled: int = 0
    pause: float = 0.0
    more: bool = False


def drain(
    *,
    rows: DeliverableQuerySet[Row],
    send: Callable[[Row], Outcome],
    pool: Executor,
    concurrency: int,
    batch_size: int,
    lease: float,
    send_timeout: float,
    seconds: float,
    room: Callable[[], tuple[int, float]] | None = None,
    screen: Callable[[Sequence[Row]], Mapping[object, Outcome]] = lambda rows: {},
    should_stop: Callable[[], bool] = lambda: False,
    look_again: Callable[[], bool] = lambda: False,
    on_changes: Callable[[Sequence[Change]], None] = lambda changes: None,
) -> Drained:
    """This function will send what is due, `concurrency` at a time, and write what became of it.

    Times in seconds. No row is claimed after `seconds`, or once `should_stop`; what was claimed and not
    yet started is then given back. `send_timeout` bounds one send: none starts with less than that left of
    its lease. `room` says how many rows are worth claiming now, or 0 and in how many seconds to come again;
    `screen` names the outcome of claimed rows that must not be sent. `look_again` answers whether a trigger
    came since it was last asked. `on_changes` gets every committed change of state. Outcomes are settled at
    20 rows or 0.1 s, so that a crash can double few.
    Raises the database's error when claiming fails, after settling what is in flight.
    """
    done = Drained()
    todo: deque[tuple[Row, float]] = deque()  # claimed, with the last moment to start sending
    flying: dict[object, float] = {}  # being sent: id -> when its lease ends
    finished: queue.SimpleQueue[tuple[Row, Outcome]] = queue.SimpleQueue()
    unsettled: list[Settlement] = []
    oldest = ends = time.monotonic()
    ends += seconds
    patience: float | None = None  # how long a closing drain waits for sends in flight
    looking = True
    refused: DatabaseError | None = None

    def fly(row: Row) -> None:
        try:
            finished.put((row, send(row)))
        except Exception as error:  # a sender's bug must not lose the row's outcome
            log.exception("sender failed", id=str(row.id))
            finished.put((row, Outcome(Verdict.AMBIGUOUS, code=type(error).__name__, text=str(error))))

    def give_back(row: Row) -> None:
        unsettled.append(Settlement(row.id, Outcome(Verdict.RETURNED), row.claim_token))

    def claim(limit: int) -> None:
        nonlocal looking
        claimed_at = time.monotonic()
        batch = rows.claim(limit=limit)
        ends_here = screen(batch) if batch else {}
        # The quarter for first attempts stays empty when only retries are due: that is not the end.
        looking = len(batch) >= limit - limit // 4
        done.claimed += len(batch)
        on_changes([Change(row, row.was, Status.PROCESSING) for row in batch])
        for row in batch:
            if (outcome := ends_here.get(row.id)) is not None:
                unsettled.append(Settlement(row.id, outcome, row.claim_token))
            else:
                todo.append((row, claimed_at + lease - send_timeout))

    while True:
        now = time.monotonic()
        closing = bool(refused or done.pause or now >= ends or should_stop())
        looking = look_again() or looking
        if closing:
            patience = patience or now + send_timeout
            while todo:
                give_back(todo.popleft()[0])
        elif looking and not todo and len(flying) < concurrency:
            limit, pause = room() if room else (batch_size, 0.0)
            if limit:
                try:
                    claim(limit)
                except DatabaseError as error:
                    refused = error
                    continue
            elif pause > SHORT_PAUSE:
                done.pause = pause
                continue
            elif not flying:
                time.sleep(min(pause, SETTLE_SECONDS))
        while todo and len(flying) < concurrency:
            row, last_start = todo.popleft()
            if time.monotonic() > last_start:
                give_back(row)
                continue
            flying[row.id] = last_start + send_timeout
            pool.submit(fly, row)

        if flying:
            try:
                row, outcome = finished.get(timeout=SETTLE_SECONDS)
            except queue.Empty:
                pass
            else:
                flying.pop(row.id, None)
                if not unsettled:
                    oldest = time.monotonic()
                unsettled.append(Settlement(row.id, outcome, row.claim_token))
        due = time.monotonic() - oldest > SETTLE_SECONDS or not flying
        if unsettled and (len(unsettled) >= SETTLE_ROWS or due):
            changes = settle_surely(rows=rows, settlements=unsettled, until=now + lease)
            done.settled += len(changes)
            on_changes(changes)
            unsettled = []
        if not flying and not todo and not unsettled and (closing or not looking):
            done.more = closing and looking and not done.pause
            break
        if patience and flying and not unsettled and time.monotonic() > patience:
            log.error("sends left behind, their leases will expire", count=len(flying))
            break
    if refused:
        connections[rows.db].close()
        raise refused
    return done


def settle_surely(
    *, rows: DeliverableQuerySet[Row], settlements: Sequence[Settlement], until: float
) -> list[Change]:
    """This function will settle, trying again while the database is away, until `until` (monotonic).

    A row that the database refuses is logged and left to its lease; it does not take the others with it.
    """
    wait = 0.05
    while True:
        try:
            changes = rows.settle(settlements)
        except (OperationalError, InterfaceError) as error:
            connections[rows.db].close()
            if time.monotonic() + wait > until:
                log.error("outcomes lost, their leases will expire", count=len(settlements), error=str(error))
                return []
            log.warning("settling failed, trying again", error=str(error), seconds=wait)
            time.sleep(wait)
            wait = min(wait * 2, 2.0)
        except DatabaseError:
            if len(settlements) == 1:
                log.exception("an outcome cannot be written", id=str(settlements[0].id))
                return []
            singly = [settle_surely(rows=rows, settlements=[one], until=until) for one in settlements]
            return [change for changes in singly for change in changes]
        else:
            changed = {change.row.id for change in changes}
            for stale in (one for one in settlements if one.id not in changed):
                log.warning(
                    "lease lost, outcome dropped", id=str(stale.id), outcome=str(stale.outcome.verdict)
                )
            return changes
