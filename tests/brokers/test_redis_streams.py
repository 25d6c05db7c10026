"""Redis Streams: each stream has one owner of a group at a time, so order holds with several consumers."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import redis

from events.transports import redis as streams
from events.transports.redis import RedisConsumer
from tests.kit.brokers import receive
from tests.kit.events import PAID, REFUNDED, envelope, order, status
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import (
    HANDLERS,
    NAME,
    BrokerAway,
    EventConsumer,
    InboundDeadLetter,
    Message,
    MessageRefused,
    Received,
    RedisPublisher,
    TopicUnavailable,
    consumer_lags,
)

GROUP = "g"
#: The key of the lease of the stream t.v1.
LEASE = "orderpost:owner:g:t.v1"
LAST = "18446744073709551615-18446744073709551615"
#: Ids of Redis' streams that are not a time of ours.
IDS = ["0-1", "253402300800000-0", "1763770000000000-0", "18446744073709551615-1", LAST]


@pytest.fixture(autouse=True)
def client(valkey_url, settings, fast, monkeypatch) -> Iterator[redis.Redis]:
    """Connect to Valkey. A lease and a read last longer than any test, unless the test ends them."""
    settings.REDIS_URL = valkey_url
    fast.streams()
    monkeypatch.setattr(streams, "LEASE_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr(streams, "READ_SECONDS", 10 * PATIENCE)
    with redis.Redis.from_url(valkey_url) as connected:
        yield connected


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def consumer(name: str, *topics: str) -> RedisConsumer:
    return RedisConsumer(topics=topics or ["t.v1"], group=GROUP, name=name)


def wait_in(pool: ThreadPoolExecutor, it: RedisConsumer, client: redis.Redis) -> Future[list[Received]]:
    """Let a consumer receive in another thread, until Valkey has blocked it. Fail if it returns before."""
    database = str(client.connection_pool.connection_kwargs["db"])

    def is_blocked() -> bool:
        return any(
            session["db"] == database and session["cmd"] == "xread" and "b" in session["flags"]
            for session in client.client_list()
        )

    receiving = pool.submit(it.receive, seconds=2 * PATIENCE)
    until(lambda: is_blocked() or receiving.done(), "the consumer waits")
    assert not receiving.done()
    return receiving


def publish(*numbers: int, topic: str = "t.v1") -> None:
    answers = RedisPublisher().publish([Message(topic, str(n % 3), b"%d" % n) for n in numbers])
    assert answers == [None] * len(numbers)


def numbers(messages: list[Received]) -> list[int]:
    return [int(message.value) for message in messages]


def owners(client: redis.Redis) -> Counter[str]:
    """Return how many streams each member owns, as the leases say."""
    leases = client.mget(client.keys("orderpost:owner:*"))
    return Counter(name.decode() for name in leases if isinstance(name, bytes))


def test_a_stream_is_one_consumers_at_a_time_and_its_next_owner_goes_on_where_it_ended():
    publish(*range(10))
    first, second = consumer("a"), consumer("b")
    got = first.receive(seconds=0.1)
    assert numbers(got) == list(range(10))
    first.done(got[:4])
    publish(10, 11)
    assert second.receive(seconds=0.01) == []
    assert numbers(first.receive(seconds=0.1)) == [10, 11]
    first.close()
    again = second.receive(seconds=0.1)
    assert numbers(again) == [4, 5, 6, 7, 8, 9, 10, 11]
    second.done(again)
    assert second.receive(seconds=0.01) == []


def test_the_unacknowledged_entries_of_the_last_owner_come_before_new_ones_however_many():
    publish(*range(250))
    first = consumer("a")
    receive(first, 250)
    publish(*range(250, 300))
    first.close()
    assert numbers(receive(consumer("b"), 300)) == list(range(300))


def test_a_dead_owners_stream_has_another_after_its_lease(client):
    publish(1, 2, 3)
    dead, alive = consumer("dead"), consumer("alive")
    assert numbers(dead.receive(seconds=0.1)) == [1, 2, 3]
    assert alive.receive(seconds=0.01) == []
    assert 0 < client.pttl(LEASE) <= 1000 * streams.LEASE_SECONDS
    client.pexpire(LEASE, 1)  # the rest of the time passes
    assert numbers(receive(alive, 3)) == [1, 2, 3]


def test_an_owner_that_lost_its_lease_while_it_slept_reads_nothing(client, monkeypatch):
    """Else each of the two would get some of the new entries, and a key's order would be lost."""
    sleeper, other = consumer("sleeper"), consumer("other")
    assert sleeper.receive(seconds=0.01) == [] and owners(client) == {"sleeper": 1}
    client.delete(LEASE)  # as if the time were over
    other.receive(seconds=0.01)
    publish(1, 2)
    monkeypatch.setattr(streams, "KEEP_SECONDS", 60.0)  # it has not noticed yet
    assert sleeper.receive(seconds=0.01) == []
    assert numbers(other.receive(seconds=0.1)) == [1, 2]


