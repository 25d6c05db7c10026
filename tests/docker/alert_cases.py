"""What the tests of the alert rules play: for each alert, series that make it fire and let it end."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One alert and the series that make it fire and let it end.

    `series`: each with its values, one for each `interval`, in promtool's notation. `silent`: the times at
    which it must not fire. `fires`: the times at which it must, each with the description that it then has.
    """

    alert: str
    series: Mapping[str, str]
    silent: str
    fires: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    story: str = ""
    interval: str = "1m"
    evaluation: str = "15s"

    def __str__(self) -> str:
        return f"{self.alert} {self.story}".strip()

    @property
    def ends(self) -> bool:
        """Whether the last check is one of silence."""
        return _minutes(self.silent.split()[-1]) > max(map(_minutes, self.fires), default=0)


def _minutes(duration: str) -> float:
    parts = re.findall(r"(\d+)([dhms])", duration)
    return sum(int(number) * {"d": 1440, "h": 60, "m": 1, "s": 1 / 60}[unit] for number, unit in parts)


EMAILS = 'table="email_notifications"'
ROLES = ("worker", "beat", "standby", "relay", "consumer", "partitions")
#: Every metric that `MetricMissing` looks for.
WATCHED = (
    "orderpost_database_up",
    "orderpost_broker_up",
    "orderpost_email_attempts_total",
    "orderpost_unfinished",
    "orderpost_oldest_unfinished_seconds",
    "orderpost_oldest_processing_seconds",
    "orderpost_relay_lag_seconds",
    "orderpost_relay_blocked_keys",
    "orderpost_dead_events",
    "orderpost_partitions_ahead_seconds",
    "orderpost_archive_overdue_seconds",
    "orderpost_database_connections_left",
    "orderpost_breaker_state",
    "orderpost_breaker_forced",
    "orderpost_consumer_lag_seconds",
)


def unfinished(**counts: str) -> dict[str, str]:
    return {
        f'orderpost_unfinished{{{EMAILS}, status="{status}"}}': values for status, values in counts.items()
    }


def attempts(*, provider: str = "ses", **outcomes: str) -> dict[str, str]:
    name = "orderpost_email_attempts_total"
    return {f'{name}{{provider="{provider}", outcome="{key}"}}': values for key, values in outcomes.items()}


def feedback(**events: str) -> dict[str, str]:
    name = "orderpost_email_feedback_total"
    return {f'{name}{{provider="ses", event="{event}"}}': values for event, values in events.items()}


def requests(**statuses: str) -> dict[str, str]:
    name = "orderpost_http_request_duration_seconds_count"
    return {
        f'{name}{{operation="pay_order", status="{status[1:]}"}}': values
        for status, values in statuses.items()
    }


def opened(**providers: str) -> dict[str, str]:
    name = "orderpost_breaker_state"
    return {f'{name}{{provider="{key}", state="open"}}': values for key, values in providers.items()}


def oldest(values: str, *, kind: str = "unfinished") -> dict[str, str]:
    return {f"orderpost_oldest_{kind}_seconds{{{EMAILS}}}": values}


def paused(part: str, values: str) -> dict[str, str]:
    return {f'orderpost_paused{{part="{part}"}}': values}


def sent(values: str) -> dict[str, str]:
    return {'orderpost_email_changes_total{event_type="order.paid", status="sent"}': values}


def up(**roles: str) -> dict[str, str]:
    """Show all processes; `roles` are not, or are late."""
    values = dict.fromkeys(ROLES, "1x30") | roles
    return {
        f'orderpost_build_info{{job="orderpost", role="{role}"}}': value for role, value in values.items()
    }


def shown(**changed: str) -> dict[str, str]:
    """All watched metrics are shown; `changed` are not, or are not there at all if they have no values."""
    values = dict.fromkeys(WATCHED, "1x60") | changed
    return {name: value for name, value in values.items() if value}


NO_WEB = "Prometheus has reached no web process for a minute. Orders can be neither placed nor changed."
NO_DATABASE = (
    "No web process has got an answer from PostgreSQL for a minute. The API answers 503, and nothing is sent."
)
NO_POLL = (
    "Nobody has polled the e-mail table for 3 minutes. What a wake-up misses is not sent, and nobody takes"
    " expired claims back."
)
NO_BROKER = (
    "No web process has got an answer from redis for a minute. Events wait. Without Valkey, e-mails leave by"
    " the standby, once a minute."
)

ALL_OPEN = "Every circuit breaker has been open for 5 minutes; 7 e-mails wait."

