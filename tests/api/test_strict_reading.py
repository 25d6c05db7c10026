"""Every request and event is read by the same strict rules, whichever way it comes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.api import Api, assert_problem, order_body
from tests.kit.events import REFUNDED, envelope, handle, order, received, refunded
from tests.kit.orders import pay_order
from tests.kit.words import InboundDeadLetter, Order, Received, inbox

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
        known = inbox.open_message(Received("t.v1", "k", text.encode(), None)).known
        return known.id, known.producer

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
