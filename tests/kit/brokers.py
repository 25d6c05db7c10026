"""Brokers in memory, which do what a test says, and what tests publish to and receive from any broker."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from events.transports import BrokerAnswer, BrokerConsumer, BrokerPublisher
from tests.kit.waiting import until
from tests.kit.words import (
    HANDLERS,
    NAME,
    BrokerAway,
    DomainEvent,
    EventConsumer,
    Message,
    MessageRefused,
    Received,
    TopicUnavailable,
    write_event,
)


class Memory(BrokerPublisher):
    """A broker in memory, told whom to refuse and when to be away."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.refuse: dict[str, str] = {}
        self.unavailable: set[str] = set()
        self.away = 0  # so many calls from now on
        self.silent_after: int | None = None  # of so many messages of a call nothing is known

    def check(self) -> None:
        if self.away:
            self.away -= 1
            raise BrokerAway("gone")

    def publish(self, messages: Sequence[Message]) -> list[BrokerAnswer]:
        self.check()
        answers: list[BrokerAnswer] = []
        for number, message in enumerate(messages):
            if self.silent_after is not None and number >= self.silent_after:
                answers.append(BrokerAway("no answer"))
                continue
            if message.topic in self.unavailable:
                answers.append(TopicUnavailable("no such topic"))
                continue
            reason = next((why for part, why in self.refuse.items() if part.encode() in message.value), None)
            answers.append(MessageRefused(reason) if reason else None)
            if not reason:
                self.taken.append(message)
        return answers

    def close(self) -> None:
        pass

    def texts(self) -> list[str]:
        return [json.loads(message.value)["data"]["text"] for message in self.taken]


def write(aggregate: uuid.UUID, *texts: str, topic: str = "test.v1") -> None:
    with transaction.atomic():
        for number, text in enumerate(texts):
            write_event(
                aggregate_type="test",
                aggregate_id=aggregate,
                event_type=topic,
                sequence=number + 1,
                payload={"text": text},
            )


def due() -> None:
    DomainEvent.objects.filter(published_at=None).update(next_attempt_at=Now() - dt.timedelta(seconds=1))


class Hand(BrokerConsumer):
    """A broker that gives out what the test says, and keeps what was acknowledged."""

    def __init__(self, *rounds: list[Received]) -> None:
        self.rounds = list(rounds)
        self.acknowledged: list[Received] = []
        self.is_away = self.is_closed = False

    def receive(self, *, seconds: float) -> list[Received]:
        if self.is_away:
            raise BrokerAway("no answer")
        return self.rounds.pop(0) if self.rounds else []

    def done(self, messages: Sequence[Received]) -> None:
        if self.is_away:
            raise BrokerAway("no answer")
        self.acknowledged += messages

    def close(self) -> None:
        self.is_closed = True


def consume(hand: Hand, **more: Any) -> EventConsumer:
    return EventConsumer(connect=lambda: hand, name=NAME, handlers=HANDLERS | more)


def receive(consumer: BrokerConsumer, count: int) -> list[Received]:
    """Receive until `count` messages have come."""
    messages: list[Received] = []
    until(
        lambda: len(messages) >= count,
        f"{count} messages have come",
        meanwhile=lambda: messages.extend(consumer.receive(seconds=0.5)),
    )
    assert len(messages) == count
    return messages