API = [
    Case(
        "ApiDown",
        {'up{job="orderpost", role="web"}': "1x4 0x10 1x5"},
        silent="5m 5m45s 16m",
        fires={"6m": NO_WEB, "15m": NO_WEB},
    ),
    Case(
        "ApiDown",
        {'up{job="orderpost", role="web"}': "_x10 1x5", 'up{job="orderpost", role="worker"}': "1x10"},
        story="when there is no web process to be found",
        silent="45s 10m",
        fires={"1m": NO_WEB, "9m": NO_WEB},
    ),
    Case(
        "DatabaseDown",
        {
            'orderpost_database_up{instance="a"}': "1x4 0x10 1x5",
            'orderpost_database_up{instance="b"}': "1x6 0x8 1x5",
        },
        silent="6m 7m45s 16m",
        fires={"8m": NO_DATABASE, "14m": NO_DATABASE},
    ),
    Case(
        "ApiErrors",
        requests(_200="0+90x40", _503="0x10 10+10x9 100x20"),
        silent="10m 11m30s 30m",
        fires={"18m": "10% of the API requests of the last 5 minutes were answered with a 5xx."},
    ),
    Case(
        "ApiErrors",
        requests(_200="0x60", _500="0x10 1 1 2 2 3x30"),
        story="but not for three requests in a quiet night",
        silent="12m 15m 20m",
    ),
]

