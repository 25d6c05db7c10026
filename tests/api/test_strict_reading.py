"""Every request and event is read by the same strict rules, whichever way it comes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.api import Api, assert_problem, order_body
from tests.kit.events import REFUNDED, SHOP, envelope, handle, order, received, refunded, told
from tests.kit.orders import pay_order
from tests.kit.words import (
    HANDLERS,
    NAME,
    DomainEvent,
    InboundDeadLetter,
    Order,
    Received,
    inbox,
    replay_next,
)

URL = "/api/v1/events"
CE, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
BOM = b"\xef\xbb\xbf"

pytestmark = pytest.mark.django_db(transaction=True)

#: What a refund's `data` says next to `orderId`, and a word of the reason why it is refused.
UNFIT = [
    (b'"amount": 1, "amount": 9999', 'names "amount" twice'),
    (b'"amount": 1, "x": [{"a": 1, "a": 1}]', 'names "a" twice'),
    (b'"amount": 1, "\\u0061mount": 2', 'names "amount" twice'),
    (b'"amount": NaN', "NaN"),
    (b'"amount": -Infinity', "-Infinity"),
    (b'"amount": 1, "x": 1e999', "too large"),
    (b'"amount": 1, "x": ' + b"9" * 1001, "too many digits"),
    (b'"amount": 1, "x": ' + b"[" * 200 + b"]" * 200, "nested too deeply"),
]


@pytest.fixture
def paid() -> Order:
    it = order()
    pay_order(order_id=it.id)
    it.refresh_from_db()
    return it


def data_of(it: Order, members: bytes) -> bytes:
    return f'{{"orderId": "{it.id}", '.encode() + members + b"}"


def event_of(it: Order, members: bytes) -> bytes:
    raw = json.dumps(envelope(REFUNDED, {"orderId": "?"})).encode()
    return raw.replace(b'{"orderId": "?"}', data_of(it, members))


def cloud_of(data: bytes, name: bytes = b"data") -> bytes:
    event = envelope(REFUNDED, {})
    attributes = {"specversion": "1.0", "id": event["eventId"], "type": REFUNDED, "source": event["source"]}
    return json.dumps(attributes).encode()[:-1] + b', "' + name + b'": ' + data + b"}"


def by_broker(api: Api, it: Order, members: bytes) -> str:
    assert handle(received(REFUNDED, event_of(it, members))) == "dead"
    return InboundDeadLetter.objects.get().error


def by_http(api: Api, it: Order, members: bytes) -> str:
    return str(assert_problem(api.post(URL, event_of(it, members)), 422, "unusable-event")["detail"])


def in_a_list(api: Api, it: Order, members: bytes) -> str:
    """Send it before an event that is refused for another reason, and which it must not stop."""
    answer = api.post(URL, b"[" + event_of(it, members) + b", {}]")
    first, second = answer.json()["results"]
    assert "eventType" in second["problem"] or "eventId" in second["problem"]
    return str(first["problem"])


def as_cloud_event(api: Api, it: Order, members: bytes) -> str:
    answer = api.post(URL, cloud_of(data_of(it, members)), **{"Content-Type": CE})
    return str(assert_problem(answer, 422, "unusable-event")["detail"])


def as_base64(api: Api, it: Order, members: bytes) -> str:
    data = b'"' + base64.b64encode(data_of(it, members)) + b'"'
    answer = api.post(URL, cloud_of(data, b"data_base64"), **{"Content-Type": CE})
    return str(assert_problem(answer, 422, "unusable-event")["detail"])


def binary(it: Order) -> dict[str, str]:
    event = envelope(REFUNDED, {})
    names = {"id": event["eventId"], "type": REFUNDED, "source": event["source"], "subject": str(it.id)}
    return {f"ce-{name}": value for name, value in ({"specversion": "1.0"} | names).items()}


def in_binary_mode(api: Api, it: Order, members: bytes) -> str:
    answer = api.post(URL, data_of(it, members), **binary(it))
    return str(assert_problem(answer, 422, "unusable-event")["detail"])


def in_a_batch(api: Api, it: Order, members: bytes) -> str:
    answer = api.post(URL, b"[" + cloud_of(data_of(it, members)) + b"]", **{"Content-Type": BATCH})
    return str(answer.json()["results"][0]["problem"])


WAYS = [by_broker, by_http, in_a_list, as_cloud_event, as_base64, in_binary_mode, in_a_batch]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("members", "said"), UNFIT, ids=range(len(UNFIT)))
def test_it_refuses_an_event_with_an_unfit_part_by_every_way(
    api: Api, paid: Order, way: Callable[[Api, Order, bytes], str], members: bytes, said: str
) -> None:
    assert said in way(api, paid, members)
    assert refunded(paid) == 0


@pytest.mark.parametrize("members", [members for members, _ in UNFIT], ids=range(len(UNFIT)))
def test_it_refuses_a_request_with_an_unfit_part(api: Api, paid: Order, members: bytes) -> None:
    answer = api.post(f"/api/v1/orders/{paid.id}/refund", b"{" + members + b"}")
    assert_problem(answer, 400, "malformed")
    assert refunded(paid) == 0


@pytest.mark.parametrize("way", [by_broker, by_http, as_cloud_event])
def test_it_refuses_a_name_given_twice_at_the_top(
    api: Api, paid: Order, way: Callable[[Api, Order, bytes], str]
) -> None:
    assert 'names "version" twice' in way(
        api, paid, b'"amount": 1}, "version": 1, "version": 1, "x": {"y": 1'
    )
    assert refunded(paid) == 0


ENCODED: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda raw: BOM + raw, "byte order mark (BOM)"),
    (lambda raw: raw.decode().encode("utf-16"), "UTF-8"),
    (lambda raw: raw.decode().encode("utf-32-le"), "JSON"),
    (lambda raw: raw.replace(b"EUR", b"\xc4"), "UTF-8, and byte"),
    (lambda raw: raw.replace(b"EUR", b"\xed\xa0\x80"), "UTF-8, and byte"),
]


@pytest.mark.parametrize(("change", "said"), ENCODED, ids=range(len(ENCODED)))
def test_it_reads_one_encoding_alone_and_says_so(
    api: Api, paid: Order, change: Callable[[bytes], bytes], said: str
) -> None:
    raw = change(event_of(paid, b'"amount": 1, "note": "EUR"'))
    assert handle(received(REFUNDED, raw)) == "dead"
    assert said in InboundDeadLetter.objects.get().error
    assert said in assert_problem(api.post(URL, raw), 400, "malformed")["detail"]
    data = change(data_of(paid, b'"amount": 1, "note": "EUR"'))
    answer = api.post(URL, data, **binary(paid))
    assert said in assert_problem(answer, 400, "malformed")["detail"]
    encoded = cloud_of(b'"' + base64.b64encode(data) + b'"', b"data_base64")
    answer = api.post(URL, encoded, **{"Content-Type": CE})
    assert said in assert_problem(answer, 422, "unusable-event")["detail"]
    body = change(json.dumps(order_body(reference="EUR")).encode())
    assert said in assert_problem(api.post("/api/v1/orders", body), 400, "malformed")["detail"]
    assert refunded(paid) == 0


@pytest.mark.parametrize("path", [URL, "/api/v1/orders"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "aes128gcm", "gzip, identity", "GZIP"])
def test_it_refuses_a_body_with_a_content_encoding(api: Api, path: str, encoding: str) -> None:
    before = Order.objects.count()
    answer = api.post(path, order_body(), Content_Encoding=encoding)
    assert "Content-Encoding" in assert_problem(answer, 415, "unsupported-media-type")["detail"]
    assert answer.headers["Accept-Encoding"] == "identity"
    assert Order.objects.count() == before


def test_it_takes_a_body_whose_content_encoding_is_none(api: Api) -> None:
    assert api.post("/api/v1/orders", order_body(), Content_Encoding="identity").status_code == 201


class TestEarly:
    """The inbox knows an unreadable event by its id and its producer, which are read before the rest."""

    def early(self, text: str) -> tuple[Any, str]:
        opened = inbox.open_message(Received("t.v1", "k", text.encode(), None)).any_envelope
        return opened.id, opened.producer

    def test_it_knows_an_event_by_its_id_although_another_part_is_unfit(self) -> None:
        event = envelope(REFUNDED, {})
        text = json.dumps(event).replace('"data": {}', '"data": {"amount": 1, "amount": NaN}')
        id, producer = self.early(text)
        assert (str(id), producer) == (event["eventId"], "payment-service")

    def test_it_takes_neither_of_two_ids(self) -> None:
        first, second = envelope(REFUNDED, {})["eventId"], envelope(REFUNDED, {})["eventId"]
        text = f'{{"eventId": "{first}", "eventId": "{second}", "source": "a"}}'
        id, _ = self.early(text)
        assert str(id) not in (first, second) and self.early(text)[0] == id

    @pytest.mark.parametrize(
        "text",
        [
            '{"source": "a", "source": "b"}',
            '{"source": "a", "metadata": {"source": "a", "source": "b"}}',
            '\ufeff{"source": "a"}',
        ],
    )
    def test_it_takes_no_producer_that_is_not_named_once(self, text: str) -> None:
        assert self.early(text)[1] == ""


def shops(order_id: str, number: int, **attributes: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and the headers of a shop's event in binary mode."""
    event = told("placed", order_id, number)
    del event["data"]["orderId"]
    names = {"specversion": "1.0", "id": event["eventId"], "type": event["eventType"], "source": SHOP}
    names |= {"sequence": str(number), "subject": order_id} | attributes
    return event["data"], {f"ce-{name}": value for name, value in names.items()}


