"""Bounds without a gap, partitions made once, a catalogue that is read back right."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from retention.partitioned import PartitionedModel
from runtime.database.partitions import attached, why_misplaced
from tests.kit.mails import make_mail
from tests.kit.races import together
from tests.kit.words import DomainEvent, EmailNotification, Order, id_floor, id_time, new_id, partitions

MOMENTS = st.datetimes(
    min_value=dt.datetime(2020, 1, 1), max_value=dt.datetime(2099, 1, 1), timezones=st.timezones()
)
MODELS = [EmailNotification, DomainEvent]


@given(when=MOMENTS, model=st.sampled_from(MODELS), steps=st.integers(-20, 20))
def test_neighbouring_partitions_meet_without_gap_or_overlap(when, model, steps):
    here = partitions.partition_at(model=model, when=when, steps=steps)
    after = partitions.partition_at(model=model, when=when, steps=steps + 1)
    assert here.until == after.since
    assert id_floor(here.until) == id_floor(after.since)
    assert here.name != after.name
    if steps == 0:
        assert here.since <= when < here.until


@given(when=MOMENTS, model=st.sampled_from(MODELS), skew=st.floats(-60, 60))
def test_an_id_of_a_host_a_minute_off_lies_in_one_partition_that_takes_its_row(when, model, skew):
    id = id_floor(when + dt.timedelta(seconds=skew))
    here = partitions.partition_at(model=model, when=id_time(id))
    assert id_floor(here.since) <= id < id_floor(here.until)
    day = dt.timedelta(days=1)
    assert here.since - day <= when < here.until + day  # the CHECK on created_at, by the database's clock


@given(when=MOMENTS, model=st.sampled_from(MODELS))
def test_the_last_id_before_a_border_and_the_first_after_it_are_neighbours(when, model):
    here = partitions.partition_at(model=model, when=when)
    border = id_floor(here.until)
    before = uuid.UUID(int=border.int - 1)
    assert id_floor(here.since) <= before < border
    assert partitions.partition_at(model=model, when=id_time(before)).name == here.name
    assert partitions.partition_at(model=model, when=id_time(border)).since == here.until


@given(when=MOMENTS, skew=st.floats(-60, 60))
def test_no_row_that_its_partition_takes_lies_beyond_what_the_relay_reads(when, skew):
    id = id_floor(when + dt.timedelta(hours=skew))
    here = partitions.partition_at(model=DomainEvent, when=id_time(id))
    day = dt.timedelta(days=1)
    if here.since - day <= when < here.until + day:  # the CHECK, when the row is written
        assert id < id_floor(when + dt.timedelta(days=3) - day)  # the relay's time may be a day old


@given(when=MOMENTS)
def test_an_ids_border_has_the_time_that_it_was_made_of(when):
    assert abs(id_time(id_floor(when)) - when) < dt.timedelta(milliseconds=1)


def test_ids_grow_and_lie_above_the_border_of_their_time():
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(ids) and len(set(ids)) == len(ids)
    assert id_floor(before) < ids[0] < id_floor(before + dt.timedelta(minutes=1))


def ahead_of(model: PartitionedModel, now: dt.datetime) -> int:
    among = attached(model=model)
    return partitions.ahead_among(model=model, now=now, among=among).partitions_ahead


@pytest.mark.django_db
class TestARefusedRow:
    def refusal(self, insert: Callable[[], object]) -> str | None:
        with pytest.raises(IntegrityError) as caught, transaction.atomic():
            insert()
        return why_misplaced(caught.value)

    @pytest.mark.parametrize("id", [uuid.UUID(int=1), uuid.UUID(int=2**128 - 1), uuid.uuid4()])
    def test_has_an_id_that_is_no_uuid_v7(self, id):
        assert self.refusal(lambda: make_mail(id=id)).startswith("no partition of relation")

    def test_has_an_id_of_another_time_than_the_databases(self):
        here = partitions.partition_at(model=EmailNotification, when=dt.datetime.now(dt.UTC), steps=2)
        reason = f"the id's time is not the database's: {here.name}_created"
        assert self.refusal(lambda: make_mail(id=id_floor(here.since))) == reason

    def test_is_not_blamed_on_its_id_if_it_has_another_fault(self):
        order = {"user_id": uuid.uuid4(), "email": "a@example.com", "total_amount": -1}
        assert self.refusal(lambda: Order.objects.create(**order)) is None


@pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
class TestEnsure:
    @pytest.mark.parametrize("model", MODELS)
    def test_migrate_has_made_as_many_ahead_as_are_asked_for(self, model):
        now = dt.datetime.now(dt.UTC)
        assert ahead_of(model, now) >= partitions.AHEAD[model.retention.interval] - 1
        assert attached(model=model) == sorted(attached(model=model), key=lambda partition: partition.since)

    def test_makes_nothing_twice_also_when_run_by_many_at_once(self):
        far = partitions.AHEAD["day"] + 2
        made = together(4, lambda _: partitions.make_missing(model=DomainEvent, using="default", ahead=far))
        names = [name for some in made for name in some]
        assert len(names) == len(set(names)) == 2
        assert partitions.make_missing(model=DomainEvent, using="default", ahead=far) == []
        for name in names:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE {name}")

    def test_a_missing_partition_is_a_gap_that_readiness_sees_and_ensure_mends(self):
        now = dt.datetime.now(dt.UTC)
        gone = partitions.partition_at(model=EmailNotification, when=now, steps=2)
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {gone.name}")
        assert ahead_of(EmailNotification, now) == 1
        call_command("partitions", "ensure")
        assert ahead_of(EmailNotification, now) >= partitions.AHEAD["month"] - 1