SENDING = [
    Case(
        "EmailSuccessRateLow",
        attempts(accepted="0+60x10 612+12x9 780+60x30", transient="0x10 48+48x9 480x30"),
        silent="10m 14m 15m 30m",
        fires={"17m": "Only 20% of the sends of the last 5 minutes succeeded."},
    ),
    Case(
        "EmailSuccessRateLow",
        attempts(accepted="0+92x60", transient="0+8x60"),
        story="not at 92 %",
        silent="9m 60m",
    ),
    Case(
        "EmailSuccessRateLow",
        attempts(accepted="0x60", transient="0+1x60"),
        story="but not for one e-mail that nobody takes",
        silent="10m 30m 60m",
    ),
    Case(
        "EmailSuccessRateLow",
        attempts(accepted="0+10x60", throttled="0+90x60"),
        story="but not for the answer 429",
        silent="10m 30m 60m",
    ),
    Case(
        "EmailProvidersDown",
        unfinished(pending="0x4 7x30", dead_lettered="3x35")
        | opened(sendgrid="0x2 1x20 0x10", ses="0x6 1x17 0x10"),
        silent="7m 11m45s 25m",
        fires=dict.fromkeys(("12m", "22m"), ALL_OPEN),
    ),
    Case(
        "EmailProvidersDown",
        unfinished(pending="0x30", dead_lettered="3x30") | opened(sendgrid="1x30"),
        story="but not while nothing waits",
        silent="10m 30m",
    ),
    Case(
        "EmailNothingSent",
        oldest("0x9 0+60x25 0x10") | sent("0+5x10 50x35"),
        silent="10m 25m45s 26m 37m",
        fires={
            "27m": "No e-mail was sent for 15 minutes, and one has been waiting for 17m 0s.",
            "35m": "No e-mail was sent for 15 minutes, and one has been waiting for 25m 0s.",
        },
    ),
    Case(
        "EmailNothingSent",
        oldest("0+60x40 0x5") | sent("0+5x5 stale"),
        story="when the workers' metrics are gone",
        silent="15m 20m 42m",
        fires={
            "22m": "No e-mail was sent for 15 minutes, and one has been waiting for 22m 0s.",
            "40m": "No e-mail was sent for 15 minutes, and one has been waiting for 40m 0s.",
        },
    ),
    Case(
        "EmailNothingSent",
        oldest("0+60x60") | sent("0x9 1x9 2x9 3x9 4x9 5x9"),
        story="but not while one is sent now and then",
        silent="20m 40m 55m",
    ),
    Case(
        "EmailNothingSent",
        oldest("0+60x60 0x5") | sent("0x70") | paused("delivery", "1x30 0x40") | paused("relay", "1x70"),
        story="of what a pause holds back only 15 minutes after its end",
        silent="17m 30m 45m 46m 62m",
        fires={"47m": "No e-mail was sent for 15 minutes, and one has been waiting for 47m 0s."},
    ),
    Case(
        "EmailProviderDown",
        opened(sendgrid="0x1 1x30 0x5", ses="0x40"),
        labels={"provider": "sendgrid"},
        silent="2m 16m45s 34m",
        fires=dict.fromkeys(("17m", "32m"), "The circuit breaker of sendgrid has been open for 15 minutes."),
    ),
    Case(
        "EmailBacklog",
        unfinished(pending="1000x2 1200x5 10x5"),
        silent="4m 4m45s 10m",
        fires=dict.fromkeys(("5m", "8m"), "1.2k e-mails wait to be sent (counted to 10,000)."),
    ),
    Case(
        "EmailBacklog",
        unfinished(pending="2000x60 10x5") | paused("delivery", "1x10 0x60"),
        story="of what a pause holds back only 15 minutes after its end",
        silent="5m 25m 26m 62m",
        fires={"28m": "2k e-mails wait to be sent (counted to 10,000)."},
    ),
    Case(
        "EmailOverdue",
        oldest("3480+60x5 0x5"),
        silent="2m 3m45s 7m",
        fires={"5m": "The oldest e-mail that is neither sent nor held is 1h 3m 0s old."},
    ),
    Case(
        "EmailOverdue",
        oldest("3480+60x40 0x5") | paused("delivery", "0x1 1x10 0x40") | paused("relay", "1x60"),
        story="of what a pause holds back only 15 minutes after its end",
        silent="5m 11m 26m 27m 42m",
        fires={"29m": "The oldest e-mail that is neither sent nor held is 1h 27m 0s old."},
    ),
    Case(
        "EmailsLate",
        {
            'orderpost_email_commit_to_sent_seconds_bucket{le="60"}': "0+60x5 300x30 300+60x20",
            'orderpost_email_commit_to_sent_seconds_bucket{le="120"}': "0+60x60",
            'orderpost_email_commit_to_sent_seconds_bucket{le="+Inf"}': "0+60x60",
        },
        silent="5m 15m 50m",
        fires={
            "20m": "Of the e-mails sent in the last 5 minutes, 5 % took 1m 57s or more"
            " from the change of the order."
        },
    ),
    Case(
        "EmailProcessingStuck",
        oldest("0+60x12 0x5", kind="processing"),
        silent="5m 6m 7m 15m",
        fires={"8m": "The oldest claim is 8m 0s old: nobody takes expired claims back."},
    ),
    Case(
        "EmailProcessingStuck",
        oldest("0+60x40 0x5", kind="processing") | paused("delivery", "1x10 0x60"),
        story="of what a pause holds back only 15 minutes after its end",
        silent="9m 25m 26m 42m",
        fires={"28m": "The oldest claim is 28m 0s old: nobody takes expired claims back."},
    ),
    Case(
        "EmailDeadLetters",
        unfinished(dead_lettered="0x1 3x15 0x5"),
        silent="2m 11m45s 19m",
        fires=dict.fromkeys(("12m", "17m"), "3 e-mails are not tried again until somebody decides."),
    ),
    Case(
        "EmailBreakerForced",
        {
            'orderpost_breaker_forced{provider="ses", to="closed"}': "0x1 1x15 0x5",
            'orderpost_breaker_forced{provider="ses", to="open"}': "0x30",
        },
        labels={"provider": "ses", "to": "closed"},
        silent="2m 11m45s 19m",
        fires={
            "12m": "Somebody has forced the circuit breaker of ses closed. It does not decide itself until"
            " that is taken back."
        },
    ),
    Case(
        "Paused",
        paused("relay", "0x1 1x70 0x5") | paused("delivery", "0x90"),
        labels={"part": "relay"},
        silent="2m 60m 75m",
        fires={"65m": "Somebody has paused relay more than an hour ago, and has not resumed it."},
    ),
]

FEEDBACK = [
    Case(
        "EmailBounceRateHigh",
        attempts(accepted="0+5x600") | feedback(bounced="0x120 0+5x24 120x480"),
        labels={"provider": "ses"},
        interval="5m",
        evaluation="5m",
        silent="10m 1h 10h30m 2d",
        fires={
            "15h": "13.33% of the e-mails that ses took in a day bounced. Amazon SES reviews an account at"
            " 5 % and pauses it at 10 %."
        },
    ),
    Case(
        "EmailComplaintRateHigh",
        attempts(accepted="0+10x600") | feedback(complained="0x120 0 1 2 3x480"),
        labels={"provider": "ses"},
        interval="5m",
        evaluation="5m",
        silent="5h 10h10m 2d",
        fires={
            "15h": "0.1667% of the e-mails that ses took in a day were reported as spam. Gmail and Amazon SES"
            " want less than 0.1 %."
        },
    ),
    Case(
        "EmailWebhooksSilent",
        attempts(accepted="0+1x300")
        | attempts(provider="smtp", accepted="0+1x300")
        | {'orderpost_webhooks_total{provider="ses", result="accepted"}': "0+1x30 30x100 30+1x100"}
        | {'orderpost_webhooks_total{provider="ses", result="unsigned"}': "0x30 0+1x100 100x100"},
        labels={"provider": "ses"},
        silent="20m 1h30m 2h20m",
        fires={"2h": "ses took 60 e-mails in the last hour and has posted no event about any."},
    ),
]