def test_an_owner_that_slept_reads_what_another_read_meanwhile_and_left(client):
    sleeper = consumer("sleeper")
    sleeper.receive(seconds=0.01)
    client.delete(LEASE)  # as if the time were over
    publish(1, 2)
    assert numbers(consumer("other").receive(seconds=0.1)) == [1, 2]
    client.delete(LEASE)  # the other one died, too
    publish(3)
    assert numbers(receive(sleeper, 3)) == [1, 2, 3]


def test_an_owner_keeps_its_stream_while_it_works_on_a_batch(client):
    publish(*range(3))
    first, second = consumer("a"), consumer("b")
    messages = first.receive(seconds=0.1)
    assert len(messages) == 3
    for message in messages:
        client.expire(LEASE, int(PATIENCE))  # most of its time passes
        first.done([message])
        assert client.ttl(LEASE) > PATIENCE
        assert second.receive(seconds=0.01) == []


def test_consumers_share_the_streams_and_a_new_one_gets_some(client):
    topics = [f"t{n}.v1" for n in range(4)]
    first, second, third = (consumer(name, *topics) for name in "abc")
    first.receive(seconds=0.01)
    assert owners(client) == {"a": 4}
    for _ in range(3):
        for each in (first, second):
            each.receive(seconds=0.01)
    assert owners(client) == {"a": 2, "b": 2}
    for _ in range(3):
        for each in (first, second, third):
            each.receive(seconds=0.01)
    counts = owners(client).values()
    assert sum(counts) == 4 and max(counts) == 2
    second.close()
    third.close()
    first.receive(seconds=0.01)
    assert owners(client) == {"a": 4}


def test_a_wait_returns_once_for_each_entry_that_another_member_has_read_and_then_waits(client, pool):
    new = consumer("new")
    new.receive(seconds=0.01)
    publish(*range(20))
    client.xreadgroup(GROUP, "host:1", {"t.v1": ">"})
    for _ in range(20):
        assert new.receive(seconds=PATIENCE) == []
    waiting = wait_in(pool, new, client)
    publish(20)
    assert waiting.result(PATIENCE) == [] and numbers(new.receive(seconds=0.01)) == [20]


def test_a_waiting_owner_gets_a_new_entry_at_once(client, pool):
    first = consumer("a")
    first.receive(seconds=0.01)
    waiting = wait_in(pool, first, client)
    publish(1)
    assert waiting.result(PATIENCE) == []  # the wait ends, and the next call reads
    assert numbers(first.receive(seconds=0.01)) == [1]


def test_large_entries_come_a_few_at_a_time_and_all_of_them(monkeypatch):
    monkeypatch.setattr(streams, "BATCH_BYTES", 2_500_000)
    RedisPublisher().publish([Message("t.v1", "k", b"%d" % n + b" " * 1_000_000) for n in range(7)])
    first = consumer("a")
    rounds = [numbers(first.receive(seconds=0.1)) for _ in range(5)]
    assert [number for some in rounds for number in some] == list(range(7))
    assert max(map(len, rounds)) == 2
    publish(7)
    assert numbers(receive(first, 1)) == [7]


