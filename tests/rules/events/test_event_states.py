"""Each state of an event is one condition, as Django filters by it and as SQL has it."""

from __future__ import annotations

import datetime as dt
import itertools

import pytest
from django.db.models import Model

from events.models import states
from tests.kit.admin import dead_letter, make_event
from tests.kit.words import DomainEvent, InboundDeadLetter

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)
EVENTS = ("UNPUBLISHED", "STUCK", "BLOCKED", "DEAD", "PUBLISHED")
LETTERS = ("UNRESOLVED", "UNDECIDED", "REPLAYABLE", "REPLAY_REQUESTED")


@pytest.fixture
def events():
    """Insert an event of each kind that the table's constraints allow."""
    now = dt.datetime.now(dt.UTC)
    times = itertools.product((None, now), (None, now), (None, now), (0, 2), (now - HOUR, now + HOUR))
    for published, dead, discarded, retries, due in times:
        if (published and dead) or (discarded and not dead):
            continue
        make_event(
            published_at=published,
            dead_lettered_at=dead,
            discarded_at=discarded,
            retry_count=retries,
            next_attempt_at=due,
        )


@pytest.fixture
def letters():
    """Insert an inbound dead letter of each kind."""
    now = dt.datetime.now(dt.UTC)
    for requested, replayed, discarded in itertools.product((None, now), repeat=3):
        for is_exact in (True, False):
            dead_letter(
                replay_requested_at=requested,
                replayed_at=replayed,
                discarded_at=discarded,
                is_exact=is_exact,
            )


def test_the_list_is_complete():
    names = {name for name, value in vars(states).items() if isinstance(value, states.EventState)}
    assert names == {*EVENTS, *LETTERS}


@pytest.mark.parametrize("name", EVENTS)
def test_an_events_state_has_the_same_rows_in_sql(events, name):
    compare(DomainEvent, getattr(states, name))


@pytest.mark.parametrize("name", LETTERS)
def test_a_letters_state_has_the_same_rows_in_sql(letters, name):
    compare(InboundDeadLetter, getattr(states, name))


def compare(model: type[Model], state: states.EventState) -> None:
    rows = model._default_manager
    ids = set(rows.filter(state.rows).values_list("id", flat=True))
    assert ids == set(rows.extra(where=[state.sql]).values_list("id", flat=True))
    assert 0 < len(ids) < rows.count()


@pytest.mark.parametrize(
    ("verb", "transition"),
    [(DomainEvent.objects.republish, states.REPUBLISH), (DomainEvent.objects.discard, states.DISCARD)],
)
def test_a_verb_takes_the_events_of_its_state_alone(events, verb, transition):
    expected = set(DomainEvent.objects.filter(transition.before.rows).values_list("id", flat=True))
    assert set(verb(ids=DomainEvent.objects.values_list("id", flat=True))) == expected
    assert not DomainEvent.objects.filter(transition.before.rows).exists()


@pytest.mark.parametrize(
    ("verb", "transition"),
    [
        (InboundDeadLetter.objects.request_replay, states.REQUEST_REPLAY),
        (InboundDeadLetter.objects.discard, states.DISCARD_LETTER),
    ],
)
def test_a_verb_takes_the_letters_of_its_state_alone(letters, verb, transition):
    expected = set(InboundDeadLetter.objects.filter(transition.before.rows).values_list("id", flat=True))
    assert set(verb(ids=InboundDeadLetter.objects.values_list("id", flat=True))) == expected
    assert not InboundDeadLetter.objects.filter(transition.before.rows).exists()


def test_the_rules_of_partitions_keep_unpublished_and_dead_events():
    kept = [states.UNPUBLISHED.sql, states.DEAD.sql]
    assert list(DomainEvent.retention.unfinished.values()) == kept