class TestHeaders:
    """The attributes of a CloudEvent in binary mode are headers."""

    @pytest.fixture(autouse=True)
    def _shop(self, settings: Any) -> None:
        settings.ORDER_SOURCES = [SHOP]

    @pytest.mark.parametrize(
        "value",
        [
            "A%FF1",
            "A%FE1",
            "%ED%A0%80",
            "\u00c4-1",  # as a server that keeps the bytes passes them on
            "",  # as Granian passes on other bytes than ASCII
        ],
    )
    @pytest.mark.parametrize("name", ["subject", "source", "id", "type", "time", "sequence"])
    def test_it_refuses_a_value_that_is_not_utf_8_and_names_the_header(
        self, api: Api, name: str, value: str
    ) -> None:
        body, headers = shops("A-1", 1, **{name: value})
        problem = assert_problem(api.post(URL, body, **headers), 400, "validation")
        (error,) = problem["errors"]
        assert (error["pointer"], error["in"]) == (f"#/ce-{name}", "header")
        assert "Percent-encode" in error["detail"] and not Order.objects.exists()

    def test_it_keeps_the_orders_of_two_customers_apart(self, api: Api) -> None:
        for number, text in enumerate(("A%C3%BF1", "A%C3%BE1"), 1):
            body, headers = shops(text, number)
            assert api.post(URL, body, **headers).status_code == 200
        assert Order.objects.count() == 2

    def test_it_ignores_headers_that_it_does_not_read(self, api: Api) -> None:
        body, headers = shops("A-1", 1, partitionkey="%FF", data="x", data_base64="e30=")
        assert api.post(URL, body, **headers).status_code == 200
        assert api.post(URL, told("paid", "A-1", 2), **{"ce-subject": "%FF"}).status_code == 200

    @pytest.mark.parametrize("name", ["subject", "source", "id", "sequence", "type", "specversion"])
    def test_it_takes_a_header_that_was_sent_twice_once(self, api: Api, name: str) -> None:
        body, headers = shops("A-1", 1)
        value = headers[f"ce-{name}"]
        assert api.post(URL, body, **headers).json()["result"] == "processed"
        for joined in (f"{value},{value}", f"{value}, {value}"):
            assert api.post(URL, body, **headers | {f"ce-{name}": joined}).json()["result"] == "repeated"
        assert Order.objects.count() == 1