PROCESSES = [
    Case(
        "ProcessGone",
        up(worker="1x4 stale _x10 1x10"),
        labels={"role": "worker"},
        silent="5m 6m45s 16m",
        fires=dict.fromkeys(("7m", "15m"), "Prometheus has reached no worker process for 2 minutes."),
    ),
    Case(
        "ProcessGone",
        up(relay="_x10 1x10"),
        labels={"role": "relay"},
        story="when it is not to be found",
        silent="1m45s 11m",
        fires={"2m": "Prometheus has reached no relay process for 2 minutes."},
    ),
    Case(
        "ProcessHangs",
        {
            'orderpost_loop_age_seconds{role="relay", instance="a"}': "5x20",
            'orderpost_loop_age_seconds{role="relay", instance="b"}': "5x2 60+60x8 5x5",
            'orderpost_loop_age_seconds{role="partitions"}': "3600x20",
        },
        labels={"role": "relay"},
        silent="4m 5m45s 13m",
        fires={"7m": "The loop of a relay process last went round 5m 0s ago."},
    ),
    Case(
        "PollMissing",
        {
            'orderpost_heartbeat_age_seconds{name="poll"}': "30x4 60+60x9 10x5",
            'orderpost_heartbeat_age_seconds{name="standby"}': "5x4 30+60x9 5x5",
        },
        silent="7m 8m 8m45s 16m",
        fires={"9m": NO_POLL, "14m": NO_POLL},
    ),
    Case(
        "PollMissing",
        {
            'orderpost_heartbeat_age_seconds{name="poll"}': "30+60x20",
            'orderpost_heartbeat_age_seconds{name="standby"}': "5x20",
        },
        story="but not while the standby runs",
        silent="10m 20m",
    ),
    Case(
        "PollMissing",
        {"orderpost_database_up": "1x20", 'orderpost_heartbeat_age_seconds{name="poll"}': "_x10 1x10"},
        story="when nobody ever polled",
        silent="45s 11m",
        fires={"1m": NO_POLL},
    ),
    Case(
        "FollowerGone",
        {'orderpost_heartbeat_age_seconds{name="follower"}': "5x4 30+60x9 5x5"},
        silent="5m 6m45s 16m",
        fires={
            "7m": "No follower has followed the WAL for 2m 30s. E-mails leave by the fast path and the poll."
        },
    ),
    Case(
        "ReplicationSlotUnread",
        {
            'orderpost_replication_slot_active{slot="orderpost_debezium"}': "1x4 0x3 1x2 0x8 1x5",
            'orderpost_replication_slot_active{slot="another"}': "1x30",
        },
        labels={"slot": "orderpost_debezium"},
        silent="4m 8m45s 16m45s 22m",
        fires={
            "18m": "Nobody has read the slot orderpost_debezium for 5 minutes."
            " PostgreSQL keeps WAL for it, and its reader tells of no e-mail."
        },
    ),
    Case(
        "ReplicationSlotBehind",
        {
            'orderpost_replication_slot_kept_bytes{slot="orderpost_debezium"}': (
                "500000000x4 1073741824x2 1610612736x8 1000x5"
            ),
        },
        labels={"slot": "orderpost_debezium"},
        silent="6m 11m45s 17m",
        fires={"13m": "The slot orderpost_debezium keeps 1.5GiB of WAL on PostgreSQL's disk."},
    ),
    Case(
        "BrokerDown",
        {'orderpost_broker_up{broker="redis"}': "1x4 0x10 1x5"},
        labels={"broker": "redis"},
        silent="5m 5m45s 16m",
        fires={"6m": NO_BROKER, "15m": NO_BROKER},
    ),
    *(
        Case(
            "MetricMissing",
            shown(**{name: "1x4 stale _x10 1x5"}),
            labels={"metric": name},
            story=name,
            evaluation="1m",
            silent="5m 9m 17m",
            fires={
                "10m": f"No process has shown {name} for 5 minutes, so an alert that needs it cannot fire."
            },
        )
        for name in WATCHED
    ),
    Case(
        "MetricMissing",
        shown(orderpost_unfinished="", orderpost_dead_events="", orderpost_database_up="0x60"),
        story="but not what a database that is down would show",
        silent="10m 30m",
    ),
]

