"""The conditions that need a person. Only `decide` finds them, from the facts that `runtime.facts` reads.

`manage.py status`, the admin's tiles and the log's error "partitions run out" show them. A condition has the
name of its alert (docker/prometheus/alerts.yml) and of its paragraph in docs/guides/alerts.md. It holds at
once, but its alert fires some minutes later.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django.conf import settings

from outbox.gate.breaker import State

if TYPE_CHECKING:
    from runtime.database.partitioned import Interval

#: The tag of the checks whose warnings the admin's first page shows.
PRODUCTION = "production"

Code = Literal[
    "Paused", "BrokerDown", "EmailProvidersDown", "EmailProviderDown", "EmailBreakerForced", "PollMissing",
    "EmailDeadLetters", "EmailOverdue", "EmailProcessingStuck", "DeadEvents", "RelayBlocked", "RelayLag",
    "ConsumerLag", "JobsFailed", "SumsLate", "UpkeepLate", "PartitionsRunOut", "PartitionHeld",
    "ArchiveOverdue", "DatabaseConnectionsLow", "OrdersStuck",
]  # fmt: skip
#: The conditions that hold if the number is below the limit. All others hold if it is above.
BELOW: set[Code] = {"PartitionsRunOut", "DatabaseConnectionsLow"}
HOUR, DAY = 3600.0, 86_400.0
#: By orders.models.STUCK.
STUCK_WORDS = {
    "unconfirmed": "paid orders are neither confirmed, completed nor cancelled",
    "unpaid": "orders have reserved stock and are not paid",
    "unrefunded": "cancelled orders were paid and are not fully refunded",
}
#: Seconds without a heartbeat of keep_partitions: its interval of a day plus some hours.
UPKEEP_LATE_SECONDS = 100_000.0
#: The smallest sufficient number of partitions after the current one.
AHEAD_ALARM: dict[Interval, int] = {"month": 2, "day": 14}


class Condition(NamedTuple):
    """A state that needs a person, because `number` is beyond `limit`."""

    code: Code
    subject: str  # the provider, topic, table or part; "" if there is only one
    number: float
    limit: float
    sentence: str


class Rows(NamedTuple):
    """The unfinished rows of one table."""

    pending: int = 0
    failed: int = 0
    held: int = 0  # the failed ones that wait for evidence of an acceptance
    due_seconds: float = 0.0  # since the longest-waiting row became due
    waiting_seconds: float = 0.0  # since the oldest row that is not held was written or resent
    processing: int = 0
    claimed_seconds: float = 0.0  # since the oldest current claim
    processing_seconds: float = 0.0  # since the oldest row in processing was written or resent
    dead_lettered: int = 0

    @property
    def unfinished_seconds(self) -> float:
        """Seconds since the oldest unfinished row that is neither held nor dead was written or resent."""
        return max(self.waiting_seconds, self.processing_seconds)


class Events(NamedTuple):
    """The domain events that are not published, and the received ones that could not be processed."""

    unpublished: int = 0
    unpublished_seconds: float = 0.0  # since the oldest of them was written
    blocked_keys: int = 0
    dead: int = 0
    dead_inbound: int = 0


class Stuck(NamedTuple):
    """The orders that are stuck in one state (orders.models.STUCK)."""

    orders: int
    oldest_seconds: float  # since the oldest of them came into the state


class Stock(NamedTuple):
    """The partitions of one table."""

    table: str
    interval: Interval
    partitions_ahead: int  # after the current one, without a gap; -1 if even that is missing
    partitions_ahead_seconds: float  # until the last of them ends
    archive_overdue: int = 0  # partitions past their warm days and not archived
    archive_overdue_seconds: float = 0.0  # since the warm days of the oldest of them ended


class Connections(NamedTuple):
    """The client connections of the whole server."""

    by_state: dict[str, int]
    left: int
    oldest_transaction_seconds: float  # of the sessions that this role may see


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts for `decide`. The defaults of a part that was not read fulfil no condition."""

    paused: Sequence[Mapping[str, Any]] = ()  # part, seconds since then, user, reason
    #: By provider: the breaker's state, and the state forced by a person. None if Valkey does not answer.
    providers: Mapping[str, tuple[State, str | None]] | None = dataclasses.field(default_factory=dict)
    is_kafka_away: bool = False
    #: Seconds since each regular job last ran. A job that never ran is not late, except the poll.
    jobs: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"poll": 0.0})
    rows: Mapping[str, Rows] = dataclasses.field(default_factory=dict)  # by table
    events: Events = dataclasses.field(default_factory=Events)
    failed_jobs: int = 0
    holding: int = 0  # unfinished rows in partitions past their hot days
    lags: Sequence[tuple[str, int, float]] = ()  # each an events.transports.Lag
    stuck: Mapping[str, Stuck] = dataclasses.field(default_factory=dict)  # by state
    stocks: Sequence[Stock] = ()
    connections: Connections = dataclasses.field(default_factory=lambda: Connections({}, 1, 0.0))


