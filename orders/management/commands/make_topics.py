"""`manage.py make_topics`: make Kafka's topics before the first event, by the policy of KAFKA_TOPIC_…."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from notifications.models import TOPICS as EMAIL_TOPICS
from orders.events import EVENTS
from orders.handlers import subscribed
from outbox.events.transports import BrokerAway


def topics() -> list[str]:
    """Return every topic that orderpost writes or reads, its inbound dead letters' among them."""
    outgoing = [event.topic for event in EVENTS.values()]
    emails = list(EMAIL_TOPICS.values()) if settings.EMAIL_EVENTS else []
    incoming = sorted(subscribed())
    return list(dict.fromkeys([*outgoing, *emails, *incoming, *(f"{topic}.dlt" for topic in incoming)]))


class Command(BaseCommand):
    help = "Make the Kafka topics that are missing, and say where others differ from the policy."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="ask the broker, and make none")
        parser.add_argument(
            "topic", nargs="*", help="further topics, such as <consumer>.resend of `resend_events --to`"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.EVENT_TRANSPORT != "kafka":
            raise CommandError("EVENT_TRANSPORT is not kafka: Redis makes a stream with its first event.")
        from outbox.events.transports.kafka_topics import make_topics  # needs the extra `kafka`

        failed = 0
        try:
            for one in make_topics([*topics(), *options["topic"]], dry_run=options["dry_run"]):
                failed += bool(one.reason)
                made = "would be made" if options["dry_run"] else "made"
                text = one.reason or (made if one.made else "; ".join(one.differs) or "is there")
                if one.reason or options["verbosity"] > 0:
                    self.stdout.write(f"{one.topic}: {text}")
        except BrokerAway as error:
            raise CommandError(f"Kafka does not answer: {error}") from error
        if failed:
            raise CommandError(f"{failed} topics could not be made; the reasons stand above.")