EVENTS = [
    Case(
        "ConsumerLag",
        {
            'orderpost_consumer_lag_seconds{topic="payment.payment.succeeded.v1"}': "0x1 60 90 150 210 0x5",
            'orderpost_consumer_lag_seconds{topic="warehouse.stock.reserved.v1"}': "0x20",
        },
        labels={"topic": "payment.payment.succeeded.v1"},
        silent="2m 3m45s 6m",
        fires={
            "5m": "The oldest event of payment.payment.succeeded.v1 that our consumers have not processed"
            " is 3m 30s old."
        },
    ),
    Case(
        "ConsumerLag",
        {'orderpost_consumer_lag_seconds{topic="warehouse.stock.reserved.v1"}': "0+60x40 0x5"}
        | paused("consumers", "1x10 0x60"),
        labels={"topic": "warehouse.stock.reserved.v1"},
        story="of what a pause holds back only 15 minutes after its end",
        silent="5m 25m 42m",
        fires={
            "27m": "The oldest event of warehouse.stock.reserved.v1 that our consumers have not processed"
            " is 27m 0s old."
        },
    ),
    Case(
        "RelayLag",
        {"orderpost_relay_lag_seconds": "0x1 60 90 150 210 270 0x5"},
        silent="3m 4m45s 7m",
        fires={"5m": "The oldest event that is not published is 3m 30s old."},
    ),
    Case(
        "RelayLag",
        {"orderpost_relay_lag_seconds": "0+60x40 0x5"} | paused("relay", "1x10 0x60"),
        story="of what a pause holds back only 15 minutes after its end",
        silent="5m 25m 26m 42m",
        fires={"28m": "The oldest event that is not published is 28m 0s old."},
    ),
    Case(
        "RelayBlocked",
        {"orderpost_relay_blocked_keys": "0x1 2x10 0x5"},
        silent="2m 6m45s 13m",
        fires={"7m": "The later events of 2 orders wait behind one that the broker refused."},
    ),
    Case(
        "DeadEvents",
        {
            'orderpost_dead_events{direction="in"}': "0x1 2x15 0x5",
            'orderpost_dead_events{direction="out"}': "0x20",
        },
        labels={"direction": "in"},
        silent="2m 11m45s 18m",
        fires={"12m": "2 events (in) are not tried again until somebody decides."},
    ),
]

DATA = 'instance="db", mountpoint="/var/lib/postgresql", fstype="ext4"'
TMP = 'instance="db", mountpoint="/tmp", fstype="tmpfs"'

DATABASE = [
    Case(
        "PartitionsRunOut",
        {
            'orderpost_partitions_ahead_seconds{table="outbox_events"}': "604800x1 518400x10 3024000x5",
            'orderpost_partitions_ahead_seconds{table="email_notifications"}': "15552000x30",
        },
        labels={"table": "outbox_events"},
        silent="2m 6m45s 14m",
        fires={
            "7m": "Rows of outbox_events fit no partition in 6d 0h 0m 0s, and changes of orders then fail."
        },
    ),
    Case(
        "ArchiveOverdue",
        {'orderpost_archive_overdue_seconds{table="email_notifications"}': "172800x1 259200x10 0x5"},
        labels={"table": "email_notifications"},
        silent="2m 6m45s 14m",
        fires={"7m": "A partition of email_notifications should have been archived 3d 0h 0m 0s ago."},
    ),
    Case(
        "DatabaseConnectionsLow",
        {
            "orderpost_database_connections_left": "20x1 5x10 40x5",
            'orderpost_database_connections{state="active"}': "10x20",
            'orderpost_database_connections{state="idle"}': "85x20",
        },
        silent="2m 6m45s 14m",
        fires={"7m": "Only 5% of the connections are left."},
    ),
    Case(
        "DiskNearlyFull",
        {
            f"node_filesystem_{kind}_bytes{{{disk}}}": values
            for disk, kind, values in (
                (DATA, "avail", "20x1 8x10 20x5"),
                (DATA, "size", "100x20"),
                (TMP, "avail", "1x20"),
                (TMP, "size", "100x20"),
            )
        },
        labels={"instance": "db", "mountpoint": "/var/lib/postgresql"},
        silent="2m 6m45s 14m",
        fires={"7m": "Only 8% of /var/lib/postgresql on db is left."},
    ),
]

CASES = [*API, *SENDING, *FEEDBACK, *PROCESSES, *EVENTS, *DATABASE]