def decide(facts: Facts) -> list[Condition]:
    """Return the conditions that hold, the most severe first."""
    both = ((one, one.number - one.limit) for one in _all(facts))
    return [one for one, beyond in both if (beyond < 0 if one.code in BELOW else beyond > 0)]


def _brokers(facts: Facts) -> Iterator[Condition]:
    sentence = "Valkey does not answer: start it again; the standby sends meanwhile"
    yield Condition("BrokerDown", "redis", facts.providers is None, 0, sentence)
    sentence = "Kafka does not answer: start it again; e-mails are sent meanwhile"
    yield Condition("BrokerDown", "kafka", facts.is_kafka_away, 0, sentence)


def _all(facts: Facts) -> Iterator[Condition]:
    for pause in facts.paused:
        sentence = "{part} is paused by {by} ({reason}): see `manage.py resume`".format(**pause)
        yield Condition("Paused", pause["part"], 1, 0, sentence)
    yield from _brokers(facts)
    providers = facts.providers or {}
    takes_mail = any(state is State.CLOSED for state, _ in providers.values())
    sentence = "no provider accepts e-mails: the reason is below; no e-mail is lost"
    yield Condition("EmailProvidersDown", "", bool(providers) and not takes_mail, 0, sentence)
    for name, (state, forced) in providers.items():
        failing = takes_mail and state is State.OPEN and not forced
        sentence = f"{name} accepts no e-mails, so other providers send them: the reason is below"
        yield Condition("EmailProviderDown", name, failing, 0, sentence)
    polled = facts.jobs.get("poll", math.inf)
    sentence = "no process polls: start worker and beat, or `manage.py drain_outbox --loop`"
    yield Condition("PollMissing", "", polled, max(180.0, 3 * settings.POLL_INTERVAL), sentence)
    for table, rows in facts.rows.items():
        sentence = f"{rows.dead_lettered} dead letters: resend them or give them up"
        yield Condition("EmailDeadLetters", table, rows.dead_lettered, 0, sentence)
        sentence = "an e-mail is unfinished for more than an hour"
        yield Condition("EmailOverdue", table, rows.unfinished_seconds, HOUR, sentence)
        lease = settings.LEASE_SECONDS + 2 * settings.POLL_INTERVAL
        sentence = "a claim is older than its lease, and no poll recovers it"
        yield Condition("EmailProcessingStuck", table, rows.claimed_seconds, lease, sentence)
    events = facts.events
    sentence = f"{events.dead} dead events hold others back: republish or discard them"
    yield Condition("DeadEvents", "out", events.dead, 0, sentence)
    sentence = f"{events.dead_inbound} inbound dead letters: replay or discard them"
    yield Condition("DeadEvents", "in", events.dead_inbound, 0, sentence)
    for name, stuck in facts.stuck.items():
        sentence = f"{stuck.orders} {STUCK_WORDS[name]}: see Orders in the admin, stuck: {name}"
        yield Condition("OrdersStuck", name, stuck.orders, 0, sentence)
    sentence = f"{facts.failed_jobs} background jobs failed: restart or stop them in the admin, under Jobs"
    yield Condition("JobsFailed", "", facts.failed_jobs, 0, sentence)
    sentence = f"events of {events.blocked_keys} orders wait behind a refused one: see Events in the admin"
    yield Condition("RelayBlocked", "", events.blocked_keys, 0, sentence)
    sentence = "events have waited for more than a minute: check the relay and the broker"
    yield Condition("RelayLag", "", events.unpublished_seconds, 60, sentence)
    for topic, _, seconds in facts.lags:
        sentence = f"messages of {topic} have waited for more than a minute: check their consumer"
        yield Condition("ConsumerLag", topic, seconds, 60, sentence)
    for name, (_, forced) in providers.items():
        yield Condition("EmailBreakerForced", name, forced is not None, 0, f"{name} is forced {forced}")
    for stock in facts.stocks:
        sentence = f"{stock.table} has partitions for {stock.partitions_ahead_seconds // DAY:.0f} days"
        limit = AHEAD_ALARM[stock.interval]
        yield Condition("PartitionsRunOut", stock.table, stock.partitions_ahead, limit, sentence)
        sentence = f"{stock.table}: archives are overdue"
        yield Condition("ArchiveOverdue", stock.table, stock.archive_overdue_seconds, 2 * DAY, sentence)
    sentence = f"{facts.holding} unfinished rows hold a partition: finish them, so that it is detached"
    yield Condition("PartitionHeld", "", facts.holding, 0, sentence)
    sentence = "the charts are not summed: check beat and worker"
    yield Condition("SumsLate", "", facts.jobs.get("sums", 0.0), 300, sentence)
    sentence = "keep_partitions has not run for a day: start it"
    yield Condition("UpkeepLate", "", facts.jobs.get("partitions", 0.0), UPKEEP_LATE_SECONDS, sentence)
    total = facts.connections.left + sum(facts.connections.by_state.values())
    sentence = f"only {facts.connections.left} connections to PostgreSQL are left"
    yield Condition("DatabaseConnectionsLow", "", facts.connections.left, total / 10, sentence)