def test_an_entry_that_was_trimmed_before_it_was_done_does_not_stop_the_next_owner(client):
    publish(*range(5))
    first = consumer("a")
    got = first.receive(seconds=0.1)
    client.xdel("t.v1", got[0].token[1], got[1].token[1])
    first.close()
    second = consumer("b")
    messages = second.receive(seconds=0.1)
    assert numbers(messages) == [2, 3, 4]
    second.done(messages)
    assert client.xpending("t.v1", GROUP)["pending"] == 0


def test_entries_that_were_trimmed_before_any_owner_read_them_are_logged_once(client, caplog):
    publish(0)
    first = consumer("a")
    first.done(first.receive(seconds=0.1))
    first.close()
    publish(*range(1, 6))
    client.xtrim("t.v1", maxlen=2, approximate=False)
    for name in ("b", "c"):
        member = consumer(name)
        messages = member.receive(seconds=0.1)
        assert numbers(messages) == ([4, 5] if name == "b" else [])
        member.done(messages)
        member.close()
    publish(6)
    assert numbers(receive(consumer("d"), 1)) == [6]
    lines = [record.msg for record in caplog.records if "trimmed before" in str(record.msg)]
    assert [(line["topic"], line["count"]) for line in lines] == [("t.v1", 3)]


def test_entries_that_were_trimmed_after_they_were_done_are_not_logged(client, caplog):
    publish(*range(5))
    first = consumer("a")
    first.done(first.receive(seconds=0.1))
    first.close()
    publish(5, 6)
    client.xtrim("t.v1", maxlen=2, approximate=False)
    second = consumer("b")
    assert numbers(second.receive(seconds=0.1)) == [5, 6]
    assert "trimmed" not in caplog.text


def test_an_entry_of_another_shape_is_received_as_it_can_be(client):
    client.xadd("t.v1", {"other": "x"})
    (message,) = consumer("a").receive(seconds=0.1)
    assert (message.key, message.value) == ("", b"")


def test_an_entry_that_has_a_field_twice_has_no_value_of_its_own(client):
    client.execute_command("XADD", "t.v1", "*", "value", '{"a": 1}', "key", "k", "value", '{"a": 2}')
    (received,) = consumer("a").receive(seconds=0.1)
    assert (received.key, received.value) == ("k", b'{"a": 1}\n{"a": 2}')


def test_two_keys_that_are_not_utf_8_are_two_keys(client):
    for key in (b"\xff", b"\xfe"):
        client.xadd("t.v1", {"key": key, "value": b"1"})
    first, second = consumer("a").receive(seconds=0.1)
    assert first.key != second.key


@pytest.mark.parametrize("late", [False, True])
def test_a_key_of_another_type_stops_its_own_stream_alone_and_only_while_it_is_there(client, late):
    member = consumer("a", "t.v1", "wrong.v1")
    if late:
        member.receive(seconds=0.01)
        client.delete("wrong.v1")
    client.set("wrong.v1", "no stream")
    publish(1)
    messages = receive(member, 1)
    assert numbers(messages) == [1]
    member.done(messages)
    client.delete("wrong.v1")
    publish(2, topic="wrong.v1")
    with contextlib.suppress(BrokerAway):  # once, for the group that went with its stream
        assert numbers(receive(member, 1)) == [2]
        return
    assert numbers(receive(member, 1)) == [2]


def test_a_broker_that_lost_everything_gets_its_groups_anew(client):
    member = consumer("a")
    assert member.receive(seconds=0.01) == []
    client.flushdb()
    for _ in range(3):
        try:
            member.receive(seconds=0.01)
        except BrokerAway:
            break
    publish(5)
    assert numbers(receive(member, 1)) == [5]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (
            redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
            TopicUnavailable,
        ),
        (redis.exceptions.NoPermissionError("No permissions to access a key"), TopicUnavailable),
        (redis.ResponseError("The stream has exhausted the last possible ID"), TopicUnavailable),
        (redis.ResponseError("string exceeds maximum allowed size (proto-max-bulk-len)"), MessageRefused),
        (
            redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
            BrokerAway,
        ),
        (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), BrokerAway),
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), BrokerAway),
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), BrokerAway),
    ],
)
def test_an_answer_is_about_the_entry_its_stream_or_the_broker(answer, kind, monkeypatch):
    monkeypatch.setattr("redis.client.Pipeline.execute", lambda *_, **__: [answer])
    (reported,) = RedisPublisher().publish([Message("t.v1", "k", b"{}")])
    assert type(reported) is kind


