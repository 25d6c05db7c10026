"""`manage.py make_topics`: make Kafka's topics with one policy, before the first event."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from events.consuming import handlers
from events.transports import BrokerAway


def topics() -> list[str]:
    """Return every topic that orderpost writes or reads, including those of inbound dead letters."""
    incoming = sorted(handlers.subscription().read())
    return list(
        dict.fromkeys([*handlers.published_topics(), *incoming, *(f"{topic}.dlt" for topic in incoming)])
    )


def at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise ArgumentTypeError("it must be 1 or more")
    return number


class Command(BaseCommand):
    help = "Make the missing Kafka topics, and report where existing topics differ from the policy."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only report what would be made")
        for name, default, meaning in (
            ("--partitions", 6, "of each topic"),
            ("--replication-factor", 3, "how many brokers keep a copy"),
            ("--min-insync-replicas", 2, "how many copies must have an event before it counts as published"),
            ("--retention-days", 7, "how long the brokers keep an event"),
        ):
            text = f"{meaning} (default {default})"
            parser.add_argument(name, type=at_least_one, default=default, metavar="NUMBER", help=text)

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.EVENT_TRANSPORT != "kafka":
            raise CommandError("EVENT_TRANSPORT is not kafka. Redis makes a stream with its first event.")
        if options["min_insync_replicas"] > options["replication_factor"]:
            raise CommandError(
                "--min-insync-replicas must not exceed --replication-factor: the topics would take no event."
            )
        from events.transports.kafka_topics import TopicPolicy, make_topics  # needs the extra `kafka`

        policy = TopicPolicy(
            partitions=options["partitions"],
            replication_factor=options["replication_factor"],
            min_insync_replicas=options["min_insync_replicas"],
            retention_days=options["retention_days"],
        )
        failed = 0
        try:
            for topic in make_topics(topics(), policy=policy, dry_run=options["dry_run"]):
                failed += bool(topic.reason)
                made = "would be made" if options["dry_run"] else "made"
                text = topic.reason or (made if topic.is_made else "; ".join(topic.differs) or "exists")
                if topic.reason or options["verbosity"] > 0:
                    self.stdout.write(f"{topic.topic}: {text}")
        except BrokerAway as error:
            raise CommandError(f"Kafka does not answer: {error}") from error
        if failed:
            raise CommandError(f"{failed} topics could not be made. See the reasons above.")
