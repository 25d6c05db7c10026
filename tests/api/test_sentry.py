"""What leaves for Sentry holds nobody's address and no secret."""

from __future__ import annotations

import logging

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from config import sentry
from tests.kit.api import Api, make_token, order_body
from tests.kit.words import Order, new_id, order_services

# Up here, for the lines around a failure are sent with it.
NAME, EMAIL = "Alice Smith-Jones", "alice.smith@example.com"
HIDDEN = ("alice", "Alice", "Smith-Jones", "sessionid=abc")


class Caught(Transport):
    """A transport that keeps the envelopes."""

    def __init__(self) -> None:
        super().__init__()
        self.envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)

    @property
    def text(self) -> str:
        return b"".join(envelope.serialize() for envelope in self.envelopes).decode()

    @property
    def events(self):
        return [event for envelope in self.envelopes if (event := envelope.get_event())]


@pytest.fixture
def caught():
    transport = Caught()
    client = sentry_sdk.get_client()
    sentry.init(dsn="http://key@127.0.0.1:1/1", transport=transport)
    yield transport
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(client)


def test_a_failed_request_is_reported_once_with_its_correlation_id_and_nothing_personal(
    db, caught, monkeypatch
):
    def fail(**values):
        logging.getLogger("shop").warning("about to fail for %s", values["email"])
        raise RuntimeError(f"no mail for {values['email']} named {values['name'][:0]}")

    monkeypatch.setattr(order_services, "place", fail)
    secret = make_token()
    body = order_body(email=EMAIL, name=NAME)
    response = Api(secret).post(
        "/api/v1/orders", body, key="k", X_Correlation_ID="c-9", Cookie="sessionid=abc"
    )
    assert response.status_code == 500
    sentry_sdk.flush()
    (event,) = [event for event in caught.events if "exception" in event]
    assert event["tags"]["correlation_id"] == "c-9"
    assert "ali***@example.com" in event["exception"]["values"][-1]["value"]
    for hidden in (*HIDDEN, secret, secret[3:]):
        assert hidden not in caught.text, hidden


def test_addresses_in_a_query_string_do_not_leave(db, caught):
    Api(make_token()).get("/api/v1/notifications?recipient_email=alice.smith%40example.com")
    sentry_sdk.capture_message("to bob.brown@example.com, Bearer op_" + "x" * 40)
    sentry_sdk.flush()
    assert caught.envelopes
    for hidden in ("alice.smith", "bob.brown", "op_x"):
        assert hidden not in caught.text


def test_the_row_of_a_broken_constraint_does_not_leave(db, caught, monkeypatch, caplog):
    def fail(**values):
        Order.objects.create(user_id=new_id(), email=EMAIL, name=f"{NAME}\n\nx", total_amount=-1)

    monkeypatch.setattr(order_services, "place", fail)
    assert Api(make_token()).post("/api/v1/orders", order_body(email=EMAIL, name=NAME)).status_code == 500
    sentry_sdk.flush()
    (event,) = [event for event in caught.events if "exception" in event]
    assert any("violates check constraint" in value["value"] for value in event["exception"]["values"])
    for hidden in HIDDEN:
        assert hidden not in caught.text, hidden


def test_a_refused_request_is_no_event(db, caught):
    Api(make_token()).post("/api/v1/orders", {})
    Api().get("/api/v1/orders")
    assert not [event for event in caught.events if "exception" in event]