def test_an_event_that_too_few_replicas_have_is_not_published(settings):
    settings.EVENT_REPLICAS = 1
    with pytest.raises(BrokerAway, match="0 of 1 replicas have the events"):
        RedisPublisher().publish([Message("t.v1", "key", b"1")])


def paid(it) -> dict[str, str]:
    """Return the fields of a stream's entry that pays an order."""
    return {"key": str(it.id), "value": json.dumps(envelope(PAID, {"orderId": str(it.id)}))}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("id", IDS)
def test_an_entry_of_any_id_holds_back_no_later_one_and_no_other_topic(client, id):
    earlier, later, elsewhere = order(), order(), order()
    client.xadd(PAID, paid(earlier), id=id)
    if id != LAST:  # nobody can add an entry behind that one
        client.xadd(PAID, paid(later))
    refund = envelope(REFUNDED, {"orderId": str(elsewhere.id)})
    client.xadd(REFUNDED, {"key": str(elsewhere.id), "value": json.dumps(refund)})
    it = EventConsumer(
        connect=lambda: consumer("a", PAID, REFUNDED),
        name=NAME,
        handlers=HANDLERS,
    )
    expected = 2 if id == LAST else 3
    until(lambda: sum(it.counts.values()) >= expected, meanwhile=lambda: it.step(seconds=0.05))
    it.disconnect()
    assert sum(it.counts.values()) == expected
    assert client.xpending(PAID, GROUP)["pending"] == 0
    if id == "0-1":
        assert "it is of 1970-01-01 00:00 UTC" in InboundDeadLetter.objects.get(topic=PAID).error
    else:
        assert status(earlier) == "paid"
    if id not in (LAST, "0-1"):
        assert status(later) == "paid"
    assert InboundDeadLetter.objects.get(topic=REFUNDED).error.startswith("An order"), (
        "it was not paid before"
    )


@pytest.mark.parametrize("id", IDS)
def test_the_next_owner_gets_an_unacknowledged_entry_of_any_id_once(client, id):
    client.xadd("t.v1", {"key": "k", "value": "0"}, id=id)
    first, second = (consumer(name) for name in "ab")
    assert [received.value for received in first.receive(seconds=0.05)] == [b"0"]
    first.close()
    assert [received.value for received in second.receive(seconds=0.05)] == [b"0"]
    assert second.receive(seconds=0.05) == []


@pytest.mark.parametrize("id", IDS)
def test_the_lag_of_a_stream_with_any_id_is_counted(client, id):
    client.xadd("t.v1", {"key": "k", "value": "0"}, id=id)
    client.xadd("u.v1", {"key": "k", "value": "0"})
    for read in (False, True):
        if read:
            consumer("a", "t.v1", "u.v1").receive(seconds=0.05)
        lags = consumer_lags(topics=["t.v1", "u.v1"], group=GROUP)
        assert [(lag.topic, lag.events) for lag in lags] == [("t.v1", 1), ("u.v1", 1)]
        assert all(lag.seconds >= 0 for lag in lags)


@pytest.mark.parametrize(
    ("id", "written_at"),
    [
        ("1763770000000-0", dt.datetime(2025, 11, 22, 0, 6, 40, tzinfo=dt.UTC)),
        ("0-1", dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ("1763770000000000-0", None),
    ],
)
def test_an_id_is_a_time_if_it_can_be_one(client, id, written_at):
    client.xadd("t.v1", {"key": "k", "value": "0"}, id=id)
    (message,) = consumer("a").receive(seconds=0.05)
    assert message.written_at == written_at