#: Bytes of which PostgreSQL stores only a changed text, made of a readable event.
INEXACT: dict[str, Callable[[bytes], bytes]] = {
    "in Latin-1": lambda raw: raw.replace(b"Ann", "Jos\u00e9 Pe\u00f1a".encode("latin-1")),
    "with a NUL": lambda raw: raw.replace(b"Ann", b"An\x00n"),
    "cut": lambda raw: raw + b" " * 1_000_012,
}


class TestDeadLetters:
    @pytest.fixture(autouse=True)
    def _shop(self, settings: Any) -> None:
        settings.ORDER_SOURCES = [SHOP]

    def dead(self, change: Callable[[bytes], bytes]) -> tuple[InboundDeadLetter, dict[str, Any]]:
        event = told("paid", "A-1", 1)
        assert handle(received(event["eventType"], change(json.dumps(event).encode()))) == "dead"
        return InboundDeadLetter.objects.get(), event

    @pytest.mark.parametrize("change", INEXACT.values(), ids=INEXACT)
    def test_it_never_replays_what_is_not_exactly_what_came(self, change: Callable[[bytes], bytes]) -> None:
        letter, _ = self.dead(change)
        first = letter.error
        assert not letter.is_exact and "A-1" in letter.envelope
        assert InboundDeadLetter.objects.request_replay(ids=[letter.id]) == []
        assert replay_next(consumer=NAME, handlers=dict(HANDLERS)) is None
        letter.refresh_from_db()
        assert letter.error == first and not Order.objects.exists()

    @pytest.mark.parametrize("change", INEXACT.values(), ids=INEXACT)
    def test_it_quotes_a_changed_text_as_text_alone(self, change: Callable[[bytes], bytes]) -> None:
        """Whoever sends `originalEvent` again must not send an event that nobody has made."""
        self.dead(change)
        assert isinstance(DomainEvent.objects.get(event_type__endswith=".dlt").payload["originalEvent"], str)

    @pytest.mark.parametrize("change", INEXACT.values(), ids=INEXACT)
    def test_it_takes_the_event_when_it_comes_again_as_it_should_be_or_says_why_not(
        self, api: Api, change: Callable[[bytes], bytes]
    ) -> None:
        """Of a long one the id could be read, so a person has to decide about it."""
        letter, event = self.dead(change)
        answer = api.post(URL, event)
        if str(letter.event_id) == event["eventId"]:
            assert "dead letter" in assert_problem(answer, 422, "unusable-event")["detail"]
        else:
            assert answer.json()["result"] == "processed"

    def test_it_keeps_the_first_reason_next_to_the_last_one(self) -> None:
        it = order()
        assert handle(received(REFUNDED, event_of(it, b'"amount": 5000'))) == "dead"
        letter = InboundDeadLetter.objects.get()
        first = letter.error
        assert letter.is_exact
        pay_order(order_id=it.id)
        for _ in range(2):
            assert InboundDeadLetter.objects.request_replay(ids=[letter.id]) == [letter.id]
            assert replay_next(consumer=NAME, handlers=dict(HANDLERS)) is not None
            letter.refresh_from_db()
            assert letter.error.splitlines()[0] == first
            assert letter.error.splitlines()[1].startswith("Replayed: ") and "5000" in letter.error
            assert len(letter.error.splitlines()) == 2
